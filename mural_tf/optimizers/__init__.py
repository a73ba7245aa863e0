"""Optimisers: LAMB, Adam and AdamW, with per-variable learning rates. TensorFlow Addons is imported here only."""

from mural_tf.optimizers.build import (
    WarmupLinearDecay,
    build_optimizers,
    check_optimizer,
    learning_rates,
    log_suffix,
    losses_by_optimizer,
)
from mural_tf.optimizers.rates import ConditionalGradient

__all__ = [
    "ConditionalGradient",
    "WarmupLinearDecay",
    "build_optimizers",
    "check_optimizer",
    "learning_rates",
    "log_suffix",
    "losses_by_optimizer",
]
