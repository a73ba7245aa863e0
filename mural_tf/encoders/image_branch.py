"""The image branch of EmbN and MULE: two layers on features that are frozen, trained, or computed beforehand.

[MULE] (Kim et al., 2020), figure 2, after Wang et al. (2019): features (2048 of ResNet-152) → Dense 2048, BatchNorm,
ReLU → Dense 512.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.encoders.batch_norm import BatchNormalization


def feature_input(config: ConfigDict) -> tf.keras.Model:
    """Returns the tower that computes nothing, float32 [B, F] → [B, F]: images arrive as `data.features` made them."""
    if config.feature_size < 1:
        raise ConfigurationError("image_tower.name='features' needs image_tower.feature_size, how many numbers an "
                                 "image has.")  # fmt: skip
    features = tf.keras.Input(shape=(config.feature_size,), name="features", dtype=tf.float32)
    return tf.keras.Model(features, tf.keras.layers.Layer(name="given", dtype="float32")(features))


def add_branch(tower: tf.keras.Model, config: ConfigDict) -> tf.keras.Model:
    """Puts the branch on a tower that gives features [B, F]: the same inputs → float32 [B, `projection`].

    The branch trains even where the tower is frozen. It computes in float32.
    """
    if config.projection < 1:
        raise ConfigurationError(f"image_tower.branch_size={config.branch_size} needs image_tower.projection, the "
                                 "size of the embedding.")  # fmt: skip
    x = tf.keras.layers.Dense(config.branch_size, name="branch_hidden", dtype="float32")(tower.output)
    # [B, 1, 1, C], as images have: one BatchNorm for all towers.
    x = tf.keras.layers.Reshape((1, 1, config.branch_size), name="branch_columns", dtype="float32")(x)
    x = BatchNormalization(
        config.batch_norm_group, momentum=config.batch_norm_momentum, name="branch_bn", dtype="float32"
    )(x)
    x = tf.keras.layers.Reshape((config.branch_size,), name="branch_rows", dtype="float32")(x)
    x = tf.keras.layers.ReLU(name="branch_activation", dtype="float32")(x)
    x = tf.keras.layers.Dense(config.projection, name="branch_projection", dtype="float32")(x)
    model = tf.keras.Model(tower.input, x, name="image_encoder")
    model.embedding_size = config.projection
    return model
