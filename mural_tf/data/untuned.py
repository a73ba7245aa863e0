"""Data sets without tf.data's autotuning."""

from __future__ import annotations

import tensorflow as tf


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `dataset` with parallelism and buffers as they are written, instead of tuned while it is read.

    In TensorFlow 2.15 the tuning thread of an iterator that is deleted can miss that it should end, and deleting then
    waits until the thread looks again: after as long as the iterator has lived, up to a minute. Such waits followed
    training, evaluation and whatever else read records. Our pipelines have little to tune. `tf.data.AUTOTUNE` becomes
    the number of cores, at most 16.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
