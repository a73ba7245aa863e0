"""Chains of cheap operations compiled into one pass over memory, forward and backward.

TensorFlow runs `x * sigmoid(x)` and its gradient as five operations that each read and write the whole tensor; on a
CPU these passes cost more than many convolutions. XLA compiles each direction into one loop. The mathematics is
unchanged. The gradient recomputes the function from its inputs, so only those are kept in memory.

Only training uses it: exported graphs stay free of XLA, which TensorFlow Serving does not link. On a TPU the whole
step is compiled already, and the plain function is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf


def fused(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns `function` with a keyword `training`: when true, it and its gradient run as one compiled loop each.

    `function` maps float tensors to one tensor and must be differentiable in each of them and free of randomness
    and variables. Each new shape is compiled once, some tens of milliseconds.
    """

    def differentiate(inputs, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = function(*inputs)
        return tape.gradient(output, inputs, upstream)

    @functools.cache  # one tf.function a shape: a shared one would warn of retracing
    def compiled(*signature):
        return [tf.function(f, jit_compile=True, autograph=False) for f in (function, differentiate)]

    @tf.custom_gradient
    def run(*inputs):
        forward, backward = compiled(*((x.dtype, tuple(x.shape)) for x in inputs))
        return forward(*inputs), lambda upstream: backward(inputs, upstream)

    @functools.wraps(function)
    def call(*inputs, training=False):
        on_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
        return run(*inputs) if training is True and not on_tpu else function(*inputs)

    return call
