"""SigLIP in open_clip's folders, Marqo's among them: `open_clip_config.json`, and timm's names of the image tower.

Sizes are the arrays' sizes; heads and activation of the image tower are what timm has under the name that the folder
says, as PyTorch computes them: mostly exact GELU, where Hugging Face takes the tanh of the same weights. Texts are
cleaned as open_clip does, but for `ftfy` and HTML's entities.
"""

from __future__ import annotations

import pathlib
import re

import numpy as np
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field
from mural_tf.pretrained import clip
from mural_tf.pretrained.keys import FREE, check_keys
from mural_tf.pretrained.tables import (
    Row,
    as_is,
    convolution,
    first_rows,
    kernel_and_bias,
    linear,
    no_types,
    norm_rows,
    only_row,
)
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

TOKENS = "text.token_embedding.weight"
CLEANING = {  # open_clip's names
    "canonicalize": ("spaces_for_underscores", "no_punctuation", "lower_unicode", "single_spaces"),
    "lower": ("lower_unicode", "single_spaces"),
    "whitespace": ("single_spaces",),
}
TRUNK, BLOCKS = "visual.trunk", "text.transformer.resblocks"
NAME = r"vit_(base|large|so400m|giantopt)_patch(\d+)_siglip_(\d+)"  # of timm, with attention pooling
HEADS = {"base": 12, "large": 16, "so400m": 16, "giantopt": 16}
WITH_TANH = r"vit_(so400m_patch16|giantopt_patch16)_.*"
# Keys that vectors depend on, with the values that are done here.
VISION_KEYS = {"timm_pool": ("map",), "timm_proj": ("none", "")}
TEXT_KEYS = {
    "pool_type": ("last",),
    "proj_type": ("linear", "none"),
    "embed_cls": (False,),
    "use_pad_mask": (False,),
    "ls_init_value": (),
    "block_type": ("default",),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn"), (False,)),
    "scale_fc": (False,),
    "tokenizer_mode": ("",),
    "hf_model_name": (),
}


def is_siglip(folder: pathlib.Path) -> bool:
    """Whether open_clip's folder holds a SigLIP: timm's tower with attention pooling, and its own text tower."""
    model, path = clip.open_clip_settings(folder)
    vision = json_field(model, "vision_cfg", dict, path, {})
    return "siglip" in str(vision.get("timm_model_name"))


def configure(folder: pathlib.Path, config: ConfigDict) -> None:
    """Sets both towers, pixels and the embedding's size in `config`; raises `UserError` for another model."""
    model, path = clip.open_clip_settings(folder)
    weights = open_weights(folder)
    vision, text = (json_field(model, name, dict, path) for name in ("vision_cfg", "text_cfg"))
    check_keys(vision, VISION_KEYS, path, all_known=False)
    check_keys(text, TEXT_KEYS, path, all_known=False)
    if text.get("no_causal_mask") is not True or text.get("pool_type") != "last":
        raise UserError(
            f"{path}: no_causal_mask and pool_type of the text tower must be true and 'last', as in SigLIP."
        )
    name = str(vision["timm_model_name"])
    named = re.fullmatch(NAME, name)
    if named is None:
        raise UserError(
            f"{path}: timm_model_name is {name!r}, expected vit_(base, large, so400m or giantopt)_…_siglip_…."
        )
    patches, wide = _shape(weights, f"{TRUNK}.patch_embed.proj.weight", 4), _wide(weights, f"{TRUNK}.blocks", "fc1")
    side = json_field(vision, "image_size", int, path, int(named[3]))
    config.image_tower.update(
        dict(
            name="vit",
            patch_size=patches[2],
            layers=_layers(weights, f"{TRUNK}.blocks"),
            hidden_size=patches[0],
            heads=HEADS[named[1]],
            feed_forward_size=wide,
            activation="gelu_tanh" if re.fullmatch(WITH_TANH, name) else "gelu",
            epsilon=1e-6,
            pooling="attention",
            projection=0,
            image_size=side,
        )
    )
    rows = _shape(weights, "text.positional_embedding", 2)
    kinds = [json_field(text, key, dict, path, {}) if text.get(key) else {} for key in ("act_kwargs", "norm_kwargs")]
    check_keys(kinds[0], {"approximate": ("none", "tanh")}, path)
    check_keys(kinds[1], {"eps": FREE}, path)
    if model.get("quick_gelu"):
        raise UserError(f"{path}: quick_gelu is true, and SigLIP's text tower takes only GELU.")
    config.text_tower.update(
        dict(
            layers=_layers(weights, BLOCKS),
            hidden_size=rows[1],
            heads=json_field(text, "heads", int, path, 8),
            feed_forward_size=_wide(weights, BLOCKS, "c_fc"),
            activation="gelu_tanh" if kinds[0].get("approximate") == "tanh" else "gelu",
            epsilon=float(json_field(kinds[1], "eps", float, path, 1e-5)),
            max_length=json_field(text, "context_length", int, path, 77),
        )
    )
    config.embedding_size = json_field(model, "embed_dim", int, path)
    clip.configure_open_clip_pixels(folder, config.image_tower)


def cleaning(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns what open_clip does to a text before its pieces; raises `UserError` for another way."""
    model, path = clip.open_clip_settings(folder)
    options = json_field(model, "text_cfg.tokenizer_kwargs", dict, path, {})
    check_keys(options, {"clean": tuple(CLEANING), "strip_sep_token": (False,), "language": ()}, path)
    return CLEANING[options.get("clean") or "whitespace"]


def open_weights(folder: pathlib.Path) -> WeightFile:
    """Opens the folder's safetensors."""
    return open_safetensors(folder / clip.OPEN_CLIP_WEIGHTS)


def table(config: ConfigDict, weights: WeightFile) -> dict[str, list[Row]]:
    """The variables of each part but the numbers, and their names."""
    pool, size = f"{TRUNK}.attn_pool", config.embedding_size
    patches, positions = f"{TRUNK}.patch_embed.proj", "text.positional_embedding"

    def side_by_side(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.concatenate([first.T, second.T], axis=-1)

    image = [
        Row("patches/kernel", (f"{patches}.weight",), convolution),
        Row("patches/bias", (f"{patches}.bias",)),
        Row("patches/position_embeddings", (f"{TRUNK}.pos_embed",), only_row),
        *norm_rows("post_norm", f"{TRUNK}.norm"),
        Row("pooling/probe", (f"{pool}.latent",)),
        Row("pooling/qkv/kernel", (f"{pool}.q.weight", f"{pool}.kv.weight"), side_by_side),
        Row("pooling/qkv/bias", (f"{pool}.q.bias", f"{pool}.kv.bias"), side_by_side),
        *kernel_and_bias("pooling/attention_output", f"{pool}.proj"),
        *norm_rows("pooling/output_norm", f"{pool}.norm"),
        *kernel_and_bias("pooling/intermediate", f"{pool}.mlp.fc1"),
        *kernel_and_bias("pooling/output", f"{pool}.mlp.fc2"),
    ]
    for i in range(config.image_tower.layers):
        block = f"{TRUNK}.blocks.{i}"
        image += _layer(
            f"block_{i}", block, "norm{}", ("attn.qkv.weight", "attn.qkv.bias", "attn.proj", "mlp.fc1", "mlp.fc2")
        )
    text = [
        Row("embeddings/token_embeddings", (TOKENS,)),
        Row("embeddings/position_embeddings", (positions,), first_rows(config.text_tower.max_length)),
        Row("embeddings/type_embeddings", (positions,), no_types),
        *norm_rows("final_norm", "text.ln_final"),
    ]
    for i in range(config.text_tower.layers):
        names = ("attn.in_proj_weight", "attn.in_proj_bias", "attn.out_proj", "mlp.c_fc", "mlp.c_proj")
        text += _layer(f"layer_{i}", f"{BLOCKS}.{i}", "ln_{}", names)
    head, projection = "image_text_head", "text.text_projection"
    if f"{projection}.weight" in weights.shapes:
        rows = kernel_and_bias(head, projection)
    else:
        eye = Row(f"{head}/kernel", (TOKENS,), lambda _: np.eye(size, dtype=np.float32))
        kernel = Row(f"{head}/kernel", (projection,), as_is) if projection in weights.shapes else eye
        rows = [kernel, clip.zeros_for(f"{head}/bias", kernel.sources[0], size)]
    return {"image_encoder": image, "text_encoder": text, head: rows}


def _layer(ours: str, theirs: str, norm: str, names: tuple[str, ...]) -> list[Row]:
    weight, bias, out, first, second = (f"{theirs}.{name}" for name in names)
    return [
        Row(f"{ours}/qkv/kernel", (weight,), linear),
        Row(f"{ours}/qkv/bias", (bias,)),
        *kernel_and_bias(f"{ours}/attention_output", out),
        *norm_rows(f"{ours}/attention_norm", f"{theirs}.{norm.format(1)}"),
        *kernel_and_bias(f"{ours}/intermediate", first),
        *kernel_and_bias(f"{ours}/output", second),
        *norm_rows(f"{ours}/output_norm", f"{theirs}.{norm.format(2)}"),
    ]


def _layers(weights: WeightFile, prefix: str) -> int:
    numbers = [re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in weights.shapes]
    return len({number[1] for number in numbers if number})


def _wide(weights: WeightFile, prefix: str, layer: str) -> int:
    return _shape(weights, f"{prefix}.0.mlp.{layer}.bias", 1)[0]


def _shape(weights: WeightFile, name: str, rank: int) -> tuple[int, ...]:
    shape = weights.shapes.get(name, ())
    if len(shape) != rank:
        raise UserError(f"{weights.path} has no {name} of {rank} axes: expected the names of open_clip's SigLIP.")
    return shape
