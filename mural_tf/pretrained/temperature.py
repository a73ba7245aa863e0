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
    """Sets the temperature to a file's `temperature`, as ALIGN has it."""
    if "temperature" in weights.shapes:  # else `load_weights` says that it is missing
        value = float(weights.read("temperature"))
        if value <= 0:
            raise UserError(f"{weights.path}: the temperature is {value}, expected a positive number.")
        _set_temperature(loss, value)


def configure_scale(weights: WeightFile, loss: ConfigDict, name: str = "logit_scale") -> None:
    """Sets the temperature to exp(-scale), where a file holds the scale as `name`, as CLIP and SigLIP have it."""
    if name in weights.shapes:  # else `load_weights` says that it is missing
        if math.prod(weights.shapes[name]) != 1:
            raise UserError(f"{weights.path}: {name} is {list(weights.shapes[name])}, expected one number.")
        scale = float(weights.read(name).reshape([]))
        if abs(scale) > LARGEST_SCALE:
            raise UserError(f"{weights.path}: {name} is {scale:g}, expected the logarithm of a scale, such as 4.6.")
        _set_temperature(loss, math.exp(-scale))


def _set_temperature(loss: ConfigDict, value: float) -> None:
    """Sets the temperature, and widens its range so that training may keep it."""
    low, high = loss.temperature_range
    loss.temperature = value
    loss.temperature_range = (min(low, value), max(high, value))


def temperature_row() -> Row:
    """Returns the row of log τ from a file's `temperature`."""
    return Row("log_temperature", ("temperature",), _logarithm)


def scale_row(name: str = "logit_scale") -> Row:
    """Returns the row of log τ from a file's log scale, [] or [1]."""
    return Row("log_temperature", (name,), lambda scale: -scale.reshape([]))


def _logarithm(temperature: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # shapes are checked on zeros
        return np.log(temperature)
