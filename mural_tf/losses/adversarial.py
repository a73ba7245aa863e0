"""A language classifier and the reversal of its gradient: embeddings that do not tell their language.

[MULE] Eq. 2 and 4 (Kim et al., 2020), after Ganin and Lempitsky (2014): the classifier minimises the cross-entropy of
the language, and what feeds it maximises it. One backward pass does both, because the gradient changes its sign
between the two.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.triplet import Rows


@tf.custom_gradient
def reverse_gradient(x: tf.Tensor) -> tf.Tensor:
    """Returns x; its gradient is the negative of what arrives."""
    return tf.identity(x), lambda upstream: -upstream


def language_loss(logits: tf.Tensor, languages: tf.Tensor, rows: Rows | None = None) -> tf.Tensor:
    """Returns the mean cross-entropy, -log softmax(logits)[language], of the sentences there are.

    Args:
      logits: [S, L], any float type.
      languages: integers [S], 0 to L - 1; -1: there is no sentence in this row.
      rows: the sentences to sum over, as (first, count); the result is still divided by the number of all sentences,
        so parts add up to the whole. `None`: all.

    Returns:
      float32 scalar.
    """
    first, count = (0, tf.shape(logits)[0]) if rows is None else rows
    mine = languages[first : first + count]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.maximum(mine, 0), logits=tf.cast(logits[first : first + count], tf.float32)
    )
    present = tf.reduce_sum(tf.cast(languages >= 0, tf.float32))
    return tf.reduce_sum(tf.where(mine >= 0, losses, 0.0)) / tf.maximum(present, 1.0)
