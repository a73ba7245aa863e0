"""Google's BERT checkpoints: `bert_model.ckpt` of TensorFlow 1 (google-research/bert) and 2 (tensorflow/models).

A folder of either holds bert_config.json and vocab.txt too. The TensorFlow 2 layout is that of the checkpoints that
google-research/bert and tensorflow/models offer for download: the encoder's layers counted in order, heads apart in
every attention kernel. Google's code computes GELU by its tanh approximation, this tower (like Hugging Face's) exactly.
"""

from __future__ import annotations

import pathlib
import re

import numpy as np
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.encoders.bert import POOLER
from mural_tf.errors import UserError
from mural_tf.files import read_json
from mural_tf.pretrained.hugging_face_bert import configure_tower
from mural_tf.pretrained.tables import Row, as_is, assign, first_rows, side_by_side
from mural_tf.pretrained.weight_files import WeightFile, open_tensorflow_checkpoint

CONFIG = "bert_config.json"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the keys of TensorFlow 2
IGNORED_1 = r"cls/.*|global_step|.*/adam_[mv]|.*/Adam.*|.*LAMB.*|bert/pooler/.*"
IGNORED_2 = (
    r"_CHECKPOINTABLE_OBJECT_GRAPH|save_counter.*|global_step.*|optimizer.*|.*/\.OPTIMIZER_SLOT/.*|"
    r"(.*/)?layer_with_weights-{pooler}/.*"
)


def flat_kernel(*kernels: np.ndarray) -> np.ndarray:
    """Kernels [in, heads, size] -> one [in, sum of heads * size]."""
    return side_by_side(*(kernel.reshape(kernel.shape[0], -1) for kernel in kernels))


def flat_bias(*biases: np.ndarray) -> np.ndarray:
    """Biases [heads, size] -> one [sum of heads * size]."""
    return side_by_side(*(bias.reshape(-1) for bias in biases))


def flat_output_kernel(kernel: np.ndarray) -> np.ndarray:
    """A kernel [heads, size, out] -> [heads * size, out]."""
    return kernel.reshape(-1, kernel.shape[-1])


def table_1(layers: int, max_length: int, pooler: bool) -> list[Row]:
    """The text tower's variables and their names in TensorFlow 1."""

    def dense(ours: str, theirs: str) -> list[Row]:
        return [Row(f"{ours}/{end}", (f"bert/{theirs}/{end}",)) for end in ("kernel", "bias")]

    def norm(ours: str, theirs: str) -> list[Row]:
        return [Row(f"{ours}/{end}", (f"bert/{theirs}/LayerNorm/{end}",)) for end in ("gamma", "beta")]

    rows = [
        Row("embeddings/token_embeddings", ("bert/embeddings/word_embeddings",)),
        Row("embeddings/position_embeddings", ("bert/embeddings/position_embeddings",), first_rows(max_length)),
        Row("embeddings/type_embeddings", ("bert/embeddings/token_type_embeddings",)),
        *norm("embeddings/layer_norm", "embeddings"),
    ]
    for i in range(layers):
        layer = f"encoder/layer_{i}"
        for end in ("kernel", "bias"):
            parts = tuple(f"bert/{layer}/attention/self/{part}/{end}" for part in ("query", "key", "value"))
            rows.append(Row(f"layer_{i}/qkv/{end}", parts, side_by_side))
        rows += [
            *dense(f"layer_{i}/attention_output", f"{layer}/attention/output/dense"),
            *norm(f"layer_{i}/attention_norm", f"{layer}/attention/output"),
            *dense(f"layer_{i}/intermediate", f"{layer}/intermediate/dense"),
            *dense(f"layer_{i}/output", f"{layer}/output/dense"),
            *norm(f"layer_{i}/output_norm", f"{layer}/output"),
        ]
    return rows + (dense(POOLER, "pooler/dense") if pooler else [])


def table_2(layers: int, max_length: int, pooler: bool, root: str, attention_output: str) -> list[Row]:
    """The text tower's variables and their keys in TensorFlow 2.

    Layers 0 to 3 embed, one for each table and one that normalises; then come BERT's layers, then the pooler. The
    attention's output layer is a part of the attention or, in the earliest checkpoints, stands beside it.
    """

    def key(layer: int, *path: str) -> tuple[str]:
        return ("/".join((f"{root}layer_with_weights-{layer}", *path)) + VALUE,)

    def dense(ours: str, layer: int, *path: str, kernel=as_is) -> list[Row]:
        layouts = {"kernel": kernel, "bias": as_is}
        return [Row(f"{ours}/{end}", key(layer, *path, end), layout) for end, layout in layouts.items()]

    def norm(ours: str, layer: int, *path: str) -> list[Row]:
        return [Row(f"{ours}/{end}", key(layer, *path, end)) for end in ("gamma", "beta")]

    rows = [
        Row("embeddings/token_embeddings", key(0, "embeddings")),
        Row("embeddings/position_embeddings", key(1, "embeddings"), first_rows(max_length)),
        Row("embeddings/type_embeddings", key(2, "embeddings")),
        *norm("embeddings/layer_norm", 3),
    ]
    for i in range(layers):
        layer = i + 4
        for end, layout in (("kernel", flat_kernel), ("bias", flat_bias)):
            parts = [key(layer, "_attention_layer", f"_{part}_dense", end)[0] for part in ("query", "key", "value")]
            rows.append(Row(f"layer_{i}/qkv/{end}", tuple(parts), layout))
        rows += [
            *dense(f"layer_{i}/attention_output", layer, *attention_output.split("/"), kernel=flat_output_kernel),
            *norm(f"layer_{i}/attention_norm", layer, "_attention_layer_norm"),
            *dense(f"layer_{i}/intermediate", layer, "_intermediate_dense"),
            *dense(f"layer_{i}/output", layer, "_output_dense"),
            *norm(f"layer_{i}/output_norm", layer, "_output_layer_norm"),
        ]
    return rows + (dense(POOLER, layers + 4) if pooler else [])


def configure(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets the text tower in `config` to the BERT in a folder with bert_config.json."""
    path = pathlib.Path(folder) / CONFIG
    configure_tower(config.text_tower, read_json(path), path)


def open_weights(folder: str | pathlib.Path) -> WeightFile:
    """Opens the one checkpoint of a folder; raises `UserError` if there is not one, or it is damaged."""
    return open_tensorflow_checkpoint(_prefix(pathlib.Path(folder)))


def load(folder: str | pathlib.Path, encoder: keras.Model, tower: ConfigDict) -> None:
    """Fills a text tower that was built for `configure`'s settings."""
    weights = open_weights(folder)
    settings = (tower.layers, tower.max_length, tower.pooler)
    roots = [re.fullmatch(rf"(.*/)?layer_with_weights-0/embeddings{re.escape(VALUE)}", name) for name in weights.shapes]
    found = next((match for match in roots if match), None)
    if found is None:
        ignored = IGNORED_1.replace(r"|bert/pooler/.*", "") if tower.pooler else IGNORED_1
        assign(table_1(*settings), encoder.variables, weights, ignored, "a BERT")
        return
    table = table_2(*settings, root=found.group(1) or "", attention_output=_attention_output(weights))
    assign(table, encoder.variables, weights, IGNORED_2.format(pooler=tower.layers + 4), "a BERT")


def _attention_output(weights: WeightFile) -> str:
    earliest = any("/_attention_output_dense/" in name for name in weights.shapes)
    return "_attention_output_dense" if earliest else "_attention_layer/_output_dense"


def _prefix(folder: pathlib.Path) -> pathlib.Path:
    """The one checkpoint of a folder."""
    found = sorted(path.with_suffix("") for path in folder.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{folder}: expected one checkpoint (NAME.index, NAME.data-…), found {names}.")
    return found[0]
