"""Heads on frozen towers: a run trains a model of towers `features`, with the heads of the model that has the towers.

`image_tower.cached` and `text_tower.cached` ask for it. The states that a frozen tower gives of pictures and texts are
a column of vectors (`states.py`), made once, so that a step costs only its heads. Both models share heads and
numbers, which one trains for the other, and checkpoints, evaluation and export are of the model with its towers.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.data.streams.columns import Column
from mural_tf.encoders.adapters import Adapter, ClassesAdapter, embed_class_names
from mural_tf.encoders.layers import IMAGE_HEAD
from mural_tf.encoders.towers import feature_input, read_class_names
from mural_tf.models import assemble, takes_steps
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.models.states import (
    Items,
    KnownStates,
    existing_text_states,
    image_states,
    pictures_of,
    split_image_tower,
    text_states,
    texts_of,
    texts_to_states,
)

FIXED = ("image", "caption", "text_a", "text_b")  # parts of a batch that are the same in every epoch


def on_features(model: DualEncoder) -> DualEncoder:
    """Returns a model of the heads of `model`, which takes the stored states of frozen towers in place of their inputs.

    It shares heads and learned numbers with `model`. If no tower's states are stored, it is `model` itself. Raises
    `UserError` where the configuration asks for states of a trained tower, or of items that differ between epochs.
    """
    images, texts = _frozen_parts(model)
    if not images and not texts:
        return model
    config = model.configuration.copy_and_resolve_references()
    image_encoder = model.image_encoder
    text_encoder = model.text_encoder
    if images:
        tower, head = split_image_tower(image_encoder)
        features = feature_input(tower.output_shape[-1])
        image_encoder = features
        if head is not None:
            image_encoder = keras.Model(features.input, head(features.output))
        config.image_tower.update(name="features", feature_size=features.embedding_size)
    if texts:
        text_encoder = feature_input(text_encoder.embedding_size)
        config.text_tower.name = "features"
    head_model = assemble(config, image_encoder, text_encoder, model.vocabulary_size)
    for name, part in model.weights_by_part().items():
        if name not in ("image_encoder", "text_encoder"):
            setattr(head_model, name, part)  # the new model's own parts have no variables yet
    head_model.with_towers = model
    head_model.built = True
    return head_model


def columns_of(model: DualEncoder, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> dict[str, tuple]:
    """Returns {entry of a batch: (its `Column` of vectors, the entry with its ids)} of targets and frozen states.

    It first makes and stores the vectors that no earlier run has stored. Arguments are as in `DualEncoder.columns`.
    """
    columns = model.columns(config, tokenizer, workdir)
    for parts, states_of in zip(_frozen_parts(model.towers), (image_states, text_states)):
        if parts:
            column = states_of(model.towers, config, tokenizer, workdir)
            columns.update({part: (column, f"{part}_id") for part in parts})
    return columns


def known_texts(model: DualEncoder, config: ConfigDict, workdir: pathlib.Path) -> KnownStates | None:
    """Returns `KnownStates` of the texts whose states runs have stored; `None` if the model uses no stored states."""
    _, texts = _frozen_parts(model)
    if not texts:
        return None
    return existing_text_states(model, config, workdir)


def standardize_adapters(model: DualEncoder, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> None:
    """Gives each adapter of `model` the mean and deviation of the frozen states that a run trains on.

    The states are made and stored, see `states.py`, where no earlier run has stored them. A `ClassesAdapter` also gets
    the states and vectors of its classes' names. Call it once, before `compile`.
    Raises `UserError` for an adapter of a tower that is not `cached`, and for class names that cannot be read.
    """
    _, image_head = split_image_tower(model.image_encoder)
    text_heads = [model.text_head(name) for name in model.head_names]
    images, texts = _frozen_parts(model)
    text_adapters = [head for head in text_heads if isinstance(head, Adapter)]
    if text_adapters and model.text_parts:
        _check_cached("text_tower", texts)
        column = text_states(model, config, tokenizer, workdir)
        _standardize(text_adapters, column, texts_of(model, config, tokenizer))
    if isinstance(image_head, Adapter) and model.image_parts:
        _check_cached("image_tower", images)
        column = image_states(model, config, tokenizer, workdir)
        _standardize([image_head], column, pictures_of(model, config, tokenizer))
    if isinstance(image_head, ClassesAdapter):
        names = [name.encode() for name in read_class_names(config.image_tower.class_names)]
        to_states = texts_to_states(model, config, tokenizer)
        image_head.name_states.assign(to_states(names))
        embed_class_names(model.image_encoder, text_heads[0])


def _check_cached(tower: str, cached_parts: Sequence[str]) -> None:
    """Raises `UserError` if `cached_parts`, the entries of a batch that have states of `tower`, is empty."""
    if not cached_parts:
        raise UserError(
            f"{tower}.adapter_size: a new adapter takes the mean and deviation of states that are made before: "
            f"set {tower}.frozen=True and {tower}.cached=True."
        )


def _standardize(adapters: Iterable[Adapter], column: Column, items: Items) -> None:
    """Gives adapters the mean and deviation of the states of `items` in a column, which may hold more states."""
    ids = np.concatenate([ids for ids, _ in items])
    ids, first_rows = np.unique(ids, return_index=True)  # sorted by id
    sample = column.sample(ids[np.argsort(first_rows)])  # each item once, in the order of the data
    for adapter in adapters:
        adapter.standardize(sample)


def _frozen_parts(model: DualEncoder) -> tuple[list[str], list[str]]:
    """Returns the image entries of a batch whose states are made once, and the text entries.

    Raises `UserError` where `cached` is set for a tower that is trained, or for an entry that is drawn anew.
    """
    if not takes_steps(type(model)):
        return [], []
    image_tower = model.configuration.image_tower
    text_tower = model.configuration.text_tower
    is_fixed_text_tower = text_tower.frozen and text_tower.name != "words"
    if text_tower.cached and not is_fixed_text_tower:
        raise UserError("text_tower.cached=True needs text_tower.frozen=True, and a tower other than 'words'.")
    images = []
    texts = []
    if image_tower.cached:
        _check_frozen(model.image_encoder)
        images = list(model.image_parts)
        _check_fixed(model, "image_tower", images)
    # A method that makes its targets before the first step needs no frozen tower in its steps, either.
    makes_targets = model.options.get("cached", False)
    if text_tower.cached or (makes_targets and is_fixed_text_tower):
        vector_parts = {embedding.part for embedding in model.used.values() if embedding.is_given}
        texts = [part for part in model.parts if part not in (*model.image_parts, *vector_parts)]
        _check_fixed(model, "text_tower", texts)
    return images, texts


def _check_frozen(image_encoder: keras.Model) -> None:
    """Raises `UserError` for an image tower without layers, or with a trained layer below its head."""
    layers = image_encoder.layers
    if not layers or any(layer.trainable for layer in layers if layer.name != IMAGE_HEAD):
        raise UserError("image_tower.cached=True needs image_tower.frozen=True, and no head but adapter_size's.")


def _check_fixed(model: DualEncoder, tower: str, parts: Iterable[str]) -> None:
    """Raises `UserError` for an entry of a batch that differs from epoch to epoch."""
    for part in parts:
        if part not in FIXED:
            raise UserError(
                f"{tower}.cached=True: {part} of {model.configuration.model} is drawn anew in every step: set it to "
                "False."
            )
