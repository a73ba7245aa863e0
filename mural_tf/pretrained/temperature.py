"""The temperature of imported weights, in the configuration and as a variable: their file holds it, or a log scale."""

from __future__ import annotations

import math

import numpy as np
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.pretrained.tables import Row
from mural_tf.pretrained.weight_files import WeightFile

LARGEST_SCALE = 20  # of the logarithm; CLIP's is 4.6


def configure_temperature(weights: WeightFile, loss: ConfigDict) -> None:
    """Sets the temperature in `loss`, a branch of the configuration, to a file's `temperature`, as ALIGN has it.

    Its range widens to hold it. Raises `UserError` if it is not positive.
    """
    if "temperature" in weights.shapes:  # else `load_weights` says that it is missing
        temperature = float(weights.read("temperature"))
        if temperature <= 0:
            raise UserError(f"{weights.path}: the temperature is {temperature}, expected a positive number.")
        _set_temperature(loss, temperature)


def configure_scale(weights: WeightFile, loss: ConfigDict, name: str = "logit_scale") -> None:
    """Sets the temperature in `loss`, a branch of the configuration, to exp(-scale), as CLIP and SigLIP have it.

    The scale is the file's number `name`; the temperature's range widens to hold it. Raises `UserError` if the scale
    is not one number, or larger than `LARGEST_SCALE`.
    """
    if name in weights.shapes:  # else `load_weights` says that it is missing
        if math.prod(weights.shapes[name]) != 1:
            raise UserError(f"{weights.path}: {name} is {list(weights.shapes[name])}, expected one number.")
        scale = float(weights.read(name).reshape([]))
        if abs(scale) > LARGEST_SCALE:
            raise UserError(f"{weights.path}: {name} is {scale:g}, expected the logarithm of a scale, such as 4.6.")
        _set_temperature(loss, math.exp(-scale))


def _set_temperature(loss: ConfigDict, temperature: float) -> None:
    """Sets the temperature in `loss`, and widens its range so that training may keep it."""
    low, high = loss.temperature_range
    loss.temperature = temperature
    loss.temperature_range = (min(low, temperature), max(high, temperature))


def temperature_row() -> Row:
    """Returns the row of log τ from a file's `temperature`."""
    return Row("log_temperature", ("temperature",), _logarithm)


def scale_row(name: str = "logit_scale") -> Row:
    """Returns the row of log τ from the logarithm of a scale, the file's number `name`, [] or [1]: τ = 1 / scale."""
    return Row("log_temperature", (name,), lambda scale: -scale.reshape([]))


def _logarithm(temperature: np.ndarray) -> np.ndarray:
    """The layout of log τ from τ."""
    with np.errstate(divide="ignore"):  # shapes are checked on zeros
        return np.log(temperature)
