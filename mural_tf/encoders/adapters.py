"""Heads of frozen towers that learn quickly, and ConSE: a classifier's classes as vectors of their names.

ConSE (Norouzi et al., "Zero-Shot Learning by Convex Combination of Semantic Embeddings", 2014) puts a picture at the
mean of its classes' names in a space of texts, each name times its probability. Nothing is trained, and with a text
tower of many languages it finds photographs in all of them. A head on a few thousand pictures of one kind knows these
pictures better, and no others. Here both are parts of one vector, so that cosines add (our choice):

    text:     [ trained head, length 1 ;  the text's state less the mean state, length 1 ]
    picture:  [ a times the trained head, length 1, and 1 - a times h ;  3/2 - a times s ],  h, s = sum of q_i name_i

h and s are scaled to length 1/2. The sum is over all classes, where the paper has the ten likeliest, and q_i is
p_i^(2/3): a photograph shows more than its likeliest class. `name_i` is the vector of the name
as a text, so that translations which the text head learned find photographs, too (h is left out in training); from its
state the mean of the names' states is subtracted, because names differ from other texts.
a = min(1, 1 / d)^2, where d is how far the picture lies from the pictures that the head was trained on: the mean square
of its state's numbers, in their standard deviations, so about 1 for such a picture: 0.5 to 1.2 for 90% of drawings, 1.0
to 2.0 for photographs.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.layers import Dropout, seed_of_pass

FARTHEST = 4.0  # deviations from the mean, where the states of other pictures, such as photographs, are cut off
LEAST = 1e-30  # smallest probability: its logarithm is taken
SOFTENING = 1.5  # divides the classes' logarithmic probabilities: a photograph shows more than its likeliest class


class Adapter(keras.layers.Layer):
    """The head of a frozen tower: float [B, hidden] -> float32 [B, size], not normalised (our choice).

        s = (x - mean) / deviation, cut off at ±4,    y = W2 dropout(GELU(W1 s + b1)) + b2 + W3 s

    All states of a pretrained tower point in nearly the same direction. So their mean is subtracted, and a new head
    learns from their differences. `standardize` takes mean and deviation from all states that a run trains on.
    In training s gets Gaussian noise, so that a head that sees each text many times learns its surroundings, too.

    Args:
      hidden_size: width of the hidden layer, W1.
      size: width of the embedding.
      dropout: share of the hidden layer that is dropped in training.
      noise: standard deviation of the noise that is added to s.
    """

    def __init__(self, hidden_size: int, size: int, dropout: float = 0.0, noise: float = 0.0, **options):
        super().__init__(**{"dtype": "float32", **options})
        self.noise = noise
        self.dense = keras.layers.Dense(hidden_size, activation="gelu", name="dense")
        self.dropout = Dropout(dropout, name="dropout")
        self.output_dense = keras.layers.Dense(size, name="output")
        self.skip = keras.layers.Dense(size, use_bias=False, name="skip")

    def build(self, shape):
        fixed = dict(shape=(shape[-1],), trainable=False)
        self.mean = self.add_weight("mean", initializer="zeros", **fixed)
        self.deviation = self.add_weight("deviation", initializer="ones", **fixed)
        super().build(shape)

    def standardize(self, states: np.ndarray) -> None:
        """Sets mean and deviation by the columns of states, float [N, hidden]; a constant column has deviation 1."""
        states = np.asarray(states, np.float64)
        deviation = states.std(axis=0)
        varies = deviation > 1e-6  # equal numbers do not give exactly 0, because sums are rounded
        self.mean.assign(states.mean(axis=0).astype(np.float32))
        self.deviation.assign(np.where(varies, deviation, 1.0).astype(np.float32))

    def standardized(self, states: tf.Tensor) -> tf.Tensor:
        """Returns states as deviations from their mean, cut off at ±`FARTHEST`: float [B, hidden] -> float32."""
        deviations = (tf.cast(states, tf.float32) - self.mean) / self.deviation
        return tf.clip_by_value(deviations, -FARTHEST, FARTHEST)

    def call(self, states, training=None):
        x = self.standardized(states)
        if training and self.noise:
            x += tf.random.stateless_normal(tf.shape(x), seed_of_pass(), stddev=self.noise)
        hidden = self.dropout(self.dense(x), training=training)
        return self.output_dense(hidden) + self.skip(x)


class TextAdapter(Adapter):
    """An adapter of texts, with ConSE, as "text" at the top: float [B, hidden] -> float32 [B, size + hidden]."""

    def call(self, states, training=None):
        trained = tf.math.l2_normalize(super().call(states, training=training), axis=-1)
        return tf.concat([trained, self.centred(states)], axis=-1)

    def centred(self, states: tf.Tensor) -> tf.Tensor:
        """Returns states, float [B, hidden], minus the mean state and then scaled to length 1: float32 [B, hidden]."""
        return tf.math.l2_normalize(tf.cast(states, tf.float32) - self.mean, axis=-1)


class ClassesAdapter(Adapter):
    """An adapter of pictures, with ConSE, "picture" at the top: [B, hidden + classes] -> float32 [B, size + width].

    The last `classes` numbers of the input are a classifier's probabilities. The weight `name_states`, float32
    [classes, width], holds the text tower's states of the classes' names and is assigned once. The weight `names`,
    float32 [classes, size + width], holds the vectors of the names, which `embed_names` brings up to date. The other
    arguments are as in `Adapter`; `settings` are its dropout and noise.
    """

    def __init__(self, hidden_size: int, size: int, *settings, classes: int, width: int, **options):
        super().__init__(hidden_size, size, *settings, **options)
        self.classes = classes
        self.size = size
        self.width = width

    def build(self, shape):
        fixed = dict(initializer="zeros", trainable=False)
        self.name_states = self.add_weight("name_states", (self.classes, self.width), **fixed)
        self.names = self.add_weight("names", (self.classes, self.size + self.width), **fixed)
        super().build((*shape[:-1], shape[-1] - self.classes))

    def embed_names(self, text_head: keras.layers.Layer) -> None:
        """Sets `names` to a text head's vectors of the class names; changes nothing if the head has no ConSE."""
        if not isinstance(text_head, TextAdapter):
            return  # the head of a bridge, whose texts are another model's
        head_vectors = text_head(self.name_states)[:, : self.size]
        mean = tf.reduce_mean(self.name_states, axis=0)
        state_vectors = tf.math.l2_normalize(self.name_states - mean, axis=-1)
        self.names.assign(tf.concat([head_vectors, state_vectors], axis=-1))

    def standardize(self, states: np.ndarray) -> None:
        super().standardize(states[:, : -self.classes])

    def call(self, inputs, training=None):
        states = inputs[:, : -self.classes]
        probabilities = tf.cast(inputs[:, -self.classes :], tf.float32)
        share = self.share_of_head(states)
        trained = tf.math.l2_normalize(super().call(states, training=training), axis=-1)
        embedding = share * trained
        by_head, by_state = self.mean_names(probabilities)
        if not training:  # in training `names` lag behind the text head
            embedding += (1 - share) * by_head
        return tf.concat([embedding, (1.5 - share) * by_state], axis=-1)  # 3/2 - a above

    def share_of_head(self, states: tf.Tensor) -> tf.Tensor:
        """Returns the weight of the trained head, a above, from 0 to 1: states [B, hidden] -> float32 [B, 1]."""
        distance = tf.reduce_mean(tf.square(self.standardized(states)), axis=-1, keepdims=True)
        return tf.square(tf.minimum(1.0, 1.0 / tf.maximum(distance, 1e-6)))  # the mean state has distance 0

    def mean_names(self, probabilities: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the names' mean vectors, h [B, size] and s [B, width] above; probabilities are [B, classes]."""
        logits = tf.math.log(tf.maximum(probabilities, LEAST))
        weights = tf.nn.softmax(logits / SOFTENING)
        sums = tf.matmul(weights, self.names)
        by_head, by_state = tf.split(sums, [self.size, self.width], axis=-1)
        return tf.math.l2_normalize(by_head, axis=-1) / 2, tf.math.l2_normalize(by_state, axis=-1) / 2


def image_adapter(tower: ConfigDict, name: str) -> Adapter:
    """Returns a new head for an `image_tower`: a `ClassesAdapter` if the tower gives classes, else an `Adapter`.

    `name` is the layer's. Raises `UserError` where `projection` leaves no numbers for the trained head.
    """
    settings = tower.adapter_dropout, tower.adapter_noise
    if not tower.classes:
        return Adapter(tower.adapter_size, tower.projection, *settings, name=name)
    width = tower.class_name_size
    size = tower.projection - width
    if size < 1 or not width:
        raise UserError(
            f"image_tower.class_names: class_name_size={width} numbers of projection={tower.projection} are a name's, "
            "the others the trained head's: set projection and embedding_size larger."
        )
    return ClassesAdapter(tower.adapter_size, size, *settings, classes=tower.classes, width=width, name=name)


def text_adapter(tower: ConfigDict, embedding_size: int, state_size: int, name: str) -> Adapter:
    """Returns a new head for a `text_tower`, from its states to float32 [B, embedding_size]; `name` is the layer's.

    The last `state_size` numbers are the text's own state, for ConSE; with 0 the head has no ConSE.
    """
    adapter_class = TextAdapter if state_size else Adapter
    trained_size = embedding_size - state_size
    return adapter_class(tower.adapter_size, trained_size, tower.adapter_dropout, tower.adapter_noise, name=name)


def embed_class_names(image_encoder: keras.Model, text_head: keras.layers.Layer) -> None:
    """Sets the class names' vectors in an image tower by `ClassesAdapter.embed_names`; other towers do not change."""
    for layer in image_encoder.layers:
        if isinstance(layer, ClassesAdapter):
            layer.embed_names(text_head)
