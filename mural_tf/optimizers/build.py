"""Learning rates over steps, and from configuration to optimisers, in both readings of [MURAL] §3.2's two rates.

joint (default): one optimiser over Eq. 1's weighted loss; everything the image-text task reaches has the image-text
rate 1e-3, the text-text head alone has 1e-4. The task weights keep their meaning.
per_task: one optimiser for each task, with its own slots, schedule and gradient; both update the shared text tower.
LAMB hardly depends on the scale of the gradient, so the task weights then matter little.

Which of the two it is, no other file needs to know: optimisers come as {name: optimiser}, and the functions below say
what each of them minimises and how its numbers are called in logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.errors import UserError
from mural_tf.optimizers.rates import NOT_DECAYED, Adam, AdamW, Lamb, base_name

NAMES = ("lamb", "adam", "adamw")
JOINT, PER_TASK = MODES = ("joint", "per_task")


class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from zero, then linear decay to zero, [MURAL] §3.2 (10k and 600k steps).

    rate(s) = peak · s / warmup for s < warmup, then peak · (steps - s) / (steps - warmup), 0 from `steps` on.

    The optimisers count steps from 0. The rate is taken at s + 1 during warm-up, so that the first step is not
    lost to a zero rate (our choice; the paper's ramp starts at zero).
    """

    def __init__(self, peak: float, warmup_steps: int, steps: int):
        if not 0 <= warmup_steps < steps:
            raise ValueError(f"warmup_steps must be in [0, steps), got warmup_steps={warmup_steps}, steps={steps}.")
        self.peak, self.warmup_steps, self.steps = peak, warmup_steps, steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = (step + 1.0) / max(self.warmup_steps, 1)
        falling = (self.steps - step) / (self.steps - self.warmup_steps)
        return self.peak * tf.clip_by_value(tf.minimum(rising, falling), 0.0, 1.0)

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "steps": self.steps}


class StaircaseDecay(keras.optimizers.schedules.LearningRateSchedule):
    """rate(s) = peak · rate^(s // every), after a linear warm-up over the first `warmup_steps` as above."""

    def __init__(self, peak: float, warmup_steps: int, decay_rate: float, every: int):
        if not 0.0 < decay_rate <= 1.0 or every < 1:
            raise ValueError(f"decay_rate must be in (0, 1] and every at least 1, got {decay_rate} and {every}.")
        self.peak, self.warmup_steps, self.decay_rate, self.every = peak, warmup_steps, decay_rate, every

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
    """Returns {"joint": optimiser}, or of {"image_text": …, "text_text": …} those whose task there is.

    Args:
      config: the tree's `optimizer` branch.
      steps: where the schedules reach zero.
      variables: the model's variables by group: "image_tower", "text_tower", "text_text_head"; others have rate 1.
      tasks: those of the method that are on.

    Raises:
      UserError: as `check_optimizer`, or `per_task` with a further task.
    """
    check_optimizer(config)
    tower_rates = {
        base_name(variable): rate
        for group, rate in (("image_tower", config.image_tower_rate), ("text_tower", config.text_tower_rate))
        for variable in variables.get(group, ())
    }
    if config.mode == PER_TASK:
        peaks = {"image_text": config.learning_rate, "text_text": config.text_text_learning_rate}
        if set(tasks) - set(peaks):
            raise UserError(
                f"optimizer.mode=per_task has an optimiser for {' and '.join(peaks)}, and this method also has "
                f"{', '.join(sorted(set(tasks) - set(peaks)))}: use joint."
            )
        return {task: _optimizer(config, peak, steps, tower_rates) for task, peak in peaks.items() if task in tasks}
    head_rate = config.text_text_learning_rate / config.learning_rate
    rates = {**tower_rates, **{base_name(v): head_rate for v in variables.get("text_text_head", ())}}
    return {JOINT: _optimizer(config, config.learning_rate, steps, rates)}


def losses_by_optimizer(losses: Mapping[str, tf.Tensor], optimizers: Iterable[str]) -> dict[str, tf.Tensor]:
    """Returns what each optimiser minimises, {name: scalar}, of the weighted losses {task: scalar}."""
    return {JOINT: tf.add_n(list(losses.values()))} if JOINT in optimizers else dict(losses)


def log_suffix(optimizer: str) -> str:
    """Returns what the names of an optimiser's numbers end in: "" where there is one."""
    return "" if optimizer == JOINT else f"_{optimizer}"


def learning_rates(optimizers: Mapping[str, keras.optimizers.legacy.Optimizer]) -> dict[str, float]:
    """Returns the present rate of each optimiser, {name in logs: rate}."""
    return {
        f"learning_rate{log_suffix(name)}": float(optimizer.learning_rate(optimizer.iterations))
        for name, optimizer in optimizers.items()
    }


def check_optimizer(config: ConfigDict) -> None:
    """Raises `UserError` if the `optimizer` branch names what there is not, or a rate out of its range."""
    if config.name not in NAMES:
        raise UserError(f"Unknown optimizer.name {config.name!r}; known: {', '.join(NAMES)}.")
    if config.mode not in MODES:
        raise UserError(f"Unknown optimizer.mode {config.mode!r}; known: {', '.join(MODES)}.")
    if config.learning_rate <= 0:
        raise UserError(f"optimizer.learning_rate={config.learning_rate} must be above 0.")
    if config.decay_rate and not (0 < config.decay_rate <= 1 and config.decay_steps > 0):
        raise UserError(
            f"optimizer.decay_rate={config.decay_rate} must be in (0, 1], with optimizer.decay_steps="
            f"{config.decay_steps} of 1 or more."
        )


def _optimizer(config: ConfigDict, peak: float, steps: int, rates: Mapping[str, float]):
    warmup = min(config.warmup_steps, steps - 1)
    if config.decay_rate:
        schedule = StaircaseDecay(peak, warmup, config.decay_rate, config.decay_steps)
    else:
        schedule = WarmupLinearDecay(peak, warmup, steps)
    moments = dict(beta_1=config.beta_1, beta_2=config.beta_2, epsilon=config.epsilon)
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
