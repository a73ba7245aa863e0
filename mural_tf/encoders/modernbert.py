"""ModernBERT (Warner et al., 2024, "Smarter, Better, Faster, Longer") as text tower: local and global attention.

Layers have their norms first, and nothing has a bias. Positions are rotations of queries and keys (Su et al., 2021,
"RoFormer"), so no table ends. Every `attention_every`-th layer, from the first on, is global: a token sees the whole
text, and rotations have the first of `rotary_bases`. In the other layers a token sees `attention_window` tokens on
either side, and rotations have the second base. The second half of a layer is gated (Shazeer, 2020, "GLU Variants
Improve Transformer"): W2 (f(W1 x) * V x), with a GELU or SiLU f. The first layer's attention has no norm of its own:
it follows the norm of the embeddings.

Window and rotations are of positions within a text, so a packed batch (see packing.py) gives the same numbers. Local
layers compute all products and leave out distant tokens: for texts of up to some hundred tokens that costs little.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.bert import FINAL_NORM, check_length, dropout_rate, packed_states, token_states
from mural_tf.encoders.kernels import ACTIVATIONS, dtype_policy
from mural_tf.encoders.layers import Dropout, rows_of_table
from mural_tf.encoders.pooling import MeanOfTokens, OnePosition
from mural_tf.encoders.towers import token_inputs
from mural_tf.encoders.transformer import LayerNorm, TransformerLayer, initializer

POOLINGS = ("first", "mean")


@tf.autograph.experimental.do_not_convert  # saves a second of every start; no layer needs it
def build_modernbert(config: ConfigDict, vocabulary_size: int) -> keras.Model:
    """Builds the tower that `config`, a `text_tower`, describes: three int32 [B, T] inputs -> float32 [B, hidden_size].

    Inputs and attributes are as in `build_bert`; token types are ignored. With `pooling` "mean" the output is the mean
    of the tokens' states, else the first token's state. Raises `UserError` for values that cannot be built.
    """
    _check(config)
    policy = dtype_policy(config.precision, "text")
    inputs = token_inputs()
    x = TokenEmbeddings(
        vocabulary_size,
        config.hidden_size,
        config.max_length,
        config.epsilon,
        dropout_rate(config),
        name="embeddings",
        dtype=policy,
    )([inputs["input_word_ids"], inputs["input_type_ids"]])  # [B, T, hidden]
    for index in range(config.layers):
        x = _gated_layer(config, index, policy)([x, inputs["input_mask"]])
    x = LayerNorm(config.epsilon, center=False, name=FINAL_NORM, dtype=policy)(x)
    if config.pooling == "mean":
        states = MeanOfTokens(name="mean_state", dtype="float32")([x, inputs["input_mask"]])  # [B, hidden]
    else:
        states = OnePosition(name="cls_state", dtype="float32")(x)  # [B, hidden]
    model = keras.Model(inputs, states, name="text_encoder")
    model.embedding_size = states.shape[-1]
    model.trainable = not config.frozen
    model.attends_to_padding = False
    model.packed_states = functools.partial(packed_states, model, config.pooling)
    model.token_states = functools.partial(token_states, model)
    return model


def _gated_layer(config: ConfigDict, index: int, policy: keras.mixed_precision.Policy) -> GatedLayer:
    """Returns the tower's layer number `index`, counted from 0: a global or a local layer."""
    global_base, local_base = config.rotary_bases
    window = config.attention_window
    rotary_base = local_base
    if index % config.attention_every == 0:
        window = 0  # the whole text
        rotary_base = global_base
    only = ""
    if config.pooling == "first" and index == config.layers - 1:
        only = "first"  # the last layer computes only the position that is read
    return GatedLayer(
        config.heads,
        config.feed_forward_size,
        dropout_rate(config),
        window=window,
        rotary_base=rotary_base,
        has_norm=index > 0,
        only=only,
        activation=config.activation,
        epsilon=config.epsilon,
        name=f"layer_{index}",
        dtype=policy,
    )


class TokenEmbeddings(keras.layers.Layer):
    """Normalised embeddings of tokens, without positions: ids of tokens and of types, int32 [B, T] -> [B, T, hidden].

    Types are ignored. With a `packing` inputs and output are packed, [1, N] and [1, N, hidden]. Texts of more than
    `max_length` tokens raise `UserError`; other arguments are as in `BertEmbeddings`.
    """

    def __init__(self, vocabulary_size, hidden_size, max_length, epsilon, dropout, **options):
        super().__init__(**options)
        self.vocabulary_size = vocabulary_size
        self.hidden_size = hidden_size
        self.max_length = max_length
        self.layer_norm = LayerNorm(epsilon, center=False, name="layer_norm", dtype=self.dtype_policy)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, shape):
        size = (self.vocabulary_size, self.hidden_size)
        self.token_table = self.add_weight("token_embeddings", shape=size, initializer=initializer(self.hidden_size))

    def call(self, inputs, training=None, packing=None):
        word_ids, _ = inputs
        if packing is None:
            check_length(word_ids, self.max_length)
        x = tf.cast(rows_of_table(self.token_table, word_ids), self.compute_dtype)
        return self.dropout(self.layer_norm(x, training=training), training=training)


class GatedLayer(TransformerLayer):
    """A layer of ModernBERT: as a `TransformerLayer` with `norm_first`, without biases, rotated and gated.

    Args:
      heads, feed_forward_size, dropout, options: as in `TransformerLayer`.
      window: how far a token sees on either side; 0: the whole text.
      rotary_base: base of the rotations' frequencies, base^(-2i / size of a head).
      has_norm: whether attention has a norm before it.
    """

    has_bias = False

    def __init__(self, heads, feed_forward_size, dropout, *, window, rotary_base, has_norm, **options):
        super().__init__(heads, feed_forward_size, dropout, norm_first=True, **options)
        self.intermediate_size = 2 * feed_forward_size  # of values and of gates
        self.window = window
        self.rotary_base = rotary_base
        self.has_norm = has_norm

    def feed_forward(self, x, training):
        """Returns the gated second half of the layer, position by position: [B, T, hidden] -> [B, T, hidden]."""
        y, gate = tf.split(self.intermediate(x, training=training), 2, axis=-1)
        y = self.activation(y, training=training) * gate
        return self.output_dropout(self.output_dense(y, training=training), training=training)

    def attention(self, query, key, value, masks, training):
        """Returns `TransformerLayer.attention` of rotated queries and keys; a single query is the first token's."""
        length = tf.shape(key)[2]
        cosines, sines = rotations(length, key.shape[-1], self.rotary_base)
        key = rotated(key, cosines, sines)
        is_first_token = query.shape[2] == 1  # at angle 0, which changes nothing
        if not is_first_token:
            query = rotated(query, cosines, sines)
        if self.window:
            positions = tf.range(length)
            query_positions = positions[:1] if is_first_token else positions
            is_near = tf.abs(query_positions[:, tf.newaxis] - positions) <= self.window  # [Q, T]
            masks = [*masks, is_near[tf.newaxis]]
        return super().attention(query, key, value, masks, training)


def rotations(length: tf.Tensor, size: int, base: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the cosines and sines of the angles of `length` positions, float32 [length, size / 2] each.

    Position p turns the i-th pair of numbers by p * base^(-2i / size) (Su et al., 2021, equation 15).
    """
    frequencies = (1.0 / base ** (np.arange(0, size, 2, dtype=np.float32) / size)).astype(np.float32)
    angles = tf.cast(tf.range(length), tf.float32)[:, tf.newaxis] * frequencies
    return tf.cos(angles), tf.sin(angles)


def rotated(x: tf.Tensor, cosines: tf.Tensor, sines: tf.Tensor) -> tf.Tensor:
    """Returns x, [B, heads, T, size], with the pairs (i, i + size / 2) turned by the angles of each position T.

    Cosines and sines are `rotations`; the computation is in float32, the result in the dtype of x.
    """
    first, second = tf.split(tf.cast(x, tf.float32), 2, axis=-1)
    turned = tf.concat([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return tf.cast(turned, x.dtype)


def _check(config: ConfigDict) -> None:
    """Raises `UserError` for values of a `text_tower` that cannot be built as a ModernBERT."""
    if config.hidden_size % (2 * config.heads):
        raise UserError(
            f"text_tower.hidden_size={config.hidden_size} with heads={config.heads}: expected heads of an even size."
        )
    for field, choices in {"activation": tuple(ACTIVATIONS), "pooling": POOLINGS}.items():
        if config[field] not in choices:
            raise UserError(f"Unknown text_tower.{field} {config[field]!r}; known of modernbert: {', '.join(choices)}.")
    if len(config.rotary_bases) != 2 or min(config.rotary_bases) <= 1:
        raise UserError(f"text_tower.rotary_bases={tuple(config.rotary_bases)}: expected two numbers above 1.")
    if not 0 <= config.dropout < 1:
        raise UserError(f"text_tower.dropout={config.dropout} must be at least 0 and below 1.")
