"""Layers of which every language has its own: MULE's projection of words, PARALLEL-EmbN's sentence branches.

Two ways give the same numbers. By parts: each language's rows go through its own layer, at the work of one layer;
sizes then depend on the data, which a CPU or GPU allows. By masks: all rows go through all layers and each row takes
its own language's result, at the work of all layers, in fixed sizes as a TPU needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf


class PerLanguage(tf.keras.layers.Layer):
    """Applies to each row of the inputs the layer of its language.

    Args:
      languages: their names, in the order of their numbers.
      build_layer: name → layer, which takes one tensor per input, rows first, and gives one tensor.
      fixed_sizes: by masks instead of by parts.
    """

    def __init__(self, languages: Sequence[str], build_layer: Callable, fixed_sizes: bool, **options):
        super().__init__(**options)
        self.fixed_sizes = fixed_sizes
        self.layers_by_language = [build_layer(language) for language in languages]

    def call(self, inputs, training=None):
        """`inputs`: the languages, int32 [B] (rows out of range give 0), and then tensors [B, …] for the layers."""
        language, *values = inputs
        if len(self.layers_by_language) == 1:
            return self.layers_by_language[0](*values)
        outputs, rows = [], []
        for number, layer in enumerate(self.layers_by_language):
            if self.fixed_sizes:
                output = layer(*values)
                mine = tf.reshape(tf.equal(language, number), [-1] + [1] * (output.shape.rank - 1))
                outputs.append(tf.where(mine, output, tf.zeros([], output.dtype)))
            else:
                rows.append(tf.cast(tf.where(tf.equal(language, number))[:, 0], tf.int32))
                outputs.append(layer(*(tf.gather(value, rows[-1]) for value in values)))
        if self.fixed_sizes:
            return tf.add_n(outputs)
        return tf.math.unsorted_segment_sum(tf.concat(outputs, 0), tf.concat(rows, 0), tf.shape(language)[0])
