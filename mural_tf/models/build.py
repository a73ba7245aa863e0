"""A configured method with its towers: the file that knows methods and encoders, so that neither knows the other."""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.config_file import parse_config
from mural_lite.errors import UserError
from mural_tf.encoders import build_image_encoder, build_text_encoder
from mural_tf.models import assemble, complete
from mural_tf.models.dual_encoder import DualEncoder


def build_model(config: ConfigDict, vocabulary_size: int) -> DualEncoder:
    """Returns the model of a configuration: its method with both towers and all variables.

    Args:
      config: the whole tree; fields of its method may be missing.
      vocabulary_size: word pieces of the text tower.

    Raises:
      UserError: towers or fields that do not fit the method, or a model that does not fit into memory.
    """
    config = complete(config)
    try:
        image_encoder = build_image_encoder(config.image_tower)
        text_encoder = build_text_encoder(config.text_tower, vocabulary_size)
        model = assemble(config, image_encoder, text_encoder, vocabulary_size)
        model.builder = f"{__name__}:model_of_file"  # `KerasModel.from_config` calls it by this name
        model.build_variables()
    except tf.errors.ResourceExhaustedError:
        raise UserError(
            "The model of this configuration does not fit into memory: --dry_run lists what it needs, of which "
            "--config.train.micro_batches=K changes only the activations."
        ) from None
    return model


def model_of_file(configuration: dict, vocabulary_size: int) -> DualEncoder:
    """Returns the model of a `.keras` file, by the configuration that `KerasModel.get_config` wrote, with new weights.

    Raises `UserError` for a damaged configuration.
    """
    return build_model(parse_config(configuration, "The model's file"), vocabulary_size)
