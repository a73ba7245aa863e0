"""Dropout whose draws can be repeated: they come from the seed of the running `ForwardPass`."""

from __future__ import annotations

import tensorflow as tf

from mural_tf.encoders.forward_pass import current_pass


class Dropout(tf.keras.layers.Layer):
    """Zeroes a share `rate` of the entries and divides the others by 1 - rate, in training only.

    Args:
      rate: 0 <= rate < 1.
      noise_shape: as in `tf.keras.layers.Dropout`; `None` entries take the input's size. (None, 1, 1, 1) drops whole
        examples: stochastic depth.
    """

    def __init__(self, rate: float, noise_shape: tuple | None = None, **options):
        super().__init__(**options)
        self.rate, self.noise_shape = rate, noise_shape

    def call(self, x, training=None):
        if not training or not self.rate:
            return x
        current = current_pass()
        if current is None:  # used as an ordinary Keras layer: new draws at every call
            seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
        else:
            seed = current.next_seed()
        shape = tf.shape(x)
        if self.noise_shape is not None:
            shape = [shape[axis] if size is None else size for axis, size in enumerate(self.noise_shape)]
        kept = tf.cast(keep(shape, self.rate, seed), x.dtype)
        return x * (kept * tf.cast(1.0 / (1.0 - self.rate), x.dtype))


def keep(shape: tf.Tensor | list, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns bool of `shape`: each entry True with probability 1 - rate, the rate rounded to a multiple of 2^-16.

    Sixteen random bits an entry are half of what a float takes, and drawing is slow on a CPU.
    """
    count = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform([(count + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
    draws = tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count], shape)
    return draws >= tf.constant(round(rate * 2**16), tf.uint16)
