"""mexma-siglip2: MEXMA's text tower, an XLM-RoBERTa large, in the space of SigLIP 2's So400m pictures.

The text's first state, one linear layer to the pictures' size, then SigLIP's two learned numbers. The model's class is
code in its own repository, which is not run and was not read: so only the names inside the towers, which are
transformers' `XLMRobertaModel` and `SiglipVisionModel`, are taken as known. Names before them are found in the
file, which must hold these two towers, one linear layer and the two numbers, and nothing else.

The towers' sizes are their arrays' sizes; heads are as `text_config` and `vision_config` of config.json say, else 64
wide in texts, and 16 in pictures, as So400m has them.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Collection

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import siglip
from mural_tf.pretrained.clip import configure_vision
from mural_tf.pretrained.hugging_face_bert import fill
from mural_tf.pretrained.importer import TWO_TOWERS, Importer
from mural_tf.pretrained.multilingual_clip import configure_by_shapes
from mural_tf.pretrained.pixels import configure_pixels, siglip_pixels
from mural_tf.pretrained.tables import assign_parts, kernel_and_bias, kernel_without_bias
from mural_tf.pretrained.temperature import configure_scale, scale_row
from mural_tf.pretrained.tokenizer_files import max_length
from mural_tf.pretrained.vocabularies import read_vocabulary, token_rows
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

HEADS = 16  # of So400m's pictures
MOST_TOKENS = 512  # of a text, where tokenizer_config.json says no fewer
# How names begin, in `open_weights`.
VISION = "vision_model."
TEXT = "text_model."
HEAD = "projector."
NUMBERS = ("logit_scale", "logit_bias")
PATCHES = "embeddings.patch_embedding.weight"
TOKENS = "embeddings.word_embeddings.weight"


def open_weights(folder: str | pathlib.Path) -> WeightFile:
    """Opens a folder's weights, with names that begin with `VISION`, `TEXT` and `HEAD`, and `NUMBERS`.

    Raises `UserError` for a file that holds anything else.
    """
    weights = open_safetensors(folder)
    names = set(weights.shapes)
    vision = [name.removesuffix(PATCHES) for name in names if name.endswith(PATCHES)]
    text = [name.removesuffix(TOKENS) for name in names if name.endswith(TOKENS)]
    others = sorted(name for name in names if not name.startswith((*vision, *text)) and name not in NUMBERS)
    ends = sorted(name.rpartition(".")[2] for name in others)
    stems = {name.rpartition(".")[0] for name in others}
    is_known = len(vision) == len(text) == len(stems) == 1 and ends in (["weight"], ["bias", "weight"])
    # An empty prefix would begin every name. The last of the others is the layer's ".weight", a matrix.
    if not is_known or "" in (*vision, *text, *stems) or len(weights.shapes[others[-1]]) != 2:
        further = ", ".join(others[:5]) or "-"
        raise UserError(
            f"{weights.path} holds {len(vision)} towers of pictures, {len(text)} of texts, and besides {further}: "
            "expected a SiglipVisionModel, an XLMRobertaModel, one linear layer, logit_scale and logit_bias, as "
            "mexma-siglip2 has them."
        )
    (vision_prefix,) = vision
    (text_prefix,) = text
    (layer_name,) = stems
    prefixes = {vision_prefix: VISION, text_prefix: TEXT, f"{layer_name}.": HEAD}

    def rename(name: str) -> str:
        for theirs, ours in prefixes.items():
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name

    return weights.renamed(rename)


def configure(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets both towers, pixels, length, the embedding's size, temperature and bias in `config` to a folder's model.

    Raises `UserError` for another model.
    """
    folder = pathlib.Path(folder)
    path = folder / "config.json"
    values = read_json(path)
    weights = open_weights(folder)
    tower = config.text_tower
    positions = weights.shapes.get(f"{TEXT}embeddings.position_embeddings.weight", (2,))[0] - 2  # see `ROBERTA_FIRST`
    tower.max_length = min(max_length(folder) or MOST_TOKENS, MOST_TOKENS, positions)
    configure_by_shapes(tower, weights.below(TEXT), path, roberta=True)
    tower.update(pooling="first", pooler_size=0, head_hidden_size=0)
    text = json_field(values, "text_config", dict, path, {})
    tower.heads = json_field(text, "num_attention_heads", int, path, tower.heads)
    _configure_vision(config.image_tower, weights, values, path)
    config.embedding_size = config.image_tower.hidden_size
    configure_scale(weights, config.loss)
    siglip.configure_bias(weights, config, "logit_bias")
    side = config.image_tower.image_size
    configure_pixels(folder / "preprocessor_config.json", config.image_tower, side, siglip_pixels(side))


def _configure_vision(tower: ConfigDict, weights: WeightFile, values: dict, path: pathlib.Path) -> None:
    """Sets a SigLIP of the arrays' sizes in `tower`; `values` are from the config.json at `path`.

    Raises `UserError` for missing arrays, or arrays of another rank.
    """
    vision = json_field(values, "vision_config", dict, path, {})
    weights = weights.below(VISION)
    names = (PATCHES, "embeddings.position_embedding.weight", "encoder.layers.0.mlp.fc1.weight")
    patches_shape, positions_shape, intermediate_shape = (weights.shapes.get(name, ()) for name in names)
    if len(patches_shape) != 4 or len(positions_shape) != 2 or len(intermediate_shape) != 2:
        raise UserError(f"{weights.path}: {', '.join(names)} are not the names and axes of a SiglipVisionModel.")
    hidden_size, _, _, patch_size = patches_shape
    intermediate_size, _ = intermediate_shape
    position_count, _ = positions_shape
    settings = {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": weights.count(r"encoder\.layers\.\d+\.mlp\.fc1\.weight"),
        "num_attention_heads": json_field(vision, "num_attention_heads", int, path, HEADS),
        "patch_size": patch_size,
        "image_size": json_field(vision, "image_size", int, path, round(position_count**0.5) * patch_size),
        "hidden_act": vision.get("hidden_act", "gelu_pytorch_tanh"),
        "layer_norm_eps": json_field(vision, "layer_norm_eps", float, path, 1e-6),
    }
    configure_vision(tower, settings, path, "attention")


def load_weights(folder: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills `parts` of a model built for `configure`'s settings; raises `UserError` if a name or shape does not fit."""
    weights = open_weights(folder)
    if f"{HEAD}bias" in weights.shapes:
        head = kernel_and_bias("image_text_head", HEAD.removesuffix("."))
    else:
        head = kernel_without_bias("image_text_head", f"{HEAD}weight", config.embedding_size)
    siglip_table = siglip.hugging_face_table(config)
    tables = {
        "image_encoder": siglip_table["image_encoder"],
        "image_text_head": head,
        "log_temperature": [scale_row()],
        "bias": siglip_table["bias"],
    }
    assign_parts(tables, model, parts, weights, rf"{re.escape(TEXT)}.*|.*position_ids", "a mexma-siglip2")
    if "text_encoder" in parts:
        fill(weights.below(TEXT), model.text_encoder, config.text_tower, roberta=True)


def _read_vocabulary(folder: str | pathlib.Path, config: ConfigDict) -> list[str]:
    """Returns `read_vocabulary` of a folder, for as many rows as its weights have."""
    return read_vocabulary(folder, config, token_rows(open_weights(folder)))


IMPORTER = Importer(
    (*TWO_TOWERS, "bias"), configure, load_weights, _read_vocabulary, method="siglip", open_weights=open_weights
)
