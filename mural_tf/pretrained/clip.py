"""CLIP's vision transformer (Radford et al., 2021) as image tower: Hugging Face's `CLIPModel`, or open_clip's names.

Its own text tower, which knows English, is `clip_texts.py`'s. open_clip's folders with XLM-RoBERTa as text tower,
LAION's, are `multilingual_clip.py`'s.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.pretrained.folders import (
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_WEIGHTS,
    folder_of_two_towers,
    open_clip_settings,
)
from mural_tf.pretrained.keys import check_keys, read_config, transformer_sizes
from mural_tf.pretrained.pixels import clip_pixels, configure_pixels, square
from mural_tf.pretrained.tables import (
    Row,
    as_is,
    convolution,
    kernel_and_bias,
    kernel_without_bias,
    linear,
    norm_rows,
    qkv_rows,
)
from mural_tf.pretrained.temperature import configure_scale
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}  # theirs: ours
# The names of a layer's parts in open_clip's `Transformer`.
OPEN_CLIP_LAYER = {
    "qkv/kernel": "attn.in_proj_weight",
    "qkv/bias": "attn.in_proj_bias",
    "attention_output": "attn.out_proj",
    "attention_norm": "ln_1",
    "intermediate": "mlp.c_fc",
    "output": "mlp.c_proj",
    "output_norm": "ln_2",
}
PIXEL_KEYS = {"interpolation": ("bicubic", "bilinear"), "resize_mode": ("shortest", "squash"), "mode": ("RGB",)}
PILLOW_NUMBERS = {"bilinear": 2, "bicubic": 3}  # of interpolations, as Hugging Face's `resample` has them
SWITCHED_OFF = (
    "attentional_pool no_ln_pre final_ln_after_pool qk_norm scaled_cosine_attn scale_heads scale_attn_inner scale_attn "
    "scale_fc"
).split()
# Keys of open_clip's own ViT and their supported values, which are also the defaults.
VISION_KEYS = {
    "ls_init_value": (),
    "pos_embed_type": ("learnable",),
    "pool_type": ("tok",),
    "block_type": ("default",),
    "act_kwargs": ({},),
    "norm_kwargs": ({},),
    **dict.fromkeys(SWITCHED_OFF, (False,)),
}


def layer_rows(ours: str, theirs: str, layers: int) -> list[Row]:
    """Returns the rows of a tower's layers by their names in Hugging Face's `CLIPEncoder` and `SiglipEncoder`.

    Args:
      ours: our layers are `ours_0`, `ours_1`, …
      theirs: the file's layers are `theirs.0`, `theirs.1`, …
      layers: the number of layers.
    """
    rows = []
    for number in range(layers):
        our_layer = f"{ours}_{number}"
        their_layer = f"{theirs}.{number}"
        rows += [
            *qkv_rows(our_layer, [f"{their_layer}.self_attn.{part}_proj" for part in "qkv"]),
            *kernel_and_bias(f"{our_layer}/attention_output", f"{their_layer}.self_attn.out_proj"),
            *norm_rows(f"{our_layer}/attention_norm", f"{their_layer}.layer_norm1"),
            *kernel_and_bias(f"{our_layer}/intermediate", f"{their_layer}.mlp.fc1"),
            *kernel_and_bias(f"{our_layer}/output", f"{their_layer}.mlp.fc2"),
            *norm_rows(f"{our_layer}/output_norm", f"{their_layer}.layer_norm2"),
        ]
    return rows


def hugging_face_table(tower: ConfigDict) -> list[Row]:
    """Returns the rows of an image tower, built by the configuration `tower`, by the names in `CLIPModel`."""
    vision = "vision_model"
    patches = f"{vision}.embeddings.patch_embedding.weight"
    return [
        *kernel_without_bias("patches", patches, tower.hidden_size, convolution),
        Row("patches/class_token", (f"{vision}.embeddings.class_embedding",)),
        Row("patches/position_embeddings", (f"{vision}.embeddings.position_embedding.weight",)),
        *norm_rows("pre_norm", f"{vision}.pre_layrnorm"),
        *layer_rows("block", f"{vision}.encoder.layers", tower.layers),
        *norm_rows("post_norm", f"{vision}.post_layernorm"),
        *kernel_without_bias("projection", "visual_projection.weight", tower.projection),
    ]


def open_clip_table(tower: ConfigDict) -> list[Row]:
    """Returns the rows of an image tower, built by the configuration `tower`, by open_clip's `VisionTransformer`."""
    return [
        *kernel_without_bias("patches", "visual.conv1.weight", tower.hidden_size, convolution),
        Row("patches/class_token", ("visual.class_embedding",)),
        Row("patches/position_embeddings", ("visual.positional_embedding",)),
        *norm_rows("pre_norm", "visual.ln_pre"),
        *open_clip_layers("block", "visual.transformer.resblocks", tower.layers),
        *norm_rows("post_norm", "visual.ln_post"),
        *kernel_without_bias("projection", "visual.proj", tower.projection, as_is),
    ]


def open_clip_layers(ours: str, theirs: str, layers: int, names: Mapping[str, str] = OPEN_CLIP_LAYER) -> list[Row]:
    """Returns the rows of a tower's layers whose queries, keys and values are one matrix, as open_clip has them.

    Args:
      ours, theirs, layers: as in `layer_rows`.
      names: {part of our layer: its name in theirs}.
    """
    rows = []
    for number in range(layers):
        for our_part, their_part in names.items():
            our_name = f"{ours}_{number}/{our_part}"
            their_name = f"{theirs}.{number}.{their_part}"
            if our_part.endswith("kernel"):
                rows.append(Row(our_name, (their_name,), linear))
            elif our_part.endswith("bias"):
                rows.append(Row(our_name, (their_name,)))
            elif our_part.endswith("norm"):
                rows += norm_rows(our_name, their_name)
            else:
                rows += kernel_and_bias(our_name, their_name)
    return rows


def configure(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets the image tower, the embedding's size, pixels and temperature in `config` to the CLIP in a folder.

    Raises `UserError` for another model, architecture or preprocessing.
    """
    folder = folder_of_two_towers(folder)
    if (folder / OPEN_CLIP_CONFIG).is_file():
        configure_open_clip(folder, config)
        return
    path = folder / "config.json"
    values = read_config(path, "clip")
    vision = json_field(values, "vision_config", dict, path, {})
    defaults = {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}  # of keys that a file may lack
    configure_vision(config.image_tower, {**defaults, **vision}, path, "class")
    config.embedding_size = config.image_tower.projection = json_field(values, "projection_dim", int, path, 512)
    side = config.image_tower.image_size
    configure_pixels(folder / "preprocessor_config.json", config.image_tower, side, clip_pixels(side))
    configure_scale(open_safetensors(folder), config.loss)


def configure_vision(tower: ConfigDict, vision: dict, path: pathlib.Path, pooling: str) -> None:
    """Sets a vision transformer in `tower`, the configuration's `image_tower`, by Hugging Face's `vision_config`.

    Args:
      tower: the configuration that is changed.
      vision: `vision_config`, with "patch_size", "hidden_act" and "layer_norm_eps"; other keys have defaults.
      path: its file, for messages.
      pooling: the tower's field of this name, "class" or "attention".

    Raises:
      UserError: another activation, or a value that is not a number.
    """
    values = dict(  # Hugging Face's sizes by default
        image_size=224, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    values.update(vision)
    configure_transformer(tower, values, path, "vision_config")
    tower.update(
        name="vit",
        patch_size=json_field(values, "patch_size", int, path),
        pooling=pooling,
        projection=0,
        image_size=json_field(values, "image_size", int, path),
    )


def configure_transformer(tower: ConfigDict, values: dict, path: pathlib.Path, part: str) -> None:
    """Sets the sizes, the activation and the norms' epsilon in `tower` by a part of Hugging Face's configuration.

    `values` are the part's, {key: value}; `path` and `part` name it in messages. Raises `UserError` for an activation
    that is not in `ACTIVATIONS`, and for missing sizes.
    """
    activation = values.get("hidden_act")
    if activation not in list(ACTIVATIONS):  # a list, because JSON may hold an object here, which no dictionary takes
        raise UserError(f"{path}: {part}.hidden_act is {activation!r}, expected one of {', '.join(ACTIVATIONS)}.")
    epsilon = float(json_field(values, "layer_norm_eps", float, path))
    tower.update(activation=ACTIVATIONS[activation], epsilon=epsilon, **transformer_sizes(values, path))


def configure_open_clip(folder: pathlib.Path, config: ConfigDict) -> None:
    """Sets the fields of `configure` by open_clip's folder; raises `UserError` for another image tower than its ViT."""
    model, path = open_clip_settings(folder)
    vision = json_field(model, "vision_cfg", dict, path)
    if "timm_model_name" in vision or not isinstance(vision.get("layers"), int):
        raise UserError(
            f"{path}: the image tower is {vision.get('timm_model_name', 'a ResNet')!r}, expected open_clip's own ViT "
            "or timm's SigLIP."
        )
    check_keys(vision, VISION_KEYS, path, refuses_unknown=False)
    width = json_field(vision, "width", int, path, 768)
    settings = {  # under Hugging Face's names
        "image_size": json_field(vision, "image_size", int, path, 224),
        "patch_size": json_field(vision, "patch_size", int, path, 16),
        "num_hidden_layers": vision["layers"],
        "hidden_size": width,
        "num_attention_heads": width // json_field(vision, "head_width", int, path, 64),
        "intermediate_size": int(width * float(json_field(vision, "mlp_ratio", float, path, 4.0))),
        "hidden_act": "quick_gelu" if model.get("quick_gelu") else "gelu",
        "layer_norm_eps": 1e-5,
    }
    configure_vision(config.image_tower, settings, path, "class")
    config.embedding_size = config.image_tower.projection = json_field(model, "embed_dim", int, path)
    configure_open_clip_pixels(folder, config.image_tower)
    configure_scale(open_safetensors(folder / OPEN_CLIP_WEIGHTS), config.loss)


def configure_open_clip_pixels(folder: pathlib.Path, tower: ConfigDict) -> None:
    """Sets resizing and normalisation in `tower` by open_clip's `preprocess_cfg`, for `tower.image_size` pixels.

    Raises `UserError` for another interpolation, resize mode or colour mode than `PIXEL_KEYS` lists.
    """
    path = folder / OPEN_CLIP_CONFIG
    side = tower.image_size
    preprocess = json_field(read_json(path), "preprocess_cfg", dict, path, {})
    check_keys(preprocess, PIXEL_KEYS, path, refuses_unknown=False)
    settings = clip_pixels(side)  # under Hugging Face's names
    if preprocess.get("resize_mode") == "squash":
        settings["size"] = square(side)
        settings["do_center_crop"] = False
    settings["resample"] = PILLOW_NUMBERS[preprocess.get("interpolation") or "bicubic"]
    settings["image_mean"] = preprocess.get("mean") or settings["image_mean"]
    settings["image_std"] = preprocess.get("std") or settings["image_std"]
    # `path` is for messages: open_clip's file lacks Hugging Face's keys, so all values come from `settings`.
    configure_pixels(path, tower, side, settings)


def open_weights(folder: str | pathlib.Path) -> WeightFile:
    """Opens the weights of Hugging Face's folder or open_clip's; raises `UserError` if they are missing or damaged."""
    folder = folder_of_two_towers(folder)
    if (folder / OPEN_CLIP_CONFIG).is_file():
        return open_safetensors(folder / OPEN_CLIP_WEIGHTS)
    return open_safetensors(folder)
