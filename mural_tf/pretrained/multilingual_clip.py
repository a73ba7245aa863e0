"""CLIP in many languages with BERTs as text towers: LAION's XLM-RoBERTa CLIPs in open_clip's folders, and M-CLIP.

open_clip's `HFTextEncoder` takes the mean of the tokens' states and maps it by Dense, GELU, Dense without biases
(`text_tower.head_hidden_size`), or by one Dense. M-CLIP (Carlsson et al., 2022) is only texts in the space of one of
OpenAI's or LAION's image towers: a mean, then `LinearTransformation`. Neither says the tower's sizes in its folder, so
they are the arrays' sizes; heads are 64 wide, as in every published one.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Collection

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.models.align import Align
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import clip, open_clip_siglip
from mural_tf.pretrained.folders import OPEN_CLIP_WEIGHTS, has_xlm_roberta, open_clip_settings
from mural_tf.pretrained.hugging_face_bert import configure_tower, fill
from mural_tf.pretrained.importer import TEXT, TWO_TOWERS, Importer
from mural_tf.pretrained.keys import read_config
from mural_tf.pretrained.tables import Row, assign, assign_parts, kernel_and_bias, linear, zeros_for
from mural_tf.pretrained.temperature import scale_row
from mural_tf.pretrained.vocabularies import read_vocabulary, token_rows, vocabulary_of
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

HEAD_WIDTH = 64
OPEN_CLIP_TEXT = "text.transformer."  # how the text tower's names begin in open_clip


def configure_open_clip(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets both towers, pixels, the embedding's size and temperature in `config` to the model in open_clip's folder.

    Raises `UserError` for another text tower, pooling or head.
    """
    folder = pathlib.Path(folder)
    clip.configure_open_clip(folder, config)
    model, path = open_clip_settings(folder)
    text = json_field(model, "text_cfg", dict, path)
    pooler = text.get("hf_pooler_type", text.get("pooler_type"))
    if not has_xlm_roberta(folder) or pooler != "mean_pooler":
        raise UserError(
            f"{path}: the text tower is {text.get('hf_model_name', 'CLIP')!r} with {pooler!r}: expected an XLM-RoBERTa "
            "with 'mean_pooler'; an image tower alone is imported as clip."
        )
    weights = _open_weights(folder)
    tower = config.text_tower
    tower.max_length = json_field(text, "context_length", int, path, 77)
    configure_by_shapes(tower, weights.below(OPEN_CLIP_TEXT), path, roberta=True)
    head_hidden_size, *_ = weights.shapes.get("text.proj.0.weight") or (0,)
    tower.update(pooling="mean", pooler_size=0, head_hidden_size=head_hidden_size)


def configure_by_shapes(tower: ConfigDict, weights: WeightFile, path: pathlib.Path, roberta: bool) -> None:
    """Sets the text tower to a BERT's sizes, which are its arrays' sizes."""

    def shape(name: str, rank: int) -> tuple[int, ...]:
        """Returns the shape of an array; raises `UserError` if it is missing or has another rank."""
        sizes = weights.shapes.get(name, ())
        if len(sizes) != rank:
            raise UserError(f"{weights.path} has no {name} of {rank} axes: expected the names of a BERT.")
        return sizes

    _, hidden = shape("embeddings.word_embeddings.weight", 2)
    layers = [re.fullmatch(r"encoder\.layer\.(\d+)\.output\.dense\.bias", name) for name in weights.shapes]
    values = {
        "hidden_size": hidden,
        "num_hidden_layers": sum(match is not None for match in layers),
        "num_attention_heads": max(1, hidden // HEAD_WIDTH),
        "intermediate_size": shape("encoder.layer.0.intermediate.dense.bias", 1)[0],
        "max_position_embeddings": shape("embeddings.position_embeddings.weight", 2)[0],
        "type_vocab_size": shape("embeddings.token_type_embeddings.weight", 2)[0],
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
    }
    configure_tower(tower, values, path, roberta)


def load_open_clip(folder: str | pathlib.Path, model: Align, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills `parts` of a model built for `configure_open_clip`'s settings."""
    weights = _open_weights(folder)
    size = config.embedding_size
    head = []
    last = "text.proj.weight"
    if config.text_tower.head_hidden_size:
        first = "text.proj.0.weight"
        last = "text.proj.2.weight"
        head += [
            Row("image_text_head_hidden/kernel", (first,), linear),
            zeros_for("image_text_head_hidden/bias", first, config.text_tower.head_hidden_size),
        ]
    head += [Row("image_text_head/kernel", (last,), linear), zeros_for("image_text_head/bias", last, size)]
    tables = {
        "image_encoder": clip.open_clip_table(config.image_tower),
        "image_text_head": head,
        "log_temperature": [scale_row()],
    }
    assign_parts(
        tables, model, parts, weights, rf"{re.escape(OPEN_CLIP_TEXT)}.*|logit_bias", "open_clip's XLM-RoBERTa CLIP"
    )
    if "text_encoder" in parts:
        fill(weights.below(OPEN_CLIP_TEXT), model.text_encoder, config.text_tower, roberta=True)


def configure_m_clip(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets the text tower and the embedding's size in `config` to the M-CLIP in a folder.

    Raises `UserError` for a folder of another kind.
    """
    folder = pathlib.Path(folder)
    path = folder / "config.json"
    values = read_config(path, "M-CLIP")
    weights = open_safetensors(folder)
    configure_by_shapes(config.text_tower, weights.below("transformer."), path, _is_roberta(folder))
    config.text_tower.update(pooling="mean", pooler_size=0, head_hidden_size=0)
    config.embedding_size = json_field(values, "numDims", int, path)


def _is_roberta(folder: pathlib.Path) -> bool:
    """Whether an M-CLIP's text tower is an XLM-RoBERTa."""
    base = read_json(folder / "config.json").get("modelBase", "")
    return "roberta" in str(base).lower()


def load_m_clip(folder: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills the text tower and every text head of a model built for `configure_m_clip`'s settings."""
    folder = pathlib.Path(folder)
    weights = open_safetensors(folder)
    fill(weights.below("transformer."), model.text_encoder, config.text_tower, roberta=_is_roberta(folder))
    for name in model.head_names:
        head = model.text_head(name)
        table = kernel_and_bias(head.name, "LinearTransformation")
        assign(table, head.variables, weights, r"transformer\..*", "an M-CLIP")


def _open_weights(folder: str | pathlib.Path) -> WeightFile:
    return open_safetensors(pathlib.Path(folder) / OPEN_CLIP_WEIGHTS)


def _read_vocabulary(folder: str | pathlib.Path, config: ConfigDict) -> list[str]:
    """Returns the lines of the vocabulary; texts are cleaned as open_clip does before the tokenizer's own steps."""
    lines = read_vocabulary(folder, config, token_rows(_open_weights(folder)))
    config.vocabulary.cleaning = (*open_clip_siglip.cleaning(pathlib.Path(folder)), *config.vocabulary.cleaning)
    return lines


OPEN_CLIP = Importer(
    TWO_TOWERS,
    configure_open_clip,
    load_open_clip,
    _read_vocabulary,
    method="align",
    open_weights=_open_weights,
)
M_CLIP = Importer(
    TEXT,
    configure_m_clip,
    load_m_clip,
    vocabulary_of,
    method="labse",
    open_weights=open_safetensors,
    has_own_head=lambda folder: True,
)
