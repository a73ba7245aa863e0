"""Optimisers: LAMB (TensorFlow Addons), Adam and AdamW, with per-variable learning rates. TFA is imported here only."""

from mural_tf.optimizers.build import WarmupLinearDecay, build_optimizers, check_optimizer

__all__ = ["WarmupLinearDecay", "build_optimizers", "check_optimizer"]
