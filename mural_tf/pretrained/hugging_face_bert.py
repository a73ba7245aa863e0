"""Hugging Face's `BertModel`, `DistilBertModel`, `XLMRobertaModel` and LaBSE as safetensors: names, and config.json.

A `BertModel`, or the `bert.` part of a model with pretraining heads, which are left out; the TensorFlow names of
layer normalisation (gamma, beta) in old files are understood.
"""

from __future__ import annotations

import dataclasses
import pathlib
import reprlib
from collections.abc import Callable

import numpy as np
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.backend import keras
from mural_tf.encoders.bert import POOLER, TOKEN_TYPES
from mural_tf.encoders.kernels import LAYER_NORM_EPSILON
from mural_tf.pretrained.importer import Importer
from mural_tf.pretrained.keys import transformer_sizes
from mural_tf.pretrained.tables import (
    Row,
    assign,
    first_rows,
    kernel_and_bias,
    no_types,
    norm_rows,
    qkv_rows,
    rows_from,
)
from mural_tf.pretrained.vocabularies import vocabulary_of
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

# Heads of pretraining, buffers, and (where the tower lacks it) the pooler.
IGNORED = r"cls\..*|lm_head\..*|vocab_(transform|layer_norm|projector)\..*|.*position_ids|.*token_type_ids"
WITHOUT_POOLER = IGNORED + r"|pooler\..*"
DISTILBERT_KEYS = {
    "n_layers": "num_hidden_layers",
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}
ROBERTA_FIRST = 2  # the row of the first position: RoBERTa counts from the id of padding, 1, on
DENSE = "2_Dense"  # Sentence-Transformers' third module, after 0 (the BERT) and 1_Pooling


def bert_table(layers: int, max_length: int, pooler: bool, prefix: str = "", roberta: bool = False) -> list[Row]:
    """Returns the rows of a text tower by the names in `BertModel`.

    Args:
      layers: the tower's number of layers.
      max_length: the tower's length in tokens; further positions of the file are left out.
      pooler: whether the tower has a pooler.
      prefix: how all names in the file begin.
      roberta: whether the file is an XLM-RoBERTa's: the first position is in row `ROBERTA_FIRST`, and there is one
        token type.
    """
    embeddings = f"{prefix}embeddings"
    position_rows = rows_from(ROBERTA_FIRST, max_length) if roberta else first_rows(max_length)
    rows = [
        Row("embeddings/token_embeddings", (f"{embeddings}.word_embeddings.weight",)),
        Row("embeddings/position_embeddings", (f"{embeddings}.position_embeddings.weight",), position_rows),
        Row("embeddings/type_embeddings", (f"{embeddings}.token_type_embeddings.weight",), _two_types),
        *norm_rows("embeddings/layer_norm", f"{embeddings}.LayerNorm"),
    ]
    for number in range(layers):
        ours = f"layer_{number}"
        theirs = f"{prefix}encoder.layer.{number}"
        projections = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        rows += [
            *qkv_rows(ours, projections),
            *kernel_and_bias(f"{ours}/attention_output", f"{theirs}.attention.output.dense"),
            *norm_rows(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm"),
            *kernel_and_bias(f"{ours}/intermediate", f"{theirs}.intermediate.dense"),
            *kernel_and_bias(f"{ours}/output", f"{theirs}.output.dense"),
            *norm_rows(f"{ours}/output_norm", f"{theirs}.output.LayerNorm"),
        ]
    if pooler:
        rows += kernel_and_bias(POOLER, f"{prefix}pooler.dense")
    return rows


def _two_types(table: np.ndarray) -> np.ndarray:
    """The layout of token types: [2, hidden] stays; XLM-RoBERTa's [1, hidden] gets zeros as its second row."""
    if len(table) == 1:
        return np.concatenate([table, np.zeros_like(table)])
    return table


def distilbert_table(layers: int, max_length: int) -> list[Row]:
    """Returns the rows of a text tower by the names in `DistilBertModel` (Sanh et al., 2019).

    It is a BERT without token types, whose table is zeros here. Arguments are as in `bert_table`.
    """
    # {part of a name in `BertModel`: in `DistilBertModel`}, replaced in this order: "output.dense" also ends others.
    names = {
        "encoder.layer.": "transformer.layer.",
        "attention.self.query": "attention.q_lin",
        "attention.self.key": "attention.k_lin",
        "attention.self.value": "attention.v_lin",
        "attention.output.dense": "attention.out_lin",
        "attention.output.LayerNorm": "sa_layer_norm",
        "intermediate.dense": "ffn.lin1",
        "output.dense": "ffn.lin2",
        "output.LayerNorm": "output_layer_norm",
    }

    def theirs(name: str) -> str:
        for bert, distilbert in names.items():
            name = name.replace(bert, distilbert)
        return name

    rows = [
        dataclasses.replace(row, sources=tuple(map(theirs, row.sources)))
        for row in bert_table(layers, max_length, pooler=False)
    ]
    types = Row("embeddings/type_embeddings", ("embeddings.position_embeddings.weight",), no_types)
    return [types if row.variable == types.variable else row for row in rows]


def configure_tower(tower: ConfigDict, values: dict, path: str | pathlib.Path, roberta: bool = False) -> None:
    """Sets a BERT in `tower`, the configuration's `text_tower`, by a BERT's config.json.

    `max_length` and `dropout` do not change. A pooler stays, as wide as the tower. Pooling "last" or "end", which BERTs
    lack, becomes "first".

    Args:
      tower: the configuration that is changed.
      values: {key: value} of the file.
      path: the file, for messages.
      roberta: whether it is an XLM-RoBERTa's.

    Raises:
      UserError: the BERT is of another kind, or `tower.max_length` is more than its positions.
    """
    _check_architecture(values, path, roberta)
    sizes = transformer_sizes(values, path)
    epsilon = json_field(values, "layer_norm_eps", float, path, LAYER_NORM_EPSILON)
    tower.update(
        name="bert",
        **sizes,
        token_embedding_size=0,
        epsilon=float(epsilon),
        norm="after",
        activation="gelu",
        attention="masked",
    )
    if tower.pooling in ("last", "end"):  # of SigLIP's or CLIP's texts, which the tower was before
        tower.pooling = "first"
    if tower.pooler_size:
        tower.pooler_size = tower.hidden_size
    most = positions(values, path, roberta)
    if tower.max_length > most:
        raise UserError(
            f"text_tower.max_length={tower.max_length}, and the weights have {most} positions: take at most these."
        )


def _check_architecture(values: dict, path: str | pathlib.Path, roberta: bool) -> None:
    """Raises `UserError` for a BERT that this project's text tower cannot be; arguments as in `configure_tower`."""
    expected = {  # {key: its allowed values, the first for files without the key}
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute",),
        "type_vocab_size": (TOKEN_TYPES,),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "pruned_heads": ({},),
        "quantization_config": (None,),
        "auto_map": (None, {}),  # another architecture, whose code is in the folder
    }
    if roberta:
        expected["type_vocab_size"] = (TOKEN_TYPES, 1)
        expected["pad_token_id"] = (1,)  # its first position is after it
    for key, (default, *others) in expected.items():
        value = values.get(key, default)
        if value is not None and value not in (default, *others):
            raise UserError(f"{path}: {key} is {reprlib.repr(value)}, this text tower has only {default!r}.")


def positions(values: dict, path: str | pathlib.Path, roberta: bool) -> int:
    """Returns how many tokens a BERT has positions for, by its config.json; arguments as in `configure_tower`."""
    rows = json_field(values, "max_position_embeddings", int, path)
    if roberta:
        return rows - ROBERTA_FIRST
    return rows


def configure(folder: str | pathlib.Path, config: ConfigDict, length: Callable[[int], int] | None = None) -> None:
    """Sets the text tower in `config` to the BERT, DistilBERT or XLM-RoBERTa in a folder.

    Args:
      folder: a folder with config.json.
      config: the configuration that is changed.
      length: a function from the number of the weights' positions to the tower's length; without it
        `text_tower.max_length` does not change.

    Raises:
      UserError: the folder has another model.
    """
    path = pathlib.Path(folder) / "config.json"
    values = read_json(path)
    model_type = values.get("model_type", "bert")  # BERT's older files lack it
    if model_type not in ("bert", "distilbert", "xlm-roberta"):
        names = values.get("architectures")
        classes = ""
        if isinstance(names, list) and names:
            classes = f" ({', '.join(map(str, names))})"
        raise UserError(
            f"{path}: model_type is {model_type!r}{classes}, expected 'bert', 'distilbert' or 'xlm-roberta'."
        )
    if model_type == "distilbert":
        values = {DISTILBERT_KEYS.get(key, key): value for key, value in values.items()}
    roberta = model_type == "xlm-roberta"
    if length is not None:
        config.text_tower.max_length = length(positions(values, path, roberta))
    configure_tower(config.text_tower, values, path, roberta)


def load_weights(
    folder: str | pathlib.Path, encoder: keras.Model, tower: ConfigDict, pooler: bool | None = None
) -> None:
    """Fills a text tower that was built for `configure`'s settings.

    Args:
      folder: the folder of the weights.
      encoder: the text tower.
      tower: its configuration.
      pooler: whether the pooler is filled; `None`: if the tower has it.

    Raises:
      UserError: a name or shape does not fit; then nothing is changed.
    """
    roberta = read_json(pathlib.Path(folder) / "config.json").get("model_type") == "xlm-roberta"
    fill(open_safetensors(folder).renamed(_plain_name), encoder, tower, pooler, roberta)


def fill(
    weights: WeightFile, encoder: keras.Model, tower: ConfigDict, pooler: bool | None = None, roberta: bool = False
) -> None:
    """Fills a text tower from opened weights; arguments and errors that are not here are `load_weights`'.

    Args:
      weights: a file with the names of `BertModel`, `DistilBertModel` or `XLMRobertaModel`.
      roberta: whether the names are `XLMRobertaModel`'s.
    """
    if pooler is None:
        pooler = tower.pooler_size > 0
    variables = [variable for variable in encoder.variables if pooler or not variable.name.startswith(f"{POOLER}/")]
    is_distilbert = any(name.startswith("transformer.layer.") for name in weights.shapes)
    if is_distilbert:
        assign(distilbert_table(tower.layers, tower.max_length), variables, weights, IGNORED, "a DistilBERT")
        return
    table = bert_table(tower.layers, tower.max_length, pooler, roberta=roberta)
    ignored = IGNORED if pooler else WITHOUT_POOLER
    family = "an XLM-RoBERTa" if roberta else "a BERT"
    assign(table, variables, weights, ignored, family)


def _plain_name(name: str) -> str:
    """Returns a tensor's name as `BertModel` has it.

    It loses the prefix of a model with heads, and TensorFlow's names of layer normalisation become PyTorch's.
    """
    name = name.removeprefix("bert.").removeprefix("distilbert.").removeprefix("roberta.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def configure_labse(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets the text tower in `config` to the LaBSE (Feng et al., 2022) in a folder.

    LaBSE is a BERT whose sentence vector is the pooler's tanh(W [CLS] + b). Two layouts are in use: Hugging Face's
    `BertModel` with LaBSE's pooler in it, and Sentence-Transformers' folder, where the BERT is at the top, its own
    pooler is unused, and LaBSE's is the layer `2_Dense`. Raises `UserError` as `configure`, or for another activation.
    """
    configure(folder, config)
    config.text_tower.pooler_size = config.text_tower.hidden_size
    path = pathlib.Path(folder) / DENSE / "config.json"
    if path.exists():
        activation = str(read_json(path).get("activation_function", ""))
        if not activation.endswith("Tanh"):
            raise UserError(f"{path}: activation_function is {activation!r}, LaBSE's is Tanh.")


def load_labse(folder: str | pathlib.Path, encoder: keras.Model, tower: ConfigDict) -> None:
    """Fills a text tower that was built for `configure_labse`'s settings; arguments and errors as in `load_weights`."""
    load_weights(folder, encoder, tower)
    dense = pathlib.Path(folder) / DENSE
    if dense.is_dir():
        assign(
            kernel_and_bias(POOLER, "linear"),
            encoder.get_layer(POOLER).variables,
            open_safetensors(dense),
            "",
            "LaBSE's last layer",
        )


BERT = Importer(
    ("text_encoder",),
    configure,
    lambda folder, model, config, parts: load_weights(folder, model.text_encoder, config.text_tower),
    vocabulary_of,
    open_weights=open_safetensors,
)
LABSE = Importer(
    ("text_encoder",),
    configure_labse,
    lambda folder, model, config, parts: load_labse(folder, model.text_encoder, config.text_tower),
    vocabulary_of,
    open_weights=open_safetensors,
)
