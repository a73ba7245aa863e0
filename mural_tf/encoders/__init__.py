"""Encoders: one example in, one embedding out. `build_image_encoder` and `build_text_encoder` pick one by name."""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.encoders import bert, efficientnet

IMAGE_TOWERS = ("efficientnet", "hub")
TEXT_TOWERS = ("bert", "hub")


def build_image_encoder(config: ConfigDict) -> tf.keras.Model:
    """Builds the image tower that `config` (the `image_tower` part of a configuration) describes.

    The model maps float32 [B, S, S, 3] RGB in [0, 1] to float32 [B, D], not normalised; `model.embedding_size` is D.
    Raises `ConfigurationError` for an unknown `name` or values that cannot be built.
    """
    if config.name == "efficientnet":
        return efficientnet.build_efficientnet(config)
    if config.name == "hub":
        from mural_tf.encoders import hub_image  # tensorflow_hub is slow to import and rarely needed

        return hub_image.build_hub_image(config)
    raise ConfigurationError(f"Unknown image tower {config.name!r}: expected one of {', '.join(IMAGE_TOWERS)}.")


def build_text_encoder(config: ConfigDict, vocabulary_size: int) -> tf.keras.Model:
    """Builds the text tower that `config` (the `text_tower` part of a configuration) describes.

    The model maps a dict of int32 [B, T] `input_word_ids`, `input_mask` (1: token, 0: padding) and `input_type_ids`
    to float32 [B, D], not normalised; `model.embedding_size` is D. `vocabulary_size` counts the word pieces with the
    reserved ones; a "hub" tower brings its own table and ignores it.
    Raises `ConfigurationError` for an unknown `name` or values that cannot be built.
    """
    if config.name == "bert":
        return bert.build_bert(config, vocabulary_size)
    if config.name == "hub":
        from mural_tf.encoders import hub_text  # tensorflow_hub is slow to import and rarely needed

        return hub_text.build_hub_text(config)
    raise ConfigurationError(f"Unknown text tower {config.name!r}: expected one of {', '.join(TEXT_TOWERS)}.")
