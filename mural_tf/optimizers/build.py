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

from mural_tf.config import ConfigurationError
from mural_tf.optimizers.rates import NOT_DECAYED, Adam, AdamW, Lamb, base_name
from mural_tf.optimizers.schedule import StaircaseDecay, WarmupLinearDecay

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
      ConfigurationError: as `check_optimizer`.
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
    """Raises `ConfigurationError` if the `optimizer` branch names what there is not, or a rate out of its range."""
    if config.name not in NAMES:
        raise ConfigurationError(f"Unknown optimizer.name {config.name!r}; known: {', '.join(NAMES)}.")
    if config.mode not in MODES:
        raise ConfigurationError(f"Unknown optimizer.mode {config.mode!r}; known: {', '.join(MODES)}.")
    if config.learning_rate <= 0:
        raise ConfigurationError(f"optimizer.learning_rate={config.learning_rate} must be above 0.")
    if config.decay_rate and not (0 < config.decay_rate <= 1 and config.decay_steps > 0):
        raise ConfigurationError(
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
