"""States of frozen towers in a method's batches: made once, read by every step, so that a step costs what heads cost.

`image_tower.cached` and `text_tower.cached` ask for them; data/streams/states.py makes and keeps them. `model` is a
`DualEncoder`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.data.streams import states
from mural_tf.data.streams.targets import TargetTable
from mural_tf.encoders.adapters import Adapter, ClassesAdapter
from mural_tf.encoders.layers import unit_range
from mural_tf.encoders.towers import read_class_names
from mural_tf.errors import UserError
from mural_tf.models.keras_model import CONTENT_IDS


def completer(model, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> Callable[[dict], dict] | None:
    """Returns a function that adds the cached states to a global batch, on the host; `None` without cached towers."""
    tables = state_tables(model, config, tokenizer, workdir)
    if not tables:
        return None
    ids = {part: name for name, part in CONTENT_IDS.items() if part in tables and name != "text_group_id"}
    return lambda batch: {**batch, **{part: tables[part].look_up(batch[name]) for part, name in ids.items()}}


def state_tables(model, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> dict[str, TargetTable]:
    """Returns {part of a batch: its cached states by their ids}, made now or before.

    Sets the model's `known_texts` and `unusable_images`.
    """
    tables, source = {}, (config, tokenizer, workdir, model.streams)
    if model.caches_texts and model.text_parts:
        digest, width = states.digest_of(model.text_encoder.variables), model.text_encoder.embedding_size
        encode = lambda tokens: model.text_states([tokens], False)[0]  # noqa: E731
        model.known_texts = states.text_states(*source, encode, digest, width)
        tables |= dict.fromkeys(model.text_parts, model.known_texts)
    if model.caches_images and model.image_parts:
        head, width = model.image_head_and_width()
        tower = keras.Model(model.image_encoder.input, head.input) if head else model.image_encoder
        digest = states.digest_of(tower.variables)
        encode = lambda images: tower(unit_range(images), training=False)  # noqa: E731
        table, model.unusable_images = states.image_states(*source, encode, digest, width)
        tables |= dict.fromkeys(model.image_parts, table)
    return tables


def skip_known_texts(embedder, model) -> None:
    """Lets an embedder of the model look up the states of `model.known_texts`."""
    states = tf.TensorSpec([None, model.text_encoder.embedding_size])

    def project_by(head: str) -> Callable:
        return tf.function(lambda rows: model.project_texts(rows, head), [states], autograph=False)

    embedder.take_known_texts(model.known_texts, {head: project_by(head) for head in model.head_names})


def find_known_texts(model, config: ConfigDict, workdir: pathlib.Path) -> None:
    """Sets the `known_texts` of a trained model over a frozen text tower, if training left states."""
    if model.caches_texts and model.text_parts:
        width, digest = model.text_encoder.embedding_size, lambda: states.digest_of(model.text_encoder.variables)
        model.known_texts = states.made_text_states(config, workdir, digest, width)


def standardize_adapters(model, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> None:
    """Gives new adapters the mean and deviation of the states that they will see; called once, before `compile`.

    An adapter of pictures that has classes gets their names' states, too.
    Raises `UserError` for an adapter over states that are not cached, and for a list of names that cannot be read.
    """
    heads = {"image_tower": [model.image_head_and_width()[0]] if model.image_parts else []}
    heads["text_tower"] = [model.text_head(name) for name in model.head_names]
    adapters = {tower: [head for head in layers if isinstance(head, Adapter)] for tower, layers in heads.items()}
    cached = {
        "image_tower": (model.caches_images, model.image_parts),
        "text_tower": (model.caches_texts, model.text_parts),
    }
    tables = state_tables(model, config, tokenizer, workdir) if any(adapters.values()) else {}
    for tower, layers in adapters.items():
        is_cached, parts = cached[tower]
        if layers and not is_cached:
            raise UserError(
                f"{tower}.adapter_size: a new adapter takes the mean and deviation of states that are made before: "
                f"set {tower}.frozen=True and {tower}.cached=True."
            )
        for layer in layers if parts else ():
            layer.standardize(tables[parts[0]].sample())
    for head in adapters["image_tower"]:
        if isinstance(head, ClassesAdapter):
            embed = states.of_texts(lambda tokens: model.text_states([tokens], False)[0], tokenizer)
            head.name_states.assign(embed([name.encode() for name in read_class_names(config.image_tower.class_names)]))
            model.place_names()
