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
    by_tokens,
    existing_text_states,
    image_states,
    pictures_of,
    split_image_tower,
    text_states,
    texts_of,
)

FIXED = ("image", "caption", "text_a", "text_b")  # parts of a batch that are the same in every epoch


def on_features(model: DualEncoder) -> DualEncoder:
    """Returns a model on features in place of frozen towers whose states are made once, or `model` without such towers.

    It has the heads and numbers of `model`, not copies of them. Raises `UserError` for a tower that is trained, or a
    part of a batch that differs from epoch to epoch.
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
    heads = assemble(config, image_encoder, text_encoder, model.vocabulary_size)
    for name, part in model.weights_by_part().items():
        if name not in ("image_encoder", "text_encoder"):
            setattr(heads, name, part)
    heads.with_towers = model
    heads.built = True
    return heads


def columns_of(model: DualEncoder, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> dict[str, tuple]:
    """Returns {entry of a batch: (its `Column`, the entry with its ids)} of a run's model, made now or before."""
    columns = model.columns(config, tokenizer, workdir)
    for parts, states_of in zip(_frozen_parts(model.towers), (image_states, text_states)):
        if parts:
            column = states_of(model.towers, config, tokenizer, workdir)
            columns.update({part: (column, f"{part}_id") for part in parts})
    return columns


def known_texts(model: DualEncoder, config: ConfigDict, workdir: pathlib.Path) -> KnownStates | None:
    """Returns `KnownStates` of the texts that runs embedded; `None` if the text tower is trained, or no run has."""
    _, texts = _frozen_parts(model)
    if not texts:
        return None
    return existing_text_states(model, config, workdir)


def standardize_adapters(model: DualEncoder, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> None:
    """Gives new adapters the mean and deviation of the states that a run trains on; called once, before `compile`.

    An adapter of pictures that has classes gets their names' states, too.
    Raises `UserError` for an adapter over states that are not made before, and for a list of names that cannot be read.
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
        embed = by_tokens(lambda tokens: model.text_states([tokens], False)[0], tokenizer)
        names = [name.encode() for name in read_class_names(config.image_tower.class_names)]
        image_head.name_states.assign(embed(names))
        embed_class_names(model.image_encoder, text_heads[0])


def _check_cached(tower: str, cached_parts: Sequence[str]) -> None:
    """Raises `UserError` if no part of a batch has states that are made before the first step."""
    if not cached_parts:
        raise UserError(
            f"{tower}.adapter_size: a new adapter takes the mean and deviation of states that are made before: "
            f"set {tower}.frozen=True and {tower}.cached=True."
        )


def _standardize(adapters: Iterable[Adapter], column: Column, items: Items) -> None:
    """Gives adapters the mean and deviation of the items' states; the column may hold other runs' states, too."""
    ids = np.concatenate([ids for ids, _ in items])
    ids, first_rows = np.unique(ids, return_index=True)
    sample = column.sample(ids[np.argsort(first_rows)])  # each item once, in the order of the data
    for adapter in adapters:
        adapter.standardize(sample)


def _frozen_parts(model: DualEncoder) -> tuple[list[str], list[str]]:
    """Returns the entries of a batch that are pictures, and the entries that are texts, whose states are made once.

    Raises `UserError` where `cached` is set for a tower that is trained, or for an entry that is drawn anew.
    """
    if not takes_steps(type(model)):
        return [], []
    image_tower = model.configuration.image_tower
    text_tower = model.configuration.text_tower
    if text_tower.cached and (not text_tower.frozen or text_tower.name == "words"):
        raise UserError("text_tower.cached=True needs text_tower.frozen=True, and a tower other than 'words'.")
    layers = model.image_encoder.layers
    if image_tower.cached and (not layers or any(layer.trainable for layer in layers if layer.name != IMAGE_HEAD)):
        raise UserError("image_tower.cached=True needs image_tower.frozen=True, and no head but adapter_size's.")
    images = []
    texts = []
    if image_tower.cached:
        images = _fixed(model, "image_tower", model.image_parts)
    # A method that makes its targets before the first step needs no frozen tower in its steps, either.
    with_targets = model.options.get("cached", False) and text_tower.frozen and text_tower.name != "words"
    if text_tower.cached or with_targets:
        vector_parts = {embedding.part for embedding in model.used.values() if embedding.is_given}
        text_parts = [part for part in model.parts if part not in (*model.image_parts, *vector_parts)]
        texts = _fixed(model, "text_tower", text_parts)
    return images, texts


def _fixed(model: DualEncoder, tower: str, parts: Iterable[str]) -> list[str]:
    """Returns `parts` as a list; raises `UserError` for a part that differs from epoch to epoch."""
    for part in parts:
        if part not in FIXED:
            raise UserError(
                f"{tower}.cached=True: {part} of {model.configuration.model} is drawn anew in every step: set it to "
                "False."
            )
    return list(parts)
