"""From the states of a text's tokens to one state of the text."""

from __future__ import annotations

import tensorflow as tf

POOLINGS = ("first", "first_and_mean")


class FirstPosition(tf.keras.layers.Layer):
    """[B, T, hidden] -> [B, hidden] in the layer's own dtype: the state of the [CLS] token."""

    def call(self, x):
        return x[:, 0]


class FirstAndMean(tf.keras.layers.Layer):
    """([B, T, hidden], int32 mask [B, T]) -> [B, 2 hidden]: the [CLS] state, and the mean of the tokens after it.

    Globetrotter's code compares texts with images by the first, and texts with texts by the other tokens.
    """

    def call(self, inputs):
        x, mask = inputs
        x = tf.cast(x, self.compute_dtype)
        others = tf.cast(mask, x.dtype)[:, 1:, tf.newaxis]
        mean = tf.math.divide_no_nan(tf.reduce_sum(x[:, 1:] * others, axis=1), tf.reduce_sum(others, axis=1))
        return tf.concat([x[:, 0], mean], axis=-1)
