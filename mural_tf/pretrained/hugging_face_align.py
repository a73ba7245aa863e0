"""Hugging Face's `AlignModel` as safetensors (`kakaobrain/align-base`): both towers, text projection, temperature.

Its image tower is an EfficientNet without top convolution that pads strides as for even sizes and sees pixels in
[-1, 1]; its text tower a BERT whose [CLS] state the projection takes (the pooler in the file is unused); its logits are
cosines divided by the temperature. All of that is ALIGN's as this project has it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Collection

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field
from mural_tf.encoders.efficientnet import (
    SQUEEZE_RATIO,
    STAGES,
    STEM_WIDTH,
    WIDTH_DIVISOR,
    scaled_depth,
    scaled_width,
)
from mural_tf.models.align import Align
from mural_tf.pretrained.hugging_face_bert import bert_table, configure_tower
from mural_tf.pretrained.importer import TWO_TOWERS, Importer
from mural_tf.pretrained.keys import read_config
from mural_tf.pretrained.pixels import configure_pixels, siglip_pixels, square
from mural_tf.pretrained.tables import Row, assign_parts, convolution, depthwise, kernel_and_bias
from mural_tf.pretrained.temperature import configure_temperature, temperature_row
from mural_tf.pretrained.vocabularies import vocabulary_of
from mural_tf.pretrained.weight_files import open_safetensors

IGNORED = r"text_model\.pooler\..*|.*position_ids|.*token_type_ids|.*num_batches_tracked"
# What `EfficientNet` is built of here; a file that says otherwise is another network.
ARCHITECTURE = {
    "num_channels": 3,
    "depth_divisor": WIDTH_DIVISOR,
    "kernel_sizes": [stage.kernel for stage in STAGES],
    "num_block_repeats": [stage.blocks for stage in STAGES],
    "out_channels": [stage.width for stage in STAGES],
    "in_channels": [STEM_WIDTH, *(stage.width for stage in STAGES[:-1])],
    "expand_ratios": [stage.expansion for stage in STAGES],
    "strides": [stage.stride for stage in STAGES],
    "depthwise_padding": [],
    "squeeze_expansion_ratio": SQUEEZE_RATIO,
    "pooling_type": "mean",
    "batch_norm_eps": 1e-3,  # Keras'
}


def efficientnet_table(depth: float, prefix: str = "vision_model.") -> list[Row]:
    """Returns the rows of the image tower by the names in `AlignVisionModel`, which count blocks through all stages.

    `depth` is the tower's depth coefficient, 3.1 for align-base; all names in the file begin with `prefix`.
    """

    def norm(ours: str, theirs: str) -> list[Row]:
        ends = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
        return [Row(f"{ours}/{end}", (f"{prefix}{theirs}.{name}",)) for end, name in ends.items()]

    def kernel(ours: str, theirs: str, layout=convolution) -> Row:
        return Row(ours, (f"{prefix}{theirs}.weight",), layout)

    rows = [kernel("stem_conv/kernel", "embeddings.convolution"), *norm("stem_bn", "embeddings.batchnorm")]
    block_number = 0
    for stage_number, stage in enumerate(STAGES, start=1):
        for number_in_stage in range(scaled_depth(stage.blocks, depth)):
            ours = f"block{stage_number}{chr(ord('a') + number_in_stage)}_"
            theirs = f"encoder.blocks.{block_number}"
            block_number += 1
            if stage.expansion != 1:
                rows.append(kernel(f"{ours}expand_conv/kernel", f"{theirs}.expansion.expand_conv"))
                rows += norm(f"{ours}expand_bn", f"{theirs}.expansion.expand_bn")
            rows.append(kernel(f"{ours}dwconv/depthwise_kernel", f"{theirs}.depthwise_conv.depthwise_conv", depthwise))
            rows += norm(f"{ours}bn", f"{theirs}.depthwise_conv.depthwise_norm")
            for part in ("reduce", "expand"):
                name = f"{ours}squeeze_excite/{ours}se_{part}"
                rows.append(kernel(f"{name}/kernel", f"{theirs}.squeeze_excite.{part}"))
                rows.append(Row(f"{name}/bias", (f"{prefix}{theirs}.squeeze_excite.{part}.bias",)))
            rows.append(kernel(f"{ours}project_conv/kernel", f"{theirs}.projection.project_conv"))
            rows += norm(f"{ours}project_bn", f"{theirs}.projection.project_bn")
    return rows


def configure(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets both towers, pixels, the embedding's size and temperature in `config` to the ALIGN in a folder.

    Raises `UserError` for another model, architecture or preprocessing.
    """
    folder = pathlib.Path(folder)
    path = folder / "config.json"
    values = read_config(path, "align")
    vision, text = (json_field(values, name, dict, path, {}) for name in ("vision_config", "text_config"))
    _check_architecture(vision, path)
    # Keys that equal Hugging Face's defaults, which are align-base's, may be left out of the file.
    width = json_field(values, "vision_config.width_coefficient", float, path, 2.0)
    depth = json_field(values, "vision_config.depth_coefficient", float, path, 3.1)
    rate = json_field(values, "vision_config.drop_connect_rate", float, path, 0.2)
    config.image_tower.update(
        name="efficientnet",
        width=float(width),
        depth=float(depth),
        padding="even",
        drop_connect_rate=float(rate),
        projection=0,
    )
    config.embedding_size = json_field(values, "projection_dim", int, path, 640)
    last_width = scaled_width(STAGES[-1].width, config.image_tower.width)
    if config.embedding_size != last_width:
        raise UserError(f"{path}: projection_dim is {config.embedding_size}, its image tower gives {last_width}.")
    text = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        **text,
    }
    configure_tower(config.text_tower, text, path)
    config.text_tower.pooler_size = 0
    _configure_images(folder / "preprocessor_config.json", vision, config.image_tower)
    configure_temperature(open_safetensors(folder), config.loss)


def _check_architecture(vision: dict, path: pathlib.Path) -> None:
    """Raises `UserError` for a `vision_config`, in the file at `path`, of another EfficientNet than this project's."""
    for key, expected in ARCHITECTURE.items():
        if vision.get(key, expected) != expected:
            raise UserError(f"{path}: vision_config.{key} is {vision[key]!r}, expected {expected!r}.")
    if vision.get("hidden_act", "swish") not in ["swish", "silu"]:
        raise UserError(f"{path}: vision_config.hidden_act is {vision['hidden_act']!r}, expected 'swish'.")
    width = json_field(vision, "width_coefficient", float, path, 2.0)
    input_widths = [STEM_WIDTH, *(stage.width for stage in STAGES)]
    for stage, input_width in zip(STAGES, input_widths):
        if stage.stride == 1 and scaled_width(input_width, width) == scaled_width(stage.width, width):
            raise UserError(  # Keras and this project add the input there, Hugging Face does not
                f"{path}: vision_config.width_coefficient={width} makes a stage as wide as the one before it, where "
                "Hugging Face's network has no residual connection and this one has; such weights cannot be used."
            )


def _configure_images(path: pathlib.Path, vision: dict, tower: ConfigDict) -> None:
    """Sets sizes and normalisation of pictures in `tower` by the preprocessor_config.json at `path`.

    Without that file they are align-base's, for pictures of the size in `vision`, the model's `vision_config`.
    """
    # 346, 289 and `include_top` are defaults of Hugging Face's `EfficientNetImageProcessor`.
    defaults = {**siglip_pixels(346), "crop_size": square(289), "resample": 2, "include_top": True}
    if not path.exists():
        side = json_field(vision, "image_size", int, path.with_name("config.json"), 600)
        resized = 346 if side == 289 else side  # align-base crops; other sizes are taken whole
        defaults.update(size=square(resized), crop_size=square(side), do_center_crop=True, include_top=False)
    configure_pixels(path, tower, 0, defaults)


def load_weights(folder: str | pathlib.Path, model: Align, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills `parts` of an ALIGN, or a MURAL, that was built for `configure`'s settings.

    The file has both towers, the image-text head and the temperature. Raises `UserError`, and changes nothing, unless
    all names and shapes fit.
    """
    text = config.text_tower
    tables = {
        "image_encoder": efficientnet_table(config.image_tower.depth),
        "text_encoder": bert_table(text.layers, text.max_length, pooler=False, prefix="text_model."),
        "image_text_head": kernel_and_bias("image_text_head", "text_projection"),
        "log_temperature": [temperature_row()],
    }
    assign_parts(tables, model, parts, open_safetensors(folder), IGNORED, "an AlignModel")


IMPORTER = Importer(TWO_TOWERS, configure, load_weights, vocabulary_of, method="align", open_weights=open_safetensors)
