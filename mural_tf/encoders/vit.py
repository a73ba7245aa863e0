"""The vision transformer (Dosovitskiy et al., 2021) as image tower, in the two forms that CLIP and SigLIP have.

    CLIP (Radford et al., 2021): a class token before the patches, a norm before the layers; the class token's state
    after the last norm is the embedding. SigLIP (Zhai et al., 2023): no class token; a learned query attends to all
    patches after the last norm ("attention pooling", Zhai et al., 2022).

Layers have their norms first. Positions are learned, one for each patch, so a tower takes images of one size only.
CLIP's patches have no bias; here it is zeros.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.efficientnet import PixelNormalization
from mural_tf.encoders.kernels import ACTIVATIONS, dtype_policy
from mural_tf.encoders.pooling import OnePosition
from mural_tf.encoders.towers import image_input, tower_with_projection
from mural_tf.encoders.transformer import LayerNorm, TransformerLayer, initializer

POOLINGS = ("attention", "class")


def patch_count(config: ConfigDict) -> int:
    """Returns how many whole patches an image has; pixels at the right and bottom that fill no patch are ignored."""
    return (config.image_size // config.patch_size) ** 2


@tf.autograph.experimental.do_not_convert  # saves a second of every start; no layer needs it
def build_vit(config: ConfigDict) -> keras.Model:
    """Builds the tower that `config`, an `image_tower`, describes: float32 [B, S, S, 3] in [0, 1] -> float32 [B, D].

    S is `image_size`; D is `hidden_size`, or `projection` where that is set. Raises `UserError` for values that cannot
    be built.
    """
    _check(config)
    policy = dtype_policy(config.precision, "text")  # its work is products, as a text tower's, not convolutions
    side = config.image_size
    images = image_input(side)
    x = PixelNormalization(config, name="normalization", dtype="float32")(images)
    has_class_token = config.pooling == "class"
    x = PatchEmbeddings(config.patch_size, config.hidden_size, has_class_token, name="patches", dtype=policy)(x)
    if has_class_token:
        x = LayerNorm(config.epsilon, name="pre_norm", dtype=policy)(x)
    options = dict(norm_first=True, activation=config.activation, epsilon=config.epsilon, dtype=policy)
    for index in range(config.layers):
        # The last layer computes only the position that is read.
        only = "first" if has_class_token and index == config.layers - 1 else ""
        x = TransformerLayer(config.heads, config.feed_forward_size, only=only, name=f"block_{index}", **options)(x)
    x = LayerNorm(config.epsilon, name="post_norm", dtype=policy)(x)
    if not has_class_token:
        x = AttentionPooling(config.heads, config.feed_forward_size, name="pooling", **options)(x)
    return tower_with_projection(images, OnePosition(name="state", dtype="float32")(x), config)


class PatchEmbeddings(keras.layers.Layer):
    """A projection of each patch plus its position's vector: float32 [B, S, S, 3] -> [B, N, hidden].

    With `with_class` a learned class token comes before the patches: [B, N + 1, hidden].
    """

    def __init__(self, patch_size: int, hidden_size: int, with_class: bool, **options):
        super().__init__(**options)
        self.patch_size = patch_size
        self.hidden_size = hidden_size
        self.with_class = with_class

    def build(self, shape):
        def weight(name, *size, start=None):
            return self.add_weight(name, shape=size, initializer=start or initializer(self.hidden_size))

        count = (shape[1] // self.patch_size) ** 2 + int(self.with_class)
        self.kernel = weight("kernel", self.patch_size, self.patch_size, 3, self.hidden_size)
        self.bias = weight("bias", self.hidden_size, start="zeros")
        self.position_table = weight("position_embeddings", count, self.hidden_size)
        if self.with_class:
            self.class_token = weight("class_token", self.hidden_size)

    def call(self, images):
        images = tf.cast(images, self.compute_dtype)
        kernel = tf.cast(self.kernel, images.dtype)
        x = tf.nn.conv2d(images, kernel, strides=self.patch_size, padding="VALID")
        x = x + tf.cast(self.bias, x.dtype)
        patches = x.shape[1] * x.shape[2]
        x = tf.reshape(x, [tf.shape(x)[0], patches, self.hidden_size])
        if self.with_class:
            x = tf.concat([_for_each_row(self.class_token, x), x], axis=1)
        return x + tf.cast(self.position_table, x.dtype)


def _for_each_row(token, x):
    """Returns a learned token, [hidden] or [1, 1, hidden], repeated for each of the B rows of x: [B, 1, hidden]."""
    rows = tf.ones([tf.shape(x)[0], 1, 1], x.dtype)
    return tf.cast(token, x.dtype) * rows


class AttentionPooling(TransformerLayer):
    """One learned query, the probe, attends to patches: x [B, N, hidden], or [x, mask int32 [B, N]] -> [B, 1, hidden].

    The state is y + f(norm(y)) for y = attention(probe; x), where f is the second half of a `TransformerLayer`.
    """

    def build(self, shapes):
        super().build(shapes)
        size = self.hidden_size
        self.probe = self.add_weight("probe", shape=(1, 1, size), initializer=initializer(size))

    def call(self, inputs, training=None):
        x, *masks = tf.nest.flatten(inputs)
        attended = self.attend_once(_for_each_row(self.probe, x), x, masks, training)
        y = self.attention_output(attended, training=training)
        return y + self.feed_forward(self.output_norm(y, training=training), training)


def check_layers(config: ConfigDict) -> None:
    """Raises `UserError` for an unknown activation or pooling, or a number of heads that does not divide the width."""
    for field, choices in {"activation": tuple(ACTIVATIONS), "pooling": POOLINGS}.items():
        if config[field] not in choices:
            raise UserError(f"Unknown image_tower.{field} {config[field]!r}: expected {', '.join(choices)}.")
    if config.hidden_size % config.heads:
        raise UserError(
            f"image_tower.hidden_size={config.hidden_size} is not divisible by image_tower.heads={config.heads}."
        )


def _check(config: ConfigDict) -> None:
    """Raises `UserError` for values of an `image_tower` that cannot be built as a ViT."""
    check_layers(config)
    if not patch_count(config):
        raise UserError(
            f"image_tower.image_size={config.image_size} is smaller than image_tower.patch_size={config.patch_size}."
        )
