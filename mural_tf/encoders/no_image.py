"""The place of the image tower in a model of texts alone: no weights, and the zero vector for every image.

So that one kind of model serves all methods: a text-only model trains, resumes, exports and embeds texts as the
others do. Its image embeddings say nothing, and evaluations of images leave it out.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError


def build_no_image(config: ConfigDict) -> tf.keras.Model:
    """Builds float32 [B, S, S, 3] -> zeros, float32 [B, projection], without variables.

    Raises `ConfigurationError` if `image_tower.projection`, which must be the embedding size, is not set.
    """
    if config.projection <= 0:
        raise ConfigurationError(
            f"image_tower.name=none with image_tower.projection={config.projection}: set it to embedding_size."
        )
    images = tf.keras.Input(shape=(None, None, 3), name="images", dtype=tf.float32)
    model = tf.keras.Model(images, ZeroVector(config.projection, name="zeros")(images), name="image_encoder")
    model.embedding_size = config.projection
    return model


class ZeroVector(tf.keras.layers.Layer):
    """float32 [B, ...] -> zeros [B, size]."""

    def __init__(self, size: int, **options):
        super().__init__(dtype="float32", **options)
        self.size = size

    def call(self, x):
        return tf.zeros([tf.shape(x)[0], self.size])
