"""LAMB, Adam and AdamW with a learning rate of its own for any variable.

LAMB is TensorFlow Addons' (You et al., 2020, Algorithm 2 with bias correction). Adam is Keras' with TensorFlow's fused
kernel; AdamW adds the decoupled decay θ ← θ - rate · λ · θ (Loshchilov & Hutter, 2019) before each Adam step.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping

import tensorflow as tf

with warnings.catch_warnings():  # its notice of retirement, ten lines at every start; setup.py pins what works
    warnings.simplefilter("ignore")
    import tensorflow_addons as tfa

# Biases, the scale and offset of normalisation layers, and the temperature: no weight decay, and no layer adaptation,
# which would scale their steps by a norm near zero and hold them where they start.
NOT_DECAYED = [r"bias", r"gamma", r"beta", r"temperature"]


def base_name(variable: tf.Variable) -> str:
    """Returns the variable's name without the suffix that a distribution strategy gives its replicas."""
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", variable.name)


def is_decayed(variable: tf.Variable) -> bool:
    """Tells whether weight decay applies to a variable."""
    return not any(re.search(pattern, base_name(variable)) for pattern in NOT_DECAYED)


class _VariableRates:
    """Multiplies the learning rate of each variable by `rates[base_name(variable)]` (1 where it is not named).

    `iterations` counts steps that `apply_if` left out too.
    """

    rates: Mapping[str, float] = {}
    apply_if: tf.Tensor | bool = True  # set before `apply_gradients`: where false, variables and slots stay as they are

    def _scaled(self, var, apply_state):
        key = (var.device, var.dtype.base_dtype)
        coefficients = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        rate = self.rates.get(base_name(var), 1.0)
        changed = {name: coefficients[name] * rate for name in ("lr_t", "lr") if name in coefficients}
        return {key: {**coefficients, **changed}}

    def _resource_apply_dense(self, grad, var, apply_state=None):
        def update():
            with tf.control_dependencies([self._update(grad, var, self._scaled(var, apply_state))]):
                return tf.identity(True)

        return tf.cond(self.apply_if, update, lambda: tf.identity(False))

    def _resource_apply_sparse_duplicate_indices(self, grad, var, indices, **kwargs):
        # All three optimisers decay the moments of every row at each step: sparse rows would not save a pass.
        return self._resource_apply_dense(
            tf.convert_to_tensor(tf.IndexedSlices(grad, indices, tf.shape(var))), var, **kwargs
        )

    def _update(self, grad, var, apply_state):
        return super()._resource_apply_dense(grad, var, apply_state)


class Lamb(_VariableRates, tfa.optimizers.LAMB):
    """TFA's LAMB with per-variable rates; decay and layer adaptation leave out `NOT_DECAYED`."""


class Adam(_VariableRates, tf.keras.optimizers.legacy.Adam):
    """Keras' Adam with per-variable rates."""


class AdamW(_VariableRates, tf.keras.optimizers.legacy.Adam):
    """Adam with decoupled weight decay, scaled by the learning rate."""

    def __init__(self, *args, weight_decay: float = 0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.weight_decay = weight_decay

    def _decay(self, var, apply_state):
        rate = apply_state[(var.device, var.dtype.base_dtype)]["lr_t"]
        if self.weight_decay and is_decayed(var):
            return [var.assign_sub(rate * self.weight_decay * var)]
        return []

    def _update(self, grad, var, apply_state):
        with tf.control_dependencies(self._decay(var, apply_state)):
            return super()._update(grad, var, apply_state)

    def get_config(self):
        return {**super().get_config(), "weight_decay": self.weight_decay}
