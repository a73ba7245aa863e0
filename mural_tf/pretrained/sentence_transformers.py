"""Folders of Sentence-Transformers (Reimers and Gurevych, 2019): a BERT or DistilBERT, pooling, dense layers.

`modules.json` names the modules in their order. The first is the text tower; pooling is of the first position or the
mean; a Dense layer with tanh is the tower's pooler, one without activation becomes every text head of the model, as in
`clip-ViT-B-32-multilingual-v1`, whose texts stand in CLIP's space. Without it the heads are the identity.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Collection

import numpy as np
from ml_collections import ConfigDict

from mural_tf.encoders.bert import POOLER
from mural_tf.errors import UserError
from mural_tf.files import check_json, json_field, read_json
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import hugging_face_bert
from mural_tf.pretrained.tables import Row, assign, linear
from mural_tf.pretrained.weight_files import open_safetensors

MODULES = "modules.json"
POOLINGS = {"cls": "first", "mean": "mean"}  # theirs: ours
OLD_POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
ACTIVATIONS = ("Identity", "Tanh")


@dataclasses.dataclass(frozen=True)
class Modules:
    """What a folder's `modules.json` names: the text tower's folder, the pooling, and the Dense layers' folders."""

    tower: pathlib.Path
    pooling: str
    pooler: pathlib.Path | None
    head: pathlib.Path | None


def text_folder(folder: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder of the text tower and its tokenizer; raises `UserError` as `read_modules` does."""
    return read_modules(folder).tower


def read_modules(folder: str | pathlib.Path) -> Modules:
    """Returns the modules of a folder; raises `UserError` for any that this project does not have."""
    folder = pathlib.Path(folder)
    path = folder / MODULES
    if not path.is_file():
        raise UserError(f"{folder} has no {MODULES}: expected a folder of Sentence-Transformers.")
    try:
        rows = check_json(json.loads(path.read_text(encoding="utf-8")), list[dict], "the list of modules", path)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    kinds = [str(row.get("type")).rpartition(".")[2] for row in rows]
    # A path is one name below the folder, whatever the file says.
    places = [folder / pathlib.PurePath(str(row.get("path", ""))).name for row in rows]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= {"Dense", "Normalize"}:
        raise UserError(f"{path}: modules {', '.join(kinds)}; expected Transformer, Pooling, then Dense or Normalize.")
    dense = [place for kind, place in zip(kinds, places) if kind == "Dense"]
    activations = [_activation(place / "config.json") for place in dense]
    if activations not in ([], ["Identity"], ["Tanh"], ["Tanh", "Identity"]):
        raise UserError(
            f"{path}: Dense layers with {', '.join(activations)}; expected one with Tanh, one with Identity, or both."
        )
    by_kind = dict(zip(activations, dense))
    return Modules(places[0], _pooling(places[1] / "config.json"), by_kind.get("Tanh"), by_kind.get("Identity"))


def _pooling(path: pathlib.Path) -> str:
    values = read_json(path)
    found = [values["pooling_mode"]] if "pooling_mode" in values else []
    found = found or [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    found = [OLD_POOLINGS.get(name, name) for name in found]
    if len(found) != 1 or found[0] not in POOLINGS:
        raise UserError(f"{path}: pooling is {', '.join(map(str, found)) or 'none'}, expected cls or mean.")
    return POOLINGS[found[0]]


def _activation(path: pathlib.Path) -> str:
    name = json_field(read_json(path), "activation_function", str, path, "Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise UserError(f"{path}: activation_function is {name!r}, expected {' or '.join(ACTIVATIONS)}.")
    return name


def configure(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets the text tower, its length and the embedding's size in `config` to what a folder says.

    Raises `UserError` for modules or a tower of another kind.
    """
    modules, tower = read_modules(folder), config.text_tower
    path = modules.tower / "sentence_bert_config.json"
    if path.is_file():
        tower.max_length = json_field(read_json(path), "max_seq_length", int, path, tower.max_length)
    hugging_face_bert.configure(modules.tower, config)
    tower.pooling, tower.pooler = modules.pooling, modules.pooler is not None
    config.embedding_size = tower.hidden_size
    if modules.head is not None:
        path = modules.head / "config.json"
        config.embedding_size = json_field(read_json(path), "out_features", int, path)


def load(folder: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills the text tower, and the text heads among `parts`, of a model built for `configure`'s settings."""
    modules = read_modules(folder)
    hugging_face_bert.load(modules.tower, model.text_encoder, config.text_tower, pooler=False)
    if modules.pooler is not None:
        _fill(model.text_encoder.get_layer(POOLER), modules.pooler)
    for name in model.head_names:
        if f"{name}_head" not in parts:
            continue
        head = model.text_head(name)
        if modules.head is not None:
            _fill(head, modules.head)
        else:
            fill_identity(head)


def fill_identity(head) -> None:
    """Makes a Dense head pass its input on."""
    head.kernel.assign(np.eye(*head.kernel.shape, dtype=np.float32))
    head.bias.assign(np.zeros(head.bias.shape, np.float32))


def _fill(layer, folder: pathlib.Path) -> None:
    weights, name = open_safetensors(folder), layer.name
    if "linear.bias" in weights.shapes:
        bias = Row(f"{name}/bias", ("linear.bias",))
    else:
        bias = Row(f"{name}/bias", ("linear.weight",), lambda weight: np.zeros_like(weight[:, 0]))
    table = [Row(f"{name}/kernel", ("linear.weight",), linear), bias]
    assign(table, layer.variables, weights, "", "a Dense layer")
