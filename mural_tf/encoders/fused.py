"""Chains of cheap operations compiled into one pass over memory, forward and backward.

TensorFlow runs `x * sigmoid(x)` and its gradient as eight operations that each read and write the whole tensor; on a
CPU these passes cost more than many convolutions. XLA compiles each direction into one loop. The mathematics is
unchanged. The gradient recomputes the function from its inputs, so only those are kept in memory.

Only training uses it: graphs traced for inference stay free of XLA, which TensorFlow Serving does not link. On a TPU
the whole step is compiled already, and the plain function is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

_enabled = True


def enable_fusion(enabled: bool) -> bool:
    """Turns compilation on or off for what is traced from now on; returns what it was before.

    `tf.debugging.enable_check_numerics` cannot look into compiled functions and fails on them: turn it off before.
    """
    global _enabled
    before, _enabled = _enabled, enabled
    return before


def compiles_fused() -> bool:
    """Tells whether chains are compiled here and now: not on a TPU, where the whole step is, nor when turned off."""
    return _enabled and not isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)


def fused(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns `function` with a keyword `training`: when `True`, it and its gradient run as one compiled loop each.

    `function` maps float tensors to one tensor and must be differentiable in each of them and free of randomness
    and variables. Each new shape is compiled once, some tens of milliseconds.
    """

    @functools.cache
    def compiled(*signature):
        """New functions for every signature; a shared one would warn of retracing."""

        @functools.partial(tf.function, jit_compile=True, autograph=False)
        def forward(*inputs):
            return function(*inputs)

        @functools.partial(tf.function, jit_compile=True, autograph=False)
        def backward(inputs, upstream):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = function(*inputs)
            return tape.gradient(output, inputs, upstream)

        return forward, backward

    @tf.custom_gradient
    def run(*inputs):
        forward, backward = compiled(*((x.dtype, tuple(x.shape)) for x in inputs))
        return forward(*inputs), lambda upstream: backward(inputs, upstream)

    @functools.wraps(function)
    def call(*inputs, training=False):
        return run(*inputs) if training is True and compiles_fused() else function(*inputs)

    return call
