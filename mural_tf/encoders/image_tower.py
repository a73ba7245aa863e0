"""What every image tower ends in: an optional projection to another size, and the tower's settings."""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict


def finish_tower(images: tf.Tensor, embeddings: tf.Tensor, config: ConfigDict) -> tf.keras.Model:
    """Builds the tower from its Keras input, [B, S, S, 3], and the backbone's output, float32 [B, D].

    With `config.projection` a Dense layer maps the output to that size. The model's `embedding_size` is its output's;
    with `config.frozen` nothing in it is trained, and it always runs in inference mode.
    """
    if config.projection:
        embeddings = tf.keras.layers.Dense(config.projection, name="projection", dtype="float32")(embeddings)
    model = tf.keras.Model(images, embeddings, name="image_encoder")
    model.embedding_size = embeddings.shape[-1]
    model.trainable = not config.frozen
    return model
