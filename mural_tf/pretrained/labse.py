"""LaBSE (Feng et al., 2022) as safetensors: a BERT whose sentence vector is the pooler's tanh(W [CLS] + b).

Two layouts are in use: Hugging Face's `BertModel` with LaBSE's pooler in it, and Sentence-Transformers' folder, where
the BERT stands at the top, its own pooler is unused, and LaBSE's is the layer `2_Dense`.
"""

from __future__ import annotations

import pathlib

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.encoders.bert import POOLER
from mural_tf.errors import UserError
from mural_tf.pretrained import hugging_face_bert
from mural_tf.pretrained.tables import Row, assign, linear
from mural_tf.pretrained.weight_files import open_safetensors, read_json

DENSE = "2_Dense"  # Sentence-Transformers' third module, after 0 (the BERT) and 1_Pooling


def configure(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets the text tower in `config` to the LaBSE in a folder."""
    hugging_face_bert.configure(folder, config)
    config.text_tower.pooler = True
    path = pathlib.Path(folder) / DENSE / "config.json"
    if path.exists():
        activation = str(read_json(path).get("activation_function", ""))
        if not activation.endswith("Tanh"):
            raise UserError(f"{path}: activation_function is {activation!r}, LaBSE's is Tanh.")


def load(folder: str | pathlib.Path, encoder: tf.keras.Model, tower: ConfigDict) -> None:
    """Fills a text tower that was built for `configure`'s settings."""
    hugging_face_bert.load(folder, encoder, tower)
    dense = pathlib.Path(folder) / DENSE
    if dense.is_dir():
        table = [Row(f"{POOLER}/kernel", ("linear.weight",), linear), Row(f"{POOLER}/bias", ("linear.bias",))]
        assign(table, encoder.get_layer(POOLER).variables, open_safetensors(dense), "", "LaBSE's last layer")
