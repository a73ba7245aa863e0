"""Keras' EfficientNet (`keras.applications`), ImageNet's among them: an .h5 file.

Both have the same layers under the same names; a file with the top convolution and the classifier is taken without.
"""

from __future__ import annotations

import os
import pathlib

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.encoders.efficientnet import (
    COEFFICIENTS,
    IMAGENET_MEAN,
    IMAGENET_STANDARD_DEVIATION,
    STAGES,
    STEM_WIDTH,
    scaled_depth,
    scaled_width,
)
from mural_tf.errors import UserError
from mural_tf.pretrained.tables import Row, assign
from mural_tf.pretrained.weight_files import WeightFile, open_keras_h5

# The top convolution, the classifier, and the normalisation of pixels, which is a setting here.
IGNORED = r"(top_conv|top_bn|predictions)/.*|(normalization(_\d+)?/)?(mean|variance|count)"


def open_weights(weights: str | os.PathLike) -> WeightFile:
    """Opens an .h5 file, or the one of a folder."""
    path = pathlib.Path(weights)
    if path.is_dir():
        files = sorted(path.glob("*.h5"))
        if len(files) != 1:
            raise UserError(f"{path} holds {len(files)} .h5 files; name the file of Keras' EfficientNet.")
        path = files[0]
    return open_keras_h5(path)


def efficientnet_table(variables: list[tf.Variable]) -> list[Row]:
    """The image tower's variables and their names in Keras, which differ in squeeze-and-excitation's layer only."""
    names = [variable.name.split(":")[0] for variable in variables]
    return [Row(name, (name.split("/", 1)[1] if "_squeeze_excite/" in name else name,)) for name in names]


def configure(weights: str | os.PathLike, config: ConfigDict) -> None:
    """Sets width, depth and normalisation of the image tower in `config` to those of the weights.

    Sizes other than the published B0 to B7 keep the width and depth that `config` has.
    """
    file = open_weights(weights)
    config.image_tower.name = "efficientnet"
    for width, depth in COEFFICIENTS.values():
        if _size(file) == (scaled_width(STEM_WIDTH, width), sum(scaled_depth(stage[1], depth) for stage in STAGES)):
            config.image_tower.width, config.image_tower.depth = width, depth
    config.image_tower.normalization = _normalization(file)
    if not config.image_tower.projection:
        config.embedding_size = scaled_width(STAGES[-1][2], config.image_tower.width)


def load(weights: str | os.PathLike, encoder: keras.Model) -> None:
    """Fills an image tower that was built for `configure`'s settings; a projection after pooling stays as it is."""
    variables = [variable for variable in encoder.variables if not variable.name.startswith("projection/")]
    assign(efficientnet_table(variables), variables, open_weights(weights), IGNORED, "an EfficientNet of Keras")


def _size(file: WeightFile) -> tuple[int, int]:
    """Width of the stem and number of blocks, which distinguish the published sizes."""
    blocks = [name for name in file.shapes if name.endswith("_dwconv/depthwise_kernel")]
    return file.shapes.get("stem_conv/kernel", (0,))[-1], len(blocks)


def _normalization(file: WeightFile) -> str:
    """What the file's normalisation layer does: ImageNet's, or nothing in a model that was made without weights.

    Keras' own ImageNet files hold the standard deviation in the variance's place, and its code makes up for that.
    """
    found = {name.split("/")[-1]: name for name in file.shapes if name.split("/")[-1] in ("mean", "variance")}
    if len(found) < 2:
        return "imagenet"
    mean, variance = (file.read(found[name]).ravel() for name in ("mean", "variance"))
    deviation = np.array(IMAGENET_STANDARD_DEVIATION)
    if mean.shape == variance.shape == (3,):
        if np.allclose(mean, IMAGENET_MEAN) and any(np.allclose(variance, deviation**n) for n in (1, 2)):
            return "imagenet"
        if np.allclose(mean, 0) and np.allclose(variance, 1):
            return "none"
    raise UserError(
        f"{file.path} normalises pixels by mean {mean.tolist()} and variance {variance.tolist()}: neither ImageNet's "
        "nor none."
    )
