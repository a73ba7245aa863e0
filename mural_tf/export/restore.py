"""Weights of an export, from its TF-Hub modules and its model card, in a model that trains further."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import tensorflow as tf

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.encoders.saved_models import load_saved_model
from mural_tf.export.hub_modules import IMAGE_ENCODER, TEXT_ENCODER, learned_numbers
from mural_tf.export.signatures import text_variables
from mural_tf.models.dual_encoder import DualEncoder


def restore_from_export(model: DualEncoder, directory: str | pathlib.Path) -> None:
    """Copies both towers, the text heads and the learned numbers of an export into a `model` of its configuration.

    Variables are matched by name and shape; nothing is copied unless all match. Optimiser state is not in an export.
    Raises `UserError` if a part is missing or damaged, or belongs to another architecture or vocabulary.
    """
    directory = pathlib.Path(directory)
    pairs = _matched(model.image_encoder.variables, directory / IMAGE_ENCODER)
    pairs += _matched(text_variables(model), directory / TEXT_ENCODER)
    numbers = _numbers_of_card(directory / "model_card.json")
    for variable, value in pairs:
        variable.assign(value)
    for name, number in learned_numbers(model).items():
        number.assign(numbers.get(name, number))


def _numbers_of_card(path: pathlib.Path) -> dict[str, float]:
    return json_field(read_json(path), "learned_numbers", dict[str, float], path)


def _matched(variables: Sequence[tf.Variable], folder: pathlib.Path) -> list[tuple[tf.Variable, tf.Tensor]]:
    """Returns [(variable, its value in the module)]; raises `UserError` for a missing or misshaped variable."""
    theirs = {variable.name: variable for variable in getattr(load_saved_model(folder), "variables", ())}
    pairs = []
    for variable in variables:
        other = theirs.get(variable.name)
        if other is None or other.shape != variable.shape:
            shape = "is missing" if other is None else f"has shape {tuple(other.shape)}"
            raise UserError(
                f"{folder} belongs to another architecture or vocabulary: {variable.name} {shape}, expected "
                f"{tuple(variable.shape)}."
            )
        pairs.append((variable, other.read_value()))
    return pairs
