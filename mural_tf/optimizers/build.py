"""From configuration to optimisers, in both readings of MURAL's two learning rates ([P] §3.2).

joint (default): one optimiser over Eq. 1's weighted loss; everything the image-text task reaches has the image-text
rate 1e-3, the text-text head alone has 1e-4. The task weights keep their meaning.
per_task: one optimiser a task, each with its own slots, schedule and gradient; both update the shared text tower.
LAMB hardly depends on the scale of the gradient, so the task weights then matter little.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.errors import UserError
from mural_tf.optimizers.rates import NOT_DECAYED, Adam, AdamW, Lamb, base_name

# Learning rates over steps: MURAL's linear warm-up and decay, MULE's decay by epochs.


class WarmupLinearDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from zero, then linear decay to zero, [P] §3.2 (10k and 600k steps).

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


class StaircaseDecay(tf.keras.optimizers.schedules.LearningRateSchedule):
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


NAMES = ("lamb", "adam", "adamw")
MODES = ("joint", "per_task")


def build_optimizers(
    config: ConfigDict, steps: int, variables: Mapping[str, list[tf.Variable]]
) -> dict[str, tf.keras.optimizers.legacy.Optimizer]:
    """Returns {"joint": optimiser} or {"image_text": …, "text_text": …}.

    Args:
      config: the tree's `optimizer` branch.
      steps: where the schedules reach zero.
      variables: the model's variables by group: "image_tower", "text_tower", "text_text_head"; others have rate 1.

    Raises:
      UserError: as `check_optimizer`.
    """
    check_optimizer(config)
    tower_rates = {
        base_name(variable): rate
        for group, rate in (("image_tower", config.image_tower_rate), ("text_tower", config.text_tower_rate))
        for variable in variables.get(group, ())
    }
    if config.mode == "per_task":
        return {
            "image_text": _optimizer(config, config.learning_rate, steps, tower_rates),
            "text_text": _optimizer(config, config.text_text_learning_rate, steps, tower_rates),
        }
    head_rate = config.text_text_learning_rate / config.learning_rate
    rates = {**tower_rates, **{base_name(v): head_rate for v in variables.get("text_text_head", ())}}
    return {"joint": _optimizer(config, config.learning_rate, steps, rates)}


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
