"""The learned temperature τ, by which cosines of images and texts are divided: [MURAL] §3.1, as in ALIGN."""

from __future__ import annotations

import math

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.models.dual_encoder import DualEncoder


class LearnedTemperature(DualEncoder):
    """Base of methods with a temperature τ by which cosines of images and texts are divided, learned or fixed."""

    def __init__(self, image_encoder: keras.Model, text_encoder: keras.Model, config: ConfigDict, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        bounds = tuple(config.loss.temperature_range)
        initial = config.loss.temperature
        are_positive = all(0 < value < math.inf for value in (*bounds, initial))
        if len(bounds) != 2 or not are_positive or bounds[0] > bounds[1]:
            raise UserError(
                f"loss.temperature={initial} and loss.temperature_range={bounds}: expected numbers above 0, the "
                "range's the smaller and the larger one."
            )
        low, high = map(math.log, bounds)
        self.log_temperature = self.add_weight(  # log τ keeps τ positive; the constraint keeps it in its range
            name="log_temperature",
            shape=(),
            initializer=keras.initializers.Constant(math.log(initial)),
            constraint=lambda value: tf.clip_by_value(value, low, high),
            trainable=True,
        )

    @property
    def temperature(self) -> tf.Tensor:
        """The learned temperature, a scalar within `loss.temperature_range`."""
        return tf.exp(self.log_temperature)

    def state_logs(self):
        return {**super().state_logs(), "temperature": self.temperature}

    def weights_by_part(self):
        return {**super().weights_by_part(), "log_temperature": self.log_temperature}
