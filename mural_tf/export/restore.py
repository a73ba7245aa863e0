"""Takes the weights out of an export again, to fine-tune from it."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence

import tensorflow as tf

from mural_tf.config import ConfigurationError
from mural_tf.export.hub_modules import IMAGE_ENCODER, TEXT_ENCODER, text_variables
from mural_tf.models.contrastive import ContrastiveModel


def restore_from_export(model: ContrastiveModel, directory: str | pathlib.Path) -> None:
    """Copies both towers, the text heads and the temperature of an export into `model`, a model of its configuration.

    Variables are matched by name and shape; nothing is copied unless all match. Optimiser state is not in an export.
    Raises `ConfigurationError` if a part is missing or damaged, or belongs to another architecture or vocabulary.
    """
    directory = pathlib.Path(directory)
    pairs = _matched(model.image_encoder.variables, directory / IMAGE_ENCODER)
    pairs += _matched(text_variables(model), directory / TEXT_ENCODER)
    try:
        temperature = float(json.loads((directory / "model_card.json").read_text(encoding="utf-8"))["temperature"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{directory}/model_card.json cannot be read ({error}).") from None
    for variable, value in pairs:
        variable.assign(value)
    model.log_temperature.assign(math.log(temperature))


def _matched(variables: Sequence[tf.Variable], folder: pathlib.Path) -> list[tuple[tf.Variable, tf.Tensor]]:
    try:
        found = {variable.name: variable for variable in tf.saved_model.load(str(folder)).variables}
    except (OSError, AttributeError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"{folder} is not a module of an export or is damaged: {reason}") from None
    pairs = []
    for variable in variables:
        other = found.get(variable.name)
        if other is None or other.shape != variable.shape:
            shape = "is missing" if other is None else f"has shape {tuple(other.shape)}"
            raise ConfigurationError(
                f"{folder} belongs to another architecture or vocabulary: {variable.name} {shape}, expected "
                f"{tuple(variable.shape)}."
            )
        pairs.append((variable, other.read_value()))
    return pairs
