"""SigLIP in open_clip's folders, Marqo's among them: `open_clip_config.json`, and timm's names of the image tower.

Sizes are the arrays' sizes; heads and activation of the image tower are what timm has under the name that the folder
says, as PyTorch computes them: mostly exact GELU, where Hugging Face takes the tanh of the same weights. Texts are
cleaned as open_clip does, but for `ftfy` and HTML's entities.
"""

from __future__ import annotations

import pathlib
import re

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field
from mural_tf.pretrained import clip
from mural_tf.pretrained.folders import OPEN_CLIP_WEIGHTS, open_clip_settings
from mural_tf.pretrained.keys import FREE, check_keys, object_or_empty
from mural_tf.pretrained.tables import (
    Row,
    as_is,
    convolution,
    first_rows,
    identity_head,
    kernel_and_bias,
    kernel_without_bias,
    no_types,
    norm_rows,
    only_row,
    qkv_rows,
)
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

SIGLIP = "open_clip's SigLIP"
TOKENS = "text.token_embedding.weight"
FTFY = ("plain_characters", "composed")  # before every text of open_clip
CLEANING = {  # open_clip's names
    "canonicalize": (*FTFY, "spaces_for_underscores", "no_punctuation", "lower_unicode", "single_spaces"),
    "lower": (*FTFY, "lower_unicode", "single_spaces"),
    "whitespace": (*FTFY, "single_spaces"),
}
TRUNK = "visual.trunk"
BLOCKS = "text.transformer.resblocks"
TIMM_LAYER = {  # as `clip.OPEN_CLIP_LAYER`
    "qkv/kernel": "attn.qkv.weight",
    "qkv/bias": "attn.qkv.bias",
    "attention_output": "attn.proj",
    "attention_norm": "norm1",
    "intermediate": "mlp.fc1",
    "output": "mlp.fc2",
    "output_norm": "norm2",
}
OPTIONS = ("act_kwargs", "norm_kwargs")  # of the text tower's activation and norms
NAME = r"vit_(base|large|so400m|giantopt)_patch(\d+)_siglip_(\d+)"  # timm's names of towers with attention pooling
HEADS = {"base": 12, "large": 16, "so400m": 16, "giantopt": 16}
WITH_TANH = r"vit_(so400m_patch16|giantopt_patch16)_.*"  # towers for which timm takes the tanh of GELU
# Keys that vectors depend on, with the values that are done here.
VISION_KEYS = {"timm_pool": ("map",), "timm_proj": ("none", "")}
TEXT_KEYS = {
    "pool_type": ("last",),
    "proj_type": ("linear", "none"),
    "ls_init_value": (),
    "block_type": ("default",),
    **dict.fromkeys(("embed_cls", "use_pad_mask", "qk_norm", "scaled_cosine_attn"), (False,)),
    **dict.fromkeys(("scale_heads", "scale_attn_inner", "scale_attn", "scale_fc"), (False,)),
    "tokenizer_mode": ("",),
    "hf_model_name": (),
}


def configure(folder: pathlib.Path, config: ConfigDict) -> None:
    """Sets both towers, pixels and the embedding's size in `config` to the SigLIP in open_clip's folder.

    Raises `UserError` for another model.
    """
    model, path = open_clip_settings(folder)
    weights = open_weights(folder)
    vision, text = (json_field(model, name, dict, path) for name in ("vision_cfg", "text_cfg"))
    check_keys(vision, VISION_KEYS, path, refuses_unknown=False)
    check_keys(text, TEXT_KEYS, path, refuses_unknown=False)
    if text.get("no_causal_mask") is not True or text.get("pool_type") != "last":
        raise UserError(
            f"{path}: no_causal_mask and pool_type of the text tower must be true and 'last', as in SigLIP."
        )
    _configure_image_tower(vision, path, weights, config.image_tower)
    if model.get("quick_gelu"):
        raise UserError(f"{path}: quick_gelu is true, and SigLIP's text tower takes only GELU.")
    _configure_text_tower(text, path, weights, config.text_tower)
    config.embedding_size = json_field(model, "embed_dim", int, path)
    clip.configure_open_clip_pixels(folder, config.image_tower)


def _configure_image_tower(vision: dict, path: pathlib.Path, weights: WeightFile, tower: ConfigDict) -> None:
    """Sets a vision transformer in `tower` by `vision_cfg` of the file at `path`, and by the arrays' shapes.

    Heads, activation and the pictures' size follow from timm's name of the tower. Raises `UserError` for other names.
    """
    name = str(vision["timm_model_name"])
    match = re.fullmatch(NAME, name)
    if match is None:
        raise UserError(
            f"{path}: timm_model_name is {name!r}, expected vit_(base, large, so400m or giantopt)_…_siglip_…."
        )
    size_name, _, image_size = match.groups()
    width, _, patch_height, _ = weights.shape_of(f"{TRUNK}.patch_embed.proj.weight", 4, SIGLIP)
    tower.update(
        name="vit",
        patch_size=patch_height,
        layers=_count_layers(weights, f"{TRUNK}.blocks"),
        hidden_size=width,
        heads=HEADS[size_name],
        feed_forward_size=_feed_forward_size(weights, f"{TRUNK}.blocks", "fc1"),
        activation="gelu_tanh" if re.fullmatch(WITH_TANH, name) else "gelu",
        epsilon=1e-6,
        pooling="attention",
        projection=0,
        image_size=json_field(vision, "image_size", int, path, int(image_size)),
    )


def _configure_text_tower(text: dict, path: pathlib.Path, weights: WeightFile, tower: ConfigDict) -> None:
    """Sets the transformer in `tower` by `text_cfg` of the file at `path`, and by the arrays' shapes.

    Raises `UserError` for an option of activation or norms that is not supported.
    """
    _, width = weights.shape_of("text.positional_embedding", 2, SIGLIP)
    activation, norm = (object_or_empty(text, key, path) for key in OPTIONS)
    check_keys(activation, {"approximate": ("none", "tanh")}, path)
    check_keys(norm, {"eps": FREE}, path)
    tower.update(
        layers=_count_layers(weights, BLOCKS),
        hidden_size=width,
        heads=json_field(text, "heads", int, path, 8),
        feed_forward_size=_feed_forward_size(weights, BLOCKS, "c_fc"),
        activation="gelu_tanh" if activation.get("approximate") == "tanh" else "gelu",
        epsilon=float(json_field(norm, "eps", float, path, 1e-5)),
        max_length=json_field(text, "context_length", int, path, 77),
    )


def cleaning(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the steps of `config.vocabulary.cleaning` by which open_clip cleans the texts of a folder's model.

    Raises `UserError` for a way of cleaning that is not supported.
    """
    model, path = open_clip_settings(folder)
    options = json_field(model, "text_cfg.tokenizer_kwargs", dict, path, {})
    check_keys(options, {"clean": tuple(CLEANING), "strip_sep_token": (False,), "language": ()}, path)
    return CLEANING[options.get("clean") or "whitespace"]


def open_weights(folder: str | pathlib.Path) -> WeightFile:
    """Opens the weights in open_clip's folder; raises `UserError` if they are missing or damaged."""
    return open_safetensors(pathlib.Path(folder) / OPEN_CLIP_WEIGHTS)


def table(config: ConfigDict, weights: WeightFile) -> dict[str, list[Row]]:
    """Returns {part of a model: its rows} for both towers and the head, by timm's and open_clip's names.

    `config` is the whole configuration that the model was built by.
    """
    pool = f"{TRUNK}.attn_pool"
    patches = f"{TRUNK}.patch_embed.proj"
    positions = "text.positional_embedding"
    image_rows = [
        Row("patches/kernel", (f"{patches}.weight",), convolution),
        Row("patches/bias", (f"{patches}.bias",)),
        Row("patches/position_embeddings", (f"{TRUNK}.pos_embed",), only_row),
        *norm_rows("post_norm", f"{TRUNK}.norm"),
        Row("pooling/probe", (f"{pool}.latent",)),
        *qkv_rows("pooling", [f"{pool}.q", f"{pool}.kv"]),
        *kernel_and_bias("pooling/attention_output", f"{pool}.proj"),
        *norm_rows("pooling/output_norm", f"{pool}.norm"),
        *kernel_and_bias("pooling/intermediate", f"{pool}.mlp.fc1"),
        *kernel_and_bias("pooling/output", f"{pool}.mlp.fc2"),
        *clip.open_clip_layers("block", f"{TRUNK}.blocks", config.image_tower.layers, TIMM_LAYER),
    ]
    text_rows = [
        Row("embeddings/token_embeddings", (TOKENS,)),
        Row("embeddings/position_embeddings", (positions,), first_rows(config.text_tower.max_length)),
        Row("embeddings/type_embeddings", (positions,), no_types),
        *clip.open_clip_layers("layer", BLOCKS, config.text_tower.layers),
        *norm_rows("final_norm", "text.ln_final"),
    ]
    return {"image_encoder": image_rows, "text_encoder": text_rows, "image_text_head": _head(config, weights)}


def _head(config: ConfigDict, weights: WeightFile) -> list[Row]:
    """Returns the head's rows: a layer with or without bias, or the identity where the file has no projection."""
    head = "image_text_head"
    projection = "text.text_projection"
    if f"{projection}.weight" in weights.shapes:
        return kernel_and_bias(head, projection)
    if projection in weights.shapes:
        return kernel_without_bias(head, projection, config.embedding_size, as_is)
    return identity_head(head, TOKENS, config.embedding_size)


def _count_layers(weights: WeightFile, prefix: str) -> int:
    """Returns the number of layers, by the numbers behind `prefix` in names like "visual.trunk.blocks.11.norm1"."""
    matches = [re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in weights.shapes]
    return len({match[1] for match in matches if match})


def _feed_forward_size(weights: WeightFile, prefix: str, layer: str) -> int:
    """Returns the width of feed-forward layers, by the bias of the first one, `prefix.0.mlp.layer`."""
    return weights.shape_of(f"{prefix}.0.mlp.{layer}.bias", 1, SIGLIP)[0]
