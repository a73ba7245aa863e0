"""Globetrotter's prediction head [C]: Dense, GELU, layer normalisation, Dense."""

from __future__ import annotations

import tensorflow as tf

from mural_tf.encoders.bert_functions import LAYER_NORM_EPSILON


class MlpHead(tf.keras.layers.Layer):
    """float [B, hidden] -> float32 [B, size], not normalised.

    Args:
      hidden_size: of the layer between.
      size: of the embedding.
      columns: (first, last + 1) of the input that the head sees; `None`: all.
    """

    def __init__(self, hidden_size: int, size: int, columns: tuple[int, int] | None = None, **options):
        super().__init__(**{"dtype": "float32", **options})
        self.columns = columns
        self.dense = tf.keras.layers.Dense(hidden_size, name="dense")
        self.norm = tf.keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON, name="layer_norm")
        self.output_dense = tf.keras.layers.Dense(size, name="output")

    def call(self, x):
        if self.columns is not None:
            x = x[:, self.columns[0] : self.columns[1]]
        return self.output_dense(self.norm(tf.nn.gelu(self.dense(x), approximate=False)))


class ClozeHead(tf.keras.layers.Layer):
    """BERT's head for masked tokens: float [..., hidden] -> float32 logits [..., V].

    Dense(size), GELU, layer normalisation, times the token table [V, size], plus a bias for each piece. The table is
    given with every call: it is the text tower's own.
    """

    def __init__(self, vocabulary_size: int, token_size: int, **options):
        super().__init__(**{"dtype": "float32", **options})
        self.vocabulary_size = vocabulary_size
        self.dense = tf.keras.layers.Dense(token_size, name="dense")
        self.norm = tf.keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON, name="layer_norm")

    def build(self, shape):
        self.bias = self.add_weight("bias", shape=(self.vocabulary_size,), initializer="zeros")

    def call(self, states, table):
        x = self.norm(tf.nn.gelu(self.dense(states), approximate=False))
        return tf.tensordot(x, tf.cast(table, x.dtype), axes=[[-1], [1]]) + self.bias
