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
    """Copies both towers, the text heads and the learned numbers of an export into a model.

    Variables are matched by name and shape; nothing is copied unless all match. A learned number that the model card
    lacks stays. Optimiser state is not in an export.

    Args:
      model: a model that was built by the export's configuration.
      directory: the export's folder.

    Raises:
      UserError: a part of the export is missing or damaged, or belongs to another architecture or vocabulary.
    """
    directory = pathlib.Path(directory)
    pairs = _match(model.image_encoder.variables, directory / IMAGE_ENCODER)
    pairs += _match(text_variables(model), directory / TEXT_ENCODER)
    numbers = _numbers_of_card(directory / "model_card.json")
    for variable, value in pairs:
        variable.assign(value)
    for name, number in learned_numbers(model).items():
        number.assign(numbers.get(name, number))


def _numbers_of_card(path: pathlib.Path) -> dict[str, float]:
    """Returns {name: number} of a model card's "learned_numbers"; raises `UserError` for a damaged card."""
    return json_field(read_json(path), "learned_numbers", dict[str, float], path)


def _match(variables: Sequence[tf.Variable], folder: pathlib.Path) -> list[tuple[tf.Variable, tf.Tensor]]:
    """Returns [(variable, its value in a folder's TF-Hub module)] for variables of a model, matched by name.

    Raises `UserError` if the module is missing or damaged, lacks a variable, or has it in another shape.
    """
    stored = {variable.name: variable for variable in getattr(load_saved_model(folder), "variables", ())}
    pairs = []
    for variable in variables:
        stored_variable = stored.get(variable.name)
        if stored_variable is None or stored_variable.shape != variable.shape:
            problem = "is missing" if stored_variable is None else f"has shape {tuple(stored_variable.shape)}"
            raise UserError(
                f"{folder} belongs to another architecture or vocabulary: {variable.name} {problem}, expected "
                f"{tuple(variable.shape)}."
            )
        pairs.append((variable, stored_variable.read_value()))
    return pairs
