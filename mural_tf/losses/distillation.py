"""The losses of learning from another model's embeddings.

    L_cos = 1/N sum_i ( 1 - cos(x_i, t_i) )

For rows of length 1 this is half of the squared distance that Reimers and Gurevych (2020) minimise.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import Rows


def cosine_loss(embeddings: tf.Tensor, targets: tf.Tensor, *, rows: Rows | None = None) -> tf.Tensor:
    """Returns L_cos, a float32 scalar, of float32 [N, D] each, L2-normalised.

    rows: as (first, count), those to sum over; the result is still divided by N. `None`: all.
    """
    total = tf.shape(embeddings)[0]
    first, count = (0, total) if rows is None else rows
    cosines = tf.reduce_sum(embeddings[first : first + count] * targets[first : first + count], axis=1)  # [R]
    return tf.reduce_sum(1.0 - cosines) / tf.cast(total, tf.float32)
