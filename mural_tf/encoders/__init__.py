"""Encoders: one example in, one embedding out; a file for each tower, found by the name in the configuration."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders import towers
from mural_tf.encoders.adapters import image_adapter
from mural_tf.encoders.layers import IMAGE_HEAD, MlpHead

# A tower's function is imported when a configuration names the tower: tensorflow_hub is slow to import, for example.
IMAGE_TOWERS = {
    "efficientnet": "mural_tf.encoders.efficientnet:build_efficientnet",
    "efficientnet_lite": "mural_tf.encoders.efficientnet:build_efficientnet",
    "resnet": "mural_tf.encoders.resnet:build_resnet",
    "vit": "mural_tf.encoders.vit:build_vit",
    "naflex": "mural_tf.encoders.naflex:build_naflex",
    "hub": "mural_tf.encoders.hub:build_hub_image",
    "features": "mural_tf.encoders.towers:build_features",  # computed beforehand
    "none": "mural_tf.encoders.towers:build_no_image",  # only texts
}
TEXT_TOWERS = {
    "bert": "mural_tf.encoders.bert:build_bert",
    "modernbert": "mural_tf.encoders.modernbert:build_modernbert",
    "hub": "mural_tf.encoders.hub:build_hub_text",
    "words": "mural_tf.encoders.words:build_recurrent",
}


def settle_vocabulary(config: ConfigDict) -> None:
    """Gives a configuration, before it is stored, the vocabulary of its text tower: only TF-Hub's towers bring one."""
    if config.text_tower.name == "hub":
        pkgutil.resolve_name("mural_tf.encoders.hub:settle_vocabulary")(config)


def _without_a_file(build: Callable) -> Callable:
    """Makes the `save` of built towers refuse: Keras' fails at the first layer, because ours do not store arguments."""

    def refuse(path, *_, **__):
        raise UserError(
            f"{path}: a tower alone has no file of Keras': save the whole model, model.save('….keras'), or "
            "the tower's weights, save_weights, or SavedModels, run_export.py."
        )

    @functools.wraps(build)
    def built(*arguments, **named):
        tower = build(*arguments, **named)
        tower.save = refuse
        return tower

    return built


@_without_a_file
def build_image_encoder(config: ConfigDict) -> keras.Model:
    """Builds the image tower that `config` (the `image_tower` part of a configuration) describes.

    The model maps float32 [B, S, S, 3] RGB in [0, 1] ("features": [B, F]) to float32 [B, D], not normalised;
    `model.embedding_size` is D. Raises `UserError` for an unknown `name` or values that cannot be built.
    """
    towers.check_ranges(config, "image_tower")
    if config.adapter_size:
        return _with_adapter(config)
    if config.branch_size:
        tower_config = config.copy_and_resolve_references()
        tower_config.update(branch_size=0, projection=0)
        return towers.add_branch(build_image_encoder(tower_config), config)
    if config.name not in IMAGE_TOWERS:
        raise UserError(f"Unknown image tower {config.name!r}: expected one of {', '.join(IMAGE_TOWERS)}.")
    model = pkgutil.resolve_name(IMAGE_TOWERS[config.name])(config)
    if config.head_size:
        model = _with_head(model, config.head_size)
    return model


def _with_adapter(config: ConfigDict) -> keras.Model:
    """Returns the tower that `config` describes without a projection, under an `Adapter` to `projection` numbers."""
    if config.projection < 1 or config.head_size or config.branch_size:
        raise UserError(
            f"image_tower.adapter_size={config.adapter_size} needs image_tower.projection, the size of the embedding, "
            "and neither head_size nor branch_size."
        )
    tower_config = config.copy_and_resolve_references()
    tower_config.update(adapter_size=0, projection=0)
    tower = build_image_encoder(tower_config)
    model = keras.Model(tower.input, image_adapter(config, IMAGE_HEAD)(tower.output), name="image_encoder")
    model.embedding_size = config.projection
    return model


def _with_head(tower: keras.Model, size: int) -> keras.Model:
    """Returns the tower under Globetrotter's head, as wide as the tower's output and trained even on a frozen tower."""
    embeddings = MlpHead(tower.embedding_size, size, name=IMAGE_HEAD)(tower.output)
    model = keras.Model(tower.input, embeddings, name="image_encoder")
    model.embedding_size = size
    return model


@_without_a_file
def build_text_encoder(config: ConfigDict, vocabulary_size: int) -> keras.Model:
    """Builds the text tower that `config` (the `text_tower` part of a configuration) describes.

    The model maps a dict of int32 [B, T] `input_word_ids`, `input_mask` (1: token, 0: padding) and `input_type_ids`
    to float32 [B, D], not normalised; `model.embedding_size` is D. `vocabulary_size` counts the word pieces with the
    reserved pieces; a "hub" tower brings its own table and ignores it. Raises `UserError` for an unknown `name` or
    values that cannot be built.
    """
    towers.check_ranges(config, "text_tower")
    if config.name not in TEXT_TOWERS:
        raise UserError(f"Unknown text tower {config.name!r}: expected one of {', '.join(TEXT_TOWERS)}.")
    return pkgutil.resolve_name(TEXT_TOWERS[config.name])(config, vocabulary_size)
