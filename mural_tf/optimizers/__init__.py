"""Optimisers: from configuration to LAMB, Adam or AdamW, in both readings of [MURAL] §3.2's two rates.

joint (default): one optimiser over Eq. 1's weighted loss; everything the image-text task reaches has the image-text
rate 1e-3, only the text-text head has 1e-4. The task weights keep their meaning.
per_task: one optimiser for each task, with its own slots, schedule and gradient; both update the shared text tower.
LAMB hardly depends on the scale of the gradient, so the task weights then matter little.

No other file needs to know which of the two it is: optimisers come as {name: optimiser}, and the functions below give
the loss that each minimises and the names of its numbers in logs.

Any variable may have a rate of its own. LAMB is in `lamb.py`. Adam is Keras' with TensorFlow's fused kernel; AdamW adds
the decoupled decay θ ← θ - rate · λ · θ (Loshchilov & Hutter, 2019) before each Adam step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.kernels import compiles_fused
from mural_tf.optimizers.lamb import LAMB

NAMES = ("lamb", "adam", "adamw")
JOINT = "joint"
MODES = (JOINT, "per_task")
COMPILED_FROM = 4_000_000  # parameters in a variable from which its LAMB update is compiled
# Biases, the scale and offset of normalisation layers, and the temperature: no weight decay, and no layer adaptation,
# which would scale their steps by a norm near zero and hold them where they start.
NOT_DECAYED = [r"bias", r"gamma", r"beta", r"temperature"]
BETA_1 = 0.9  # decay of the first moment, in all papers


def base_name(variable: tf.Variable) -> str:
    """Returns a variable's name without its replica's suffix: "head/kernel" of "head/kernel/replica_1:0"."""
    return re.sub(r"(/replica_\d+)?(:\d+)?$", "", variable.name)


def is_decayed(variable: tf.Variable) -> bool:
    """Whether weight decay applies to a variable."""
    return not any(re.search(pattern, base_name(variable)) for pattern in NOT_DECAYED)


class ConditionalGradient(NamedTuple):
    """A gradient for `apply_gradients` that says whether it is to be applied.

    value: float tensor, finite in any case (zeros, say).
    apply: bool scalar. Where it is false, variable and slots stay as they are; `iterations` counts the step all the
      same.
    """

    value: tf.Tensor
    apply: tf.Tensor


def conditional(optimizer: keras.optimizers.Optimizer, gradients: list[tf.Tensor], apply: tf.Tensor) -> list:
    """Returns gradients as the optimiser takes them: `ConditionalGradient`s for this file's, for others as they are."""
    if isinstance(optimizer, _VariableRates):
        return [ConditionalGradient(gradient, apply) for gradient in gradients]
    return gradients


def create_variables(optimizer: keras.optimizers.Optimizer, variables: list[tf.Variable]) -> None:
    """Makes the slots and the counter of an optimiser of Keras' old or new kind."""
    if isinstance(optimizer, keras.optimizers.legacy.Optimizer):
        optimizer._create_all_weights(variables)
    else:
        optimizer.build(variables)


class _VariableRates:
    """Multiplies the learning rate of each variable by `rates[base_name(variable)]`, or by 1 if it is not in `rates`.

    A `ConditionalGradient` that is not applied gets the rate 0, and the variable's moments stay as they were.
    """

    rates: Mapping[str, float] = {}

    def _with_rate(self, var, apply, apply_state):
        """Returns `apply_state` for one variable: {its (device, dtype): {name: coefficient}}, with the variable's rate.

        If `apply` is false, the coefficients change neither the variable nor its moments.
        """
        key = (var.device, var.dtype.base_dtype)
        # Keras fills `apply_state` where it applies gradients itself; else this step's numbers are computed here.
        coefficients = (apply_state or {}).get(key) or self._fallback_apply_state(*key)
        rate = self.rates.get(base_name(var), 1.0) * tf.cast(apply, key[1])
        changed = {name: coefficients[name] * rate for name in ("lr_t", "lr") if name in coefficients}
        for name in ("beta_1_t", "beta_2_t"):
            changed[name] = tf.where(apply, coefficients[name], tf.ones_like(coefficients[name]))
            changed[f"one_minus_{name}"] = 1.0 - changed[name]
        return {key: {**coefficients, **changed}}

    def _resource_apply_dense(self, grad, var, apply_state=None):
        if not isinstance(grad, ConditionalGradient):
            grad = ConditionalGradient(grad, True)
        return self._update(grad.value, var, self._with_rate(var, grad.apply, apply_state))

    def _update(self, grad, var, apply_state):
        """Updates a variable and its moments by the coefficients that `_with_rate` returned."""
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

    Its update of a variable is a dozen operations, each a pass over memory. For token tables, which hold most of the
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
            return coefficients["lr_t"]  # any tensor: Keras waits for the result of an update

        return update(grad, {name: tf.convert_to_tensor(value) for name, value in scaled.items()})


class Adam(_VariableRates, keras.optimizers.legacy.Adam):
    """Keras' Adam with per-variable rates."""


class AdamW(_VariableRates, keras.optimizers.legacy.Adam):
    """Adam with decoupled weight decay, scaled by the learning rate."""

    def __init__(self, *args, weight_decay: float = 0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.weight_decay = weight_decay

    def _update(self, grad, var, apply_state):
        ((_, coefficients),) = apply_state.items()
        decays = []  # operations that run before Adam's step
        if self.weight_decay and is_decayed(var):
            kept_share = 1.0 - coefficients["lr_t"] * self.weight_decay
            decays.append(var.assign(var * kept_share))  # takes half of an assign_sub's passes over memory
        with tf.control_dependencies(decays):
            return super()._update(grad, var, apply_state)

    def get_config(self):
        return {**super().get_config(), "weight_decay": self.weight_decay}


# Rates over steps.


class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from zero, then linear decay to zero, [MURAL] §3.2 (10k and 600k steps).

    rate(s) = peak · s / warmup for s < warmup, then peak · (steps - s) / (steps - warmup), 0 from `steps` on.

    The optimisers count steps from 0. The rate is taken at s + 1 during warm-up, so that the first step is not
    lost to a zero rate (our choice; the paper's ramp starts at zero). Raises `ValueError` unless 0 <= warmup < steps.
    """

    def __init__(self, peak: float, warmup_steps: int, steps: int):
        if not 0 <= warmup_steps < steps:
            raise ValueError(f"warmup_steps must be in [0, steps), got warmup_steps={warmup_steps}, steps={steps}.")
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.steps = steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = (step + 1.0) / max(self.warmup_steps, 1)
        falling = (self.steps - step) / (self.steps - self.warmup_steps)
        return self.peak * tf.clip_by_value(tf.minimum(rising, falling), 0.0, 1.0)

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "steps": self.steps}


class StaircaseDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Decay by stairs: rate(s) = peak · decay_rate^(s // every), times the warm-up of `WarmupLinearDecay`."""

    def __init__(self, peak: float, warmup_steps: int, decay_rate: float, every: int):
        if not 0.0 < decay_rate <= 1.0 or every < 1:
            raise ValueError(f"decay_rate must be in (0, 1] and every at least 1, got {decay_rate} and {every}.")
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.decay_rate = decay_rate
        self.every = every

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = tf.minimum((step + 1.0) / max(self.warmup_steps, 1), 1.0)
        return self.peak * rising * self.decay_rate ** tf.floor(step / self.every)

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "decay_rate": self.decay_rate,
            "every": self.every,
        }


def build_optimizers(
    config: ConfigDict, steps: int, variables: Mapping[str, list[tf.Variable]], tasks: Iterable[str]
) -> dict[str, keras.optimizers.legacy.Optimizer]:
    """Returns {"joint": optimiser}, or with the mode "per_task" {task: optimiser} for "image_text" and "text_text".

    Args:
      config: the tree's `optimizer` branch.
      steps: where the schedules reach zero.
      variables: the model's variables by group; "text_tower" and "text_text_head" have rates of their own.
      tasks: the method's tasks with a weight; other tasks get no optimiser.

    Raises:
      UserError: as `check_optimizer`, or `per_task` with a further task.
    """
    check_optimizer(config)
    group_rates = {"text_tower": config.text_tower_rate}
    if config.mode == JOINT:
        group_rates["text_text_head"] = config.text_text_learning_rate / config.learning_rate
    rates = {}
    for group, rate in group_rates.items():
        rates.update({base_name(variable): rate for variable in variables.get(group, ())})
    if config.mode == JOINT:
        return {JOINT: _optimizer(config, config.learning_rate, steps, rates)}
    peaks = {"image_text": config.learning_rate, "text_text": config.text_text_learning_rate}
    others = set(tasks) - set(peaks)
    if others:
        raise UserError(
            f"optimizer.mode=per_task has an optimiser for {' and '.join(peaks)}, and this method also has "
            f"{', '.join(sorted(others))}: use joint."
        )
    return {task: _optimizer(config, peak, steps, rates) for task, peak in peaks.items() if task in tasks}


def losses_by_optimizer(losses: Mapping[str, tf.Tensor], optimizers: Iterable[str]) -> dict[str, tf.Tensor]:
    """Returns {optimiser: the loss that it minimises, a scalar} from the weighted losses, {task: scalar}."""
    if JOINT in optimizers:
        return {JOINT: tf.add_n(list(losses.values()))}
    return dict(losses)


def log_suffix(optimizer: str) -> str:
    """Returns the end of the names of an optimiser's numbers in logs: "" for the joint optimiser, else "_<task>"."""
    return "" if optimizer == JOINT else f"_{optimizer}"


def learning_rates(optimizers: Mapping[str, keras.optimizers.legacy.Optimizer]) -> dict[str, float]:
    """Returns {"learning_rate", or "learning_rate_<task>": present rate} of optimisers {name: optimiser}."""
    return {
        f"learning_rate{log_suffix(name)}": float(optimizer.learning_rate(optimizer.iterations))
        for name, optimizer in optimizers.items()
    }


RANGES = {  # of fields whose wrong values would train on in silence
    **dict.fromkeys(("text_text_learning_rate", "warmup_steps", "weight_decay", "clip_norm"), (0, math.inf)),
    "text_tower_rate": (0, math.inf),
    "beta_2": (0, 0.999999),
    "epsilon": (0, 1),
}


def check_optimizer(config: ConfigDict) -> None:
    """Raises `UserError` for an unknown name or mode in the `optimizer` branch, or a number out of its range."""
    if config.name not in NAMES:
        raise UserError(f"Unknown optimizer.name {config.name!r}; known: {', '.join(NAMES)}.")
    if config.mode not in MODES:
        raise UserError(f"Unknown optimizer.mode {config.mode!r}; known: {', '.join(MODES)}.")
    if config.learning_rate <= 0:
        raise UserError(f"optimizer.learning_rate={config.learning_rate} must be above 0.")
    for name, (smallest, largest) in RANGES.items():
        if not smallest <= config[name] <= largest:
            expected = f"{smallest} or more" if largest == math.inf else f"a number from {smallest} to {largest}"
            raise UserError(f"optimizer.{name}={config[name]}: expected {expected}.")
    if len(config.decay) != 2:
        raise UserError(f"optimizer.decay={config.decay}: expected a rate and a number of steps, such as 0.794,1000.")
    rate, every = config.decay
    if rate and not (0 < rate <= 1 and every > 0):  # 0: the linear decay
        raise UserError(f"optimizer.decay={rate},{every}: expected a rate in (0, 1], and 1 step or more.")


def _optimizer(config: ConfigDict, peak: float, steps: int, rates: Mapping[str, float]):
    """Returns a new optimiser of the configured name, with the configured schedule.

    Args:
      config, steps: as `build_optimizers` takes them.
      peak: the highest learning rate.
      rates: {name of a variable: factor of its learning rate}.
    """
    warmup = min(config.warmup_steps, steps - 1)  # the schedule needs warmup < steps
    decay_rate, every = config.decay
    if decay_rate:  # 0: the linear decay
        schedule = StaircaseDecay(peak, warmup, decay_rate, every)
    else:
        schedule = WarmupLinearDecay(peak, warmup, steps)
    moments = dict(beta_1=BETA_1, beta_2=config.beta_2, epsilon=config.epsilon)
    if config.name == "lamb":
        optimizer = Lamb(
            schedule,
            weight_decay=config.weight_decay,
            exclude_from_weight_decay=NOT_DECAYED,
            exclude_from_layer_adaptation=NOT_DECAYED,  # given in full: TFA copies the other list if this is empty
            **moments,
        )
    elif config.name == "adam":
        optimizer = Adam(schedule, **moments)
    else:
        optimizer = AdamW(schedule, weight_decay=config.weight_decay, **moments)
    optimizer.rates = dict(rates)
    return optimizer
