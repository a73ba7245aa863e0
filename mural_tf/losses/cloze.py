"""The cloze task of BERT (Devlin et al., 2019, §3.1) and Globetrotter (L_c): predict the pieces that were masked.

The loss is a mean over all places of the global batch. So that it can be taken over replicas and chunks, each text
comes as two numbers, its summed cross-entropy and how many places it has.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import Rows


def cloze_sums(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns float32 [B, 2]: each text's summed cross-entropy, in nats, and its sum of weights.

    Args:
      logits: [B, K, V], any float type.
      targets: int [B, K], in [0, V).
      weights: float32 [B, K], 1 where there is a piece to predict, else 0.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.cast(logits, tf.float32))
    return tf.stack([tf.reduce_sum(losses * weights, axis=1), tf.reduce_sum(weights, axis=1)], axis=1)


def cloze_loss(sums: tf.Tensor, rows: Rows | None = None) -> tf.Tensor:
    """Returns the mean cross-entropy over all places, float32 scalar; 0 where there are none.

    Args:
      sums: float32 [N, 2], what `cloze_sums` gives of all texts.
      rows: the texts to sum over, as (first, count); the result is still divided by the number of all places.
    """
    first, count = (0, tf.shape(sums)[0]) if rows is None else rows
    return tf.math.divide_no_nan(tf.reduce_sum(sums[first : first + count, 0]), tf.reduce_sum(sums[:, 1]))
