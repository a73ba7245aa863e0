"""The precision an export computes in, whatever training chose.

Training takes what is fast on its machine (`encoders/precision.py`), bfloat16 on TPUs; those who serve have another
machine. bfloat16 is slow on most CPUs and rounds embeddings to three digits, so float32 is exported unless asked.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.models import ContrastiveModel, build_model

PRECISIONS = ("float32", "mixed_bfloat16")


def in_precision(
    model: ContrastiveModel, config: ConfigDict, vocabulary_size: int, precision: str = "float32"
) -> ContrastiveModel:
    """Returns `model` if both towers compute in `precision`, else a new model that does, with the same weights.

    A TF-Hub tower keeps the precision it was made with. Raises `ConfigurationError` for an unknown precision.
    """
    if precision not in PRECISIONS:
        raise ConfigurationError(f"Unknown precision {precision!r} of an export: expected {' or '.join(PRECISIONS)}.")
    config, differs = config.copy_and_resolve_references(), False
    for tower, encoder in ((config.image_tower, model.image_encoder), (config.text_tower, model.text_encoder)):
        if tower.name != "hub":
            differs = differs or computes_in_bfloat16(encoder) != (precision == "mixed_bfloat16")
            tower.precision = precision
    if not differs:
        return model
    copy = build_model(config, vocabulary_size)
    targets = copy.weights_by_part()
    for name, part in model.weights_by_part().items():
        for variable, value in zip(_variables(targets[name]), _variables(part)):
            variable.assign(value)
    return copy


def computes_in_bfloat16(tower: tf.keras.Model) -> bool:
    """Tells whether any layer does."""
    return any(layer.compute_dtype == "bfloat16" for layer in tower.layers)


def _variables(part: tf.Module | tf.Variable) -> list[tf.Variable]:
    return list(part.variables) if hasattr(part, "variables") else [part]
