"""From an encoded picture to an image tower's pixels as `data/images.py` prepares them, by Pillow and NumPy.

Decoding and resizing are Pillow's; the graph's differ by rounding, and by its faster way of unpacking a JPEG:
`benchmarks/lite_inputs.py` measures how much.
"""

from __future__ import annotations

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from mural_lite.config import takes_features
from mural_lite.litert.patches import patch_square
from mural_lite.pictures import BadImage, read_picture

_KERNELS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def prepare(data: bytes, tower: ConfigDict) -> np.ndarray:
    """Returns the image encoder's input for an encoded picture: pixels uint8 [S, S, 3], or features float32 [F].

    `tower`: the `image_tower` part of a configuration. Raises `BadImage` for bytes that do not decode.
    """
    if takes_features(tower):
        if len(data) != 4 * tower.feature_size:
            raise BadImage(f"{len(data)} bytes in place of {tower.feature_size} features of 4")
        return np.frombuffer(data, "<f4")
    return evaluation_pixels(read_picture(data), tower)


def evaluation_pixels(picture: Image.Image, tower: ConfigDict) -> np.ndarray:
    """Returns the pixels of an RGB picture as a tower takes them in evaluation, uint8 [S, S, 3], S = `image_size`.

    The picture is resized to `tower.resize` and cut to its centre, or divided into patches: see `tower.resize_mode`.
    """
    if tower.resize_mode == "patches":
        return patch_square(picture, tower, _KERNELS[tower.interpolation])
    side = tower.image_size
    keeps_ratio = tower.resize_mode == "shorter_side"
    resized = np.array([tower.resize, tower.resize])  # width and height
    if keeps_ratio:
        resized = resized * np.array(picture.size) // min(picture.size)
    corner = (resized - side) // 2  # left and top of the centre
    if picture.size == (tower.resize, tower.resize):
        left, top = corner
        return np.asarray(picture)[top : top + side, left : left + side]
    if tower.interpolation == "big_vision":
        return _resize_bilinear(np.asarray(picture), resized, corner, side, floors_columns=keeps_ratio)
    # Only the centre is computed: a strip of 1 x 5,000 would become 224 x 1,120,000.
    scale = np.array(picture.size) / resized
    left, top = (corner * scale).tolist()
    right, bottom = np.minimum((corner + side) * scale, picture.size).tolist()
    centre = picture.resize((side, side), _KERNELS[tower.interpolation], box=(left, top, right, bottom))
    return np.asarray(centre)


def _resize_bilinear(
    pixels: np.ndarray, resized: np.ndarray, corner: np.ndarray, side: int, floors_columns: bool
) -> np.ndarray:
    """Returns the centre of resized pixels, interpolated between the two nearest columns and rows, uint8 [S, S, 3].

    There is no anti-aliasing, and fractions are cut off. `resized`: width and height; `corner`: left and top of the
    centre; `floors_columns`: fractions are also cut off between columns and rows, as in the graph that keeps the ratio.
    """
    columns = _interpolate(pixels.astype(np.float32), 1, resized[0], corner[0], side)  # [H, S, 3]
    if floors_columns:
        columns = np.floor(columns)
    return _interpolate(columns, 0, resized[1], corner[1], side).astype(np.uint8)


def _interpolate(values: np.ndarray, axis: int, resized: int, start: int, side: int) -> np.ndarray:
    """Returns pixels of which an axis is resized to the length `resized`, and cut to `side` from `start` on.

    `values`: float32 [H, W, C]; `axis`: 0 gives [side, W, C], 1 gives [H, side, C].
    """
    size = values.shape[axis]
    centres = np.arange(start, start + side) + 0.5  # of the resized pixels
    positions = centres * np.float32(size / resized) - 0.5
    positions = np.clip(positions, 0.0, size - 1).astype(np.float32)  # [side], in numbers of the pixels before
    lower = np.floor(positions).astype(np.int64)
    upper = np.minimum(lower + 1, size - 1)
    lower_values = np.take(values, lower, axis=axis)
    upper_values = np.take(values, upper, axis=axis)
    other_axes = (0, 2) if axis == 1 else (1, 2)
    share = np.expand_dims(positions - lower, other_axes)  # [side, 1, 1] or [1, side, 1]
    return lower_values + (upper_values - lower_values) * share
