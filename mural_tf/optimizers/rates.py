"""LAMB, Adam and AdamW with a learning rate of its own for any variable.

LAMB is in `lamb.py`. Adam is Keras' with TensorFlow's fused
kernel; AdamW adds the decoupled decay θ ← θ - rate · λ · θ (Loshchilov & Hutter, 2019) before each Adam step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from mural_tf.backend import keras
from mural_tf.encoders.kernels import compiles_fused
from mural_tf.optimizers.lamb import LAMB

COMPILED_FROM = 4_000_000  # parameters in a variable from which its LAMB update is compiled
# Biases, the scale and offset of normalisation layers, and the temperature: no weight decay, and no layer adaptation,
# which would scale their steps by a norm near zero and hold them where they start.
NOT_DECAYED = [r"bias", r"gamma", r"beta", r"temperature"]


def base_name(variable: tf.Variable) -> str:
    """Returns the variable's name without the suffix that a distribution strategy gives its replicas."""
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", variable.name)


def is_decayed(variable: tf.Variable) -> bool:
    """Tells whether weight decay applies to a variable."""
    return not any(re.search(pattern, base_name(variable)) for pattern in NOT_DECAYED)


class ConditionalGradient(NamedTuple):
    """A gradient for `apply_gradients` that says whether it is to be applied.

    value: float tensor, finite in any case (zeros, say).
    apply: bool scalar. Where it is false, variable and slots stay as they are; `iterations` counts the step all the
      same.
    """

    value: tf.Tensor
    apply: tf.Tensor


class _VariableRates:
    """Multiplies the learning rate of each variable by `rates[base_name(variable)]` (1 where it is not named).

    Gradients may be `ConditionalGradient`s: one that is not applied has the rate 0, and its moments stay as
    they were.
    """

    rates: Mapping[str, float] = {}

    def _scaled(self, var, apply, apply_state):
        key = (var.device, var.dtype.base_dtype)
        coefficients = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        rate = self.rates.get(base_name(var), 1.0) * tf.cast(apply, key[1])
        changed = {name: coefficients[name] * rate for name in ("lr_t", "lr") if name in coefficients}
        for name in ("beta_1_t", "beta_2_t"):
            changed[name] = tf.where(apply, coefficients[name], tf.ones_like(coefficients[name]))
            changed[f"one_minus_{name}"] = 1.0 - changed[name]
        return {key: {**coefficients, **changed}}

    def _resource_apply_dense(self, grad, var, apply_state=None):
        grad, apply = grad if isinstance(grad, ConditionalGradient) else (grad, True)
        return self._update(grad, var, self._scaled(var, apply, apply_state))

    def _update(self, grad, var, apply_state):
        return super()._resource_apply_dense(grad, var, apply_state)

    def _resource_apply_sparse_duplicate_indices(self, grad, handle, indices, **kwargs):
        """Updates an embedding table as if its gradient were dense.

        These optimisers move every row, used or not, and do it for sparse gradients in six passes over the table;
        the dense update does the same in one.
        """
        dense = tf.math.unsorted_segment_sum(grad, indices, tf.shape(handle)[0])
        return self._resource_apply_dense(dense, handle, **kwargs)


class Lamb(_VariableRates, LAMB):
    """LAMB with per-variable rates; decay and layer adaptation leave out `NOT_DECAYED`.

    Its update of a variable is a dozen operations, each a pass over memory. Of token tables, which hold most of the
    parameters, these are compiled into a few, which is faster on CPUs. Others stay as they are, because every variable
    would be compiled on its own.
    """

    def _update(self, grad, var, apply_state):
        if var.shape.num_elements() < COMPILED_FROM or not compiles_fused():
            return super()._update(grad, var, apply_state)
        ((key, scaled),) = apply_state.items()

        @tf.function(jit_compile=True, autograph=False)
        def update(grad, coefficients):
            LAMB._resource_apply_dense(self, grad, var, {key: coefficients})
            return coefficients["lr_t"]

        return update(grad, {name: tf.convert_to_tensor(value) for name, value in scaled.items()})


class Adam(_VariableRates, keras.optimizers.legacy.Adam):
    """Keras' Adam with per-variable rates."""


class AdamW(_VariableRates, keras.optimizers.legacy.Adam):
    """Adam with decoupled weight decay, scaled by the learning rate."""

    def __init__(self, *args, weight_decay: float = 0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.weight_decay = weight_decay

    def _update(self, grad, var, apply_state):
        ((_, scaled),) = apply_state.items()
        decayed = []
        if self.weight_decay and is_decayed(var):
            decayed = [var.assign(var * (1.0 - scaled["lr_t"] * self.weight_decay))]  # half of an assign_sub's passes
        with tf.control_dependencies(decayed):
            return super()._update(grad, var, apply_state)

    def get_config(self):
        return {**super().get_config(), "weight_decay": self.weight_decay}
