"""SigLIP 2 NaFlex, Hugging Face's `Siglip2Model`, and FG-CLIP 2 (Xie et al., 2025), which has the same two towers.

As SigLIP, but for the pictures, which keep their shape: patches of any number of rows and columns, and a square grid
of positions that is resized for each picture (see `encoders/naflex.py`). FG-CLIP 2's texts are read as it reads short
texts: its further positions and its heads for long texts, regions and single patches are left out.

Every key of the configurations is used, has no effect on vectors, or is refused in a line that names it.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Collection

from absl import logging
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import siglip
from mural_tf.pretrained.clip import configure_transformer
from mural_tf.pretrained.folders import folder_of_two_towers
from mural_tf.pretrained.importer import TWO_TOWERS, Importer
from mural_tf.pretrained.keys import FREE, GENERIC, check_keys
from mural_tf.pretrained.pixels import configure_patches
from mural_tf.pretrained.tables import Row, assign_parts, linear
from mural_tf.pretrained.temperature import configure_scale
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

FG_CLIP = "fgclip2"
MODEL_TYPES = ("siglip2", FG_CLIP)
LONG_TEXT = 196  # pieces, where config.json does not say it
IGNORED = r".*position_ids"
OF_FG_CLIP = (
    r"|longtext_head\..*|boxtext_head\..*|dense_feature_head\..*"
    r"|text_model\.embeddings\.position_embedding_(res|ori)\.weight"
)
SIZES = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act layer_norm_eps patch_size "
    "num_patches max_position_embeddings projection_size"
).split()
OF_LONG_TEXTS = ("keep_len", "longtext_len")  # FG-CLIP 2's
KEYS = {
    **GENERIC,
    **dict.fromkeys((*SIZES, *OF_LONG_TEXTS, "auto_map", "vision_config", "text_config"), FREE),
    "num_channels": (3,),
    "vision_use_head": (True,),
}


def configure(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets both towers, pixels, the embedding's size, temperature and bias in `config` to the model in a folder.

    The image tower is frozen, see `encoders/naflex.py`. For FG-CLIP 2 a warning is logged that long texts are cut.
    Raises `UserError` for another model, architecture or preprocessing.
    """
    folder = folder_of_two_towers(folder)
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") not in MODEL_TYPES:
        raise UserError(f"{path}: model_type is {values.get('model_type')!r}, expected {' or '.join(MODEL_TYPES)}.")
    is_fg_clip = values["model_type"] == FG_CLIP
    vision = {**siglip.DEFAULTS, **json_field(values, "vision_config", dict, path, {})}
    text = {**siglip.DEFAULTS, **json_field(values, "text_config", dict, path, {})}
    keys = KEYS
    if not is_fg_clip:
        keys = {**KEYS, **dict.fromkeys(OF_LONG_TEXTS, ())}
    for values_of_part in (values, vision, text):
        check_keys(values_of_part, keys, path)
    _configure_image_tower(vision, path, config.image_tower)
    configure_patches(folder / "preprocessor_config.json", config.image_tower)
    configure_transformer(config.text_tower, text, path, "text_config")
    config.text_tower.max_length = json_field(text, "max_position_embeddings", int, path, 64)
    config.text_tower.update(siglip.TEXT_TOWER)
    if is_fg_clip:
        logging.warning(
            "%s: FG-CLIP 2's long texts, of up to %s pieces, have weights of their own, which are left out: texts end "
            "after %d pieces here. Divide longer texts into sentences.",
            path,
            text.get("longtext_len", LONG_TEXT),
            config.text_tower.max_length,
        )
    config.embedding_size = json_field(text, "projection_size", int, path, config.text_tower.hidden_size)
    file = open_weights(folder)
    configure_scale(file, config.loss)
    siglip.configure_bias(file, config, "logit_bias")


def _configure_image_tower(vision: dict, path: pathlib.Path, tower: ConfigDict) -> None:
    """Sets a frozen NaFlex in `tower`, the configuration's `image_tower`, by `vision_config` of the file at `path`."""
    configure_transformer(tower, vision, path, "vision_config")
    positions = json_field(vision, "num_patches", int, path, 256)
    grid = math.isqrt(positions)
    if grid**2 != positions:
        raise UserError(f"{path}: vision_config.num_patches is {positions}, expected a square number.")
    patch_size = json_field(vision, "patch_size", int, path, 16)
    tower.update(name="naflex", pooling="attention", projection=0, patch_size=patch_size, position_grid=grid)
    tower.update(frozen=True, cached=True, adapter_size=0, head_size=0, branch_size=0)


def load_weights(folder: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills `parts` of a model built for `configure`'s settings; `UserError`, and no change, unless all names fit."""
    folder = folder_of_two_towers(folder)
    table = siglip.hugging_face_table(config)
    kernel = Row("patches/kernel", ("vision_model.embeddings.patch_embedding.weight",), linear)
    table["image_encoder"] = [kernel if row.variable == kernel.variable else row for row in table["image_encoder"]]
    ignored = IGNORED
    if read_json(folder / "config.json").get("model_type") == FG_CLIP:
        ignored += OF_FG_CLIP
    assign_parts(table, model, parts, open_weights(folder), ignored, "a SigLIP 2 NaFlex")


def open_weights(folder: str | pathlib.Path) -> WeightFile:
    """Opens a folder's weights; raises `UserError` if they are missing or damaged."""
    return open_safetensors(folder_of_two_towers(folder))


IMPORTER = Importer(
    (*TWO_TOWERS, "bias"),
    configure,
    load_weights,
    siglip.read_vocabulary,
    method="siglip",
    open_weights=open_weights,
)
