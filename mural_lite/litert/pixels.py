"""From an encoded picture to an image tower's pixels as `data/images.py` prepares them, by Pillow and NumPy.

Decoding and resizing are Pillow's; the graph's differ by rounding, and by its faster way of unpacking a JPEG:
`benchmarks/lite_inputs.py` measures how much.
"""

from __future__ import annotations

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from mural_lite.config import takes_features
from mural_lite.pictures import BadImage, read_picture

_KERNELS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def prepare(data: bytes, tower: ConfigDict) -> np.ndarray:
    """Returns what the image encoder takes of an encoded picture: uint8 [S, S, 3], or float32 [F] of features.

    `tower`: the `image_tower` part of a configuration. Raises `BadImage` for bytes that do not decode.
    """
    if takes_features(tower):
        if len(data) != 4 * tower.feature_size:
            raise BadImage(f"{len(data)} bytes in place of {tower.feature_size} features of 4")
        return np.frombuffer(data, "<f4")
    return evaluation_pixels(read_picture(data), tower)


def evaluation_pixels(picture: Image.Image, tower: ConfigDict) -> np.ndarray:
    """Returns an RGB picture resized to `tower.resize` and cut to the centre, uint8 [S, S, 3], S = `image_size`."""
    side, resize = tower.image_size, tower.resize
    new = np.array([resize, resize])  # width and height
    if tower.resize_mode == "shorter_side":
        new = new * np.array(picture.size) // min(picture.size)
    first = (new - side) // 2
    if picture.size == (resize, resize):
        return np.asarray(picture)[first[1] : first[1] + side, first[0] : first[0] + side]
    if tower.interpolation == "big_vision":
        return _between_two(np.asarray(picture), new, first, side, twice=tower.resize_mode == "shorter_side")
    scale = np.array(picture.size) / new
    # Only the part that is kept is computed: a strip of 1 x 5,000 would become 224 x 1,120,000.
    box = (*(first * scale), *np.minimum((first + side) * scale, picture.size))
    return np.asarray(picture.resize((side, side), _KERNELS[tower.interpolation], box=tuple(map(float, box))))


def _between_two(pixels: np.ndarray, new: np.ndarray, first: np.ndarray, side: int, twice: bool) -> np.ndarray:
    """Linear between the two nearest rows and columns, without anti-aliasing, cut off to whole numbers.

    `twice`: after the columns and again after the rows, as the graph does where it keeps the shorter side.
    """
    values = pixels.astype(np.float32)
    for axis in (1, 0):
        size = pixels.shape[axis]
        width = 1 - axis  # of `new` and `first`, which begin with the width
        positions = (np.arange(first[width], first[width] + side) + 0.5) * np.float32(size / new[width]) - 0.5
        positions = np.clip(positions, 0.0, size - 1).astype(np.float32)
        low = np.floor(positions).astype(np.int64)
        share = np.expand_dims(positions - low, (0, 2) if axis == 1 else (1, 2))
        below, above = (np.take(values, np.minimum(low + step, size - 1), axis=axis) for step in (0, 1))
        values = below + (above - below) * share
        if twice:
            values = np.floor(values)
    return values.astype(np.uint8)
