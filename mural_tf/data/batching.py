"""What all streams of batches do with a finished batch."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def of_size(batch: int, values):
    """States the batch's size, which tokenisation and resampling forget."""
    return tf.nest.map_structure(lambda v: tf.ensure_shape(v, [batch] + [None] * (v.shape.rank - 1)), values)


def fingerprint(strings: tf.Tensor) -> tf.Tensor:
    """Returns an int64 id for each string."""
    return tf.strings.to_hash_bucket_fast(strings, np.iinfo(np.int64).max)
