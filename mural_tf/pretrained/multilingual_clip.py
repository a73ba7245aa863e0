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
from mural_tf.pretrained.folders import has_xlm_roberta, open_clip_settings
from mural_tf.pretrained.hugging_face_bert import configure_tower, fill
from mural_tf.pretrained.importer import TEXT, TWO_TOWERS, Importer
from mural_tf.pretrained.keys import read_config
from mural_tf.pretrained.tables import assign, assign_parts, kernel_and_bias, kernel_without_bias
from mural_tf.pretrained.temperature import scale_row
from mural_tf.pretrained.vocabularies import read_vocabulary, token_rows, vocabulary_of
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

HEAD_WIDTH = 64  # numbers of each attention head
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
    weights = open_clip_siglip.open_weights(folder)
    tower = config.text_tower
    tower.max_length = json_field(text, "context_length", int, path, 77)
    configure_by_shapes(tower, weights.below(OPEN_CLIP_TEXT), path, roberta=True)
    head_hidden_size, *_ = weights.shapes.get("text.proj.0.weight") or (0,)  # 0: the head is a single Dense
    tower.update(pooling="mean", pooler_size=0, head_hidden_size=head_hidden_size)


def configure_by_shapes(tower: ConfigDict, weights: WeightFile, path: pathlib.Path, roberta: bool) -> None:
    """Sets a BERT in `tower`, the configuration's `text_tower`, by the sizes of its arrays, `weights`.

    `weights` has the names of `BertModel`, and `path`, its configuration's file, is for messages; `roberta` says
    that it is an XLM-RoBERTa. Raises `UserError` for an array that is missing or has another rank.
    """
    _, hidden = weights.shape_of("embeddings.word_embeddings.weight", 2, "a BERT")
    intermediate_shape = weights.shape_of("encoder.layer.0.intermediate.dense.bias", 1, "a BERT")
    positions_shape = weights.shape_of("embeddings.position_embeddings.weight", 2, "a BERT")
    types_shape = weights.shape_of("embeddings.token_type_embeddings.weight", 2, "a BERT")
    values = {
        "hidden_size": hidden,
        "num_hidden_layers": weights.count(r"encoder\.layer\.\d+\.output\.dense\.bias"),
        "num_attention_heads": max(1, hidden // HEAD_WIDTH),
        "intermediate_size": intermediate_shape[0],
        "max_position_embeddings": positions_shape[0],
        "type_vocab_size": types_shape[0],
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
    }
    configure_tower(tower, values, path, roberta)


def load_open_clip(folder: str | pathlib.Path, model: Align, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills `parts` of a model built for `configure_open_clip`'s settings.

    Raises `UserError` if a name or shape does not fit.
    """
    weights = open_clip_siglip.open_weights(folder)
    hidden_size = config.text_tower.head_hidden_size
    if hidden_size:
        head = kernel_without_bias("image_text_head_hidden", "text.proj.0.weight", hidden_size)
        head += kernel_without_bias("image_text_head", "text.proj.2.weight", config.embedding_size)
    else:
        head = kernel_without_bias("image_text_head", "text.proj.weight", config.embedding_size)
    tables = {
        "image_encoder": clip.open_clip_table(config.image_tower),
        "image_text_head": head,
        "log_temperature": [scale_row()],
    }
    ignored = rf"{re.escape(OPEN_CLIP_TEXT)}.*|logit_bias"
    assign_parts(tables, model, parts, weights, ignored, "open_clip's XLM-RoBERTa CLIP")
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
    """Whether the text tower of the M-CLIP in a folder is an XLM-RoBERTa."""
    base = read_json(folder / "config.json").get("modelBase", "")
    return "roberta" in str(base).lower()


def load_m_clip(folder: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills the text tower and every text head of a model built for `configure_m_clip`'s settings.

    `parts` is not used: an M-CLIP always fills them all. Raises `UserError` if a name or shape does not fit.
    """
    folder = pathlib.Path(folder)
    weights = open_safetensors(folder)
    fill(weights.below("transformer."), model.text_encoder, config.text_tower, roberta=_is_roberta(folder))
    for name in model.head_names:
        head = model.text_head(name)
        table = kernel_and_bias(head.name, "LinearTransformation")
        assign(table, head.variables, weights, r"transformer\..*", "an M-CLIP")


def _read_vocabulary(folder: str | pathlib.Path, config: ConfigDict) -> list[str]:
    """Returns the lines of the vocabulary in open_clip's folder, and sets its use in `config.vocabulary`.

    Texts are cleaned as open_clip does it, before the tokenizer's own steps.
    """
    lines = read_vocabulary(folder, config, token_rows(open_clip_siglip.open_weights(folder)))
    config.vocabulary.cleaning = (*open_clip_siglip.cleaning(pathlib.Path(folder)), *config.vocabulary.cleaning)
    return lines


OPEN_CLIP = Importer(
    TWO_TOWERS,
    configure_open_clip,
    load_open_clip,
    _read_vocabulary,
    method="align",
    open_weights=open_clip_siglip.open_weights,
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
