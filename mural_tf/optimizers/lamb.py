"""LAMB (You et al., 2020, Algorithm 2 with bias correction), on Keras' optimisers of before 2.11.

    m ← β1 m + (1 - β1) g          v ← β2 v + (1 - β2) g²
    u = m / (1 - β1^t) / (√(v / (1 - β2^t)) + ε) + λ θ
    θ ← θ - rate · ‖θ‖ / ‖u‖ · u        (the trust ratio ‖θ‖ / ‖u‖ is 1 where a norm is 0)

TensorFlow Addons has this optimiser, in the same arithmetic, the same options and under the same names of slots; where
it is installed, `LAMB` is theirs. It ended with Python 3.11, so elsewhere `LAMB` is `OwnLamb`, which gives the same
numbers to the bit and goes on from the same checkpoints. Keras 3's `Lamb` is another algorithm: it decays outside of
the trust ratio and adapts every variable.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Sequence

import tensorflow as tf

from mural_tf.backend import keras


class OwnLamb(keras.optimizers.legacy.Optimizer):
    """LAMB, by the equations at the top of this file.

    Args:
      learning_rate: a number, or a schedule of the step.
      beta_1, beta_2: decay of the two moments, in [0, 1).
      epsilon: added to the root of the second moment.
      weight_decay: λ.
      exclude_from_weight_decay: regular expressions; λ is 0 for variables whose name one of them matches.
      exclude_from_layer_adaptation: the same for the trust ratio, which is 1 then; empty: as for the decay.
      name: the optimiser's name.
    """

    def __init__(
        self,
        learning_rate=0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LAMB",
        **kwargs,
    ):
        super().__init__(name, **kwargs)
        self._numbers = dict(learning_rate=learning_rate, beta_1=beta_1, beta_2=beta_2, weight_decay=weight_decay)
        self._numbers["decay"] = self._initial_decay
        for key, value in self._numbers.items():
            self._set_hyper(key, value)
        self.epsilon = epsilon
        self.exclude_from_weight_decay = exclude_from_weight_decay
        self.exclude_from_layer_adaptation = exclude_from_layer_adaptation or exclude_from_weight_decay

    def _create_slots(self, var_list):
        for slot in ("m", "v"):
            for var in var_list:
                self.add_slot(var, slot)

    def _prepare_local(self, var_device, var_dtype, apply_state):
        """Adds to `apply_state`, for the variables of a device and type, the numbers of this step in LAMB's equations.

        Keras puts the learning rate there and calls this once per device and type, not once per variable.
        """
        super()._prepare_local(var_device, var_dtype, apply_state)
        state = apply_state[var_device, var_dtype]
        step = tf.cast(self.iterations + 1, var_dtype)
        for name in ("beta_1", "beta_2"):
            # A hyperparameter is a variable: `tf.identity` reads it once, not in each variable's update.
            beta = tf.identity(self._get_hyper(name, var_dtype))
            state[f"{name}_t"] = beta
            state[f"{name}_power"] = tf.pow(beta, step)
            state[f"one_minus_{name}_t"] = 1 - beta
        state["weight_decay"] = tf.identity(self._get_hyper("weight_decay", var_dtype))
        state["epsilon"] = tf.convert_to_tensor(self.epsilon, var_dtype)

    def _resource_apply_dense(self, grad, var, apply_state=None):
        """Updates one variable and its two moments by the equations at the top of this file; g is `grad`, θ `var`."""
        key = var.device, var.dtype.base_dtype
        state = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        first_moment = self.get_slot(var, "m")
        second_moment = self.get_slot(var, "v")
        first_moment = first_moment.assign(first_moment * state["beta_1_t"] + grad * state["one_minus_beta_1_t"])
        second_moment = second_moment.assign(
            second_moment * state["beta_2_t"] + (grad * grad) * state["one_minus_beta_2_t"]
        )
        unbiased_first = first_moment / (1.0 - state["beta_1_power"])
        unbiased_second = second_moment / (1.0 - state["beta_2_power"])
        update = unbiased_first / (tf.sqrt(unbiased_second) + state["epsilon"])
        if not _is_named(var, self.exclude_from_weight_decay):
            update += state["weight_decay"] * var
        trust_ratio = 1.0
        if not _is_named(var, self.exclude_from_layer_adaptation):
            norm = tf.norm(var, ord=2)
            update_norm = tf.norm(update, ord=2)
            has_norms = tf.logical_and(norm > 0, update_norm > 0)
            trust_ratio = tf.where(has_norms, norm / update_norm, 1.0)
        return var.assign(var - trust_ratio * state["lr_t"] * update)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        """Updates an embedding table by gradients of some rows, float [K, …], with `indices` [K], which may repeat."""
        # Every row moves, by its moments and the decay; a dense update does it in one pass.
        dense = tf.math.unsorted_segment_sum(grad, indices, tf.shape(var)[0])
        return self._resource_apply_dense(dense, var, apply_state)

    def get_config(self):
        return {
            **super().get_config(),
            **{name: self._serialize_hyperparameter(name) for name in self._numbers},
            "epsilon": self.epsilon,
            "exclude_from_weight_decay": self.exclude_from_weight_decay,
            "exclude_from_layer_adaptation": self.exclude_from_layer_adaptation,
        }


def _is_named(variable: tf.Variable, patterns: Sequence[str] | None) -> bool:
    """Whether one of the regular expressions matches anywhere in a variable's name."""
    return any(re.search(pattern, variable.name) for pattern in patterns or ())


def _lamb() -> type[keras.optimizers.legacy.Optimizer]:
    """Returns TensorFlow Addons' class where the package is installed, else `OwnLamb`."""
    if importlib.util.find_spec("tensorflow_addons") is None:
        return OwnLamb
    with warnings.catch_warnings():  # its notice of retirement, ten lines at every start; setup.py pins a version
        warnings.simplefilter("ignore")
        from tensorflow_addons.optimizers import LAMB as ADDONS_LAMB
    return ADDONS_LAMB


LAMB = _lamb()
