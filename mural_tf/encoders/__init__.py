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
    """Sets `config.vocabulary` by the module of a TF-Hub text tower, as `hub.settle_vocabulary`; else does nothing."""
    if config.text_tower.name == "hub":
        pkgutil.resolve_name("mural_tf.encoders.hub:settle_vocabulary")(config)


def _without_a_file(build: Callable) -> Callable:
    """Decorates a builder of towers: a tower's `save` then raises `UserError`, because layers store no arguments."""

    def refuse_to_save(path, *_, **__):
        raise UserError(
            f"{path}: a tower alone has no file of Keras': save the whole model, model.save('….keras'), or "
            "the tower's weights, save_weights, or SavedModels, run_export.py."
        )

    @functools.wraps(build)
    def build_without_a_file(*arguments, **options):
        tower = build(*arguments, **options)
        tower.save = refuse_to_save
        return tower

    return build_without_a_file


@_without_a_file
def build_image_encoder(config: ConfigDict) -> keras.Model:
    """Builds the image tower that `config` (the `image_tower` part of a configuration) describes.

    The model maps float32 [B, S, S, 3] RGB in [0, 1], or with `name` "features" float32 [B, F], to float32 [B, D], not
    normalised; `model.embedding_size` is D. Raises `UserError` for an unknown `name` or values that cannot be built.
    """
    towers.check_ranges(config, "image_tower")
    if config.adapter_size:
        return _with_adapter(config)
    if config.branch_size:
        return towers.add_branch(_build_changed(config, branch_size=0, projection=0), config)
    if config.name not in IMAGE_TOWERS:
        raise UserError(f"Unknown image tower {config.name!r}: expected one of {', '.join(IMAGE_TOWERS)}.")
    model = pkgutil.resolve_name(IMAGE_TOWERS[config.name])(config)
    if config.head_size:
        model = _with_head(model, config.head_size)
    return model


def _build_changed(config: ConfigDict, **fields: int) -> keras.Model:
    """Builds the image tower that `config` would describe with these values of `fields`; `config` stays as it is."""
    changed_config = config.copy_and_resolve_references()
    changed_config.update(fields)
    return build_image_encoder(changed_config)


def _with_adapter(config: ConfigDict) -> keras.Model:
    """Builds the tower of `config` with an `Adapter` on top; `UserError` without `projection` or with another head."""
    if config.projection < 1 or config.head_size or config.branch_size:
        raise UserError(
            f"image_tower.adapter_size={config.adapter_size} needs image_tower.projection, the size of the embedding, "
            "and neither head_size nor branch_size."
        )
    tower = _build_changed(config, adapter_size=0, projection=0)
    model = keras.Model(tower.input, image_adapter(config, IMAGE_HEAD)(tower.output), name="image_encoder")
    model.embedding_size = config.projection
    return model


def _with_head(tower: keras.Model, size: int) -> keras.Model:
    """Returns a tower with an `MlpHead` on top, whose output is float32 [B, size]; the head is always trained."""
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
