"""Poolings: from the states of a text's tokens to one state, of a padded batch and of a packed row."""

from __future__ import annotations

import tensorflow as tf

from mural_tf.backend import keras
from mural_tf.encoders.packing import Packing

POOLINGS = ("first", "mean", "first_and_mean", "last", "end")


class OnePosition(keras.layers.Layer):
    """The state of the only position that the last layer gives: [B, 1, hidden] -> [B, hidden], in the layer's dtype."""

    def call(self, x):
        return x[:, 0]


class EndOfText(keras.layers.Layer):
    """States [B, T, hidden], int32 mask [B, T] -> [B, hidden]: the state of each text's last token, as in CLIP."""

    def call(self, inputs):
        x, mask = inputs
        last = tf.maximum(tf.reduce_sum(mask, axis=1), 1) - 1  # position 0 in a text without tokens
        return tf.cast(tf.gather(x, last, batch_dims=1), self.compute_dtype)


class FirstAndMean(keras.layers.Layer):
    """States [B, T, hidden], int32 mask [B, T] -> [B, 2 hidden]: the [CLS] state, then the mean of the other tokens.

    Globetrotter's code compares texts with images by the [CLS] state, and texts with texts by the mean.
    """

    def call(self, inputs):
        x, mask = inputs
        x = tf.cast(x, self.compute_dtype)
        mean = _mean(x[:, 1:], mask[:, 1:])
        return tf.concat([x[:, 0], mean], axis=-1)


class MeanOfTokens(keras.layers.Layer):
    """States [B, T, hidden], int32 mask [B, T] -> [B, hidden]: the mean of all tokens, [CLS] and [SEP] included.

    It is the mean pooling of Sentence-Transformers (Reimers and Gurevych, 2019); a text without any token gives zeros.
    """

    def call(self, inputs):
        x, mask = inputs
        return _mean(tf.cast(x, self.compute_dtype), mask)


def _mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns the mean of tokens' states [B, T, hidden] with int32 mask [B, T]: [B, hidden]; zeros without a token."""
    token_weights = tf.expand_dims(tf.cast(mask, x.dtype), -1)  # [B, T, 1], 1 for a token, 0 for padding
    total = tf.reduce_sum(x * token_weights, axis=1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(token_weights, axis=1))


def packed_mean(x: tf.Tensor, packing: Packing) -> tf.Tensor:
    """Returns `MeanOfTokens` of packed texts' states: [1, N, hidden] -> [1, B, hidden], shorter texts first."""
    total, count = _packed_sums(x, packing)
    return tf.math.divide_no_nan(total, count)[tf.newaxis]


def packed_first_and_mean(x: tf.Tensor, packing: Packing) -> tf.Tensor:
    """Returns `FirstAndMean` of packed texts' states: [1, N, hidden] -> [1, B, 2 hidden], shorter texts first."""
    first = packing.first_tokens(x)[0]  # [B, hidden]
    total, count = _packed_sums(x, packing)
    mean = tf.math.divide_no_nan(total - first, count - 1.0)
    return tf.concat([first, mean], axis=-1)[tf.newaxis]


def _packed_sums(x: tf.Tensor, packing: Packing) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the sum of each text's states x, [1, N, hidden]: [B, hidden], and its number of tokens, [B, 1]."""
    text_count = tf.size(packing.order)
    token_weights = tf.cast(tf.logical_not(packing.is_filler), x.dtype)[:, tf.newaxis]  # [N, 1]: 0 for fillers
    totals = tf.math.unsorted_segment_sum(x[0] * token_weights, packing.places, text_count)
    return totals, tf.math.unsorted_segment_sum(token_weights, packing.places, text_count)
