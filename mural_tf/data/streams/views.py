"""Two augmented views of an image, after SimCLR (Chen et al., 2020), and [Globetrotter] §3.3, and a caption.

"view_0", "view_1", "image_id", "caption" (tokens), "caption_id"; with a cloze task "cloze" (`captions.py`).

A view is a random crop resized to the tower's size, a flip, a colour distortion, and a Gaussian blur:

    crop   a rectangle of `crop_area` of the picture, its aspect within 3/4 and 4/3 (SimCLR: 8% to 100%)
    color  `images.augment_images` with the configuration's `augmentation` branch
    blur   standard deviation drawn from [0, `blur`] pixels (Globetrotter's code: 2, at 224 pixels)

Departures: no resampling filter against aliasing in the crop, and the colour distortion is the project's one linear
map for each image instead of torchvision's sequence of four.
"""

from __future__ import annotations

import math

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.data.images import augment_images, resample
from mural_tf.data.streams.captions import ClozeCaptions
from mural_tf.data.streams.stream import with_static_batch_size

ASPECT = (3 / 4, 4 / 3)
BLUR_REACH = 2.0  # the kernel reaches this many of the largest standard deviation


class Views(ClozeCaptions):
    """Images come as two views."""

    def make_batch(self, items, seed):
        settings = self.settings
        views = augment_views(items["image"], settings.image_tower.image_size, settings.augmentation, seed)
        first, second = with_static_batch_size(items["image"], views)
        return {"view_0": first, "view_1": second, **self.cloze_caption(items, seed)}


def augment_views(
    images: tf.Tensor, image_size: int, config: ConfigDict, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two views of each image: uint8 [B, R, R, 3] → two of uint8 [B, S, S, 3], deterministic in `seed`.

    `config` is the configuration's `augmentation` branch, `seed` int [2]. Raises `UserError` for a
    `crop_area` or `blur` out of range.
    """
    low, high = config.crop_area
    if not 0 < low <= high <= 1:
        raise UserError(f"augmentation.crop_area={low, high} must be two shares of the picture, 0 < low <= high <= 1.")
    if config.blur < 0:
        raise UserError(f"augmentation.blur={config.blur} must be 0 (none) or a standard deviation in pixels.")
    first_seed, second_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    first = _view(images, image_size, config, first_seed)
    second = _view(images, image_size, config, second_seed)
    return first, second


def _view(images: tf.Tensor, image_size: int, config: ConfigDict, seed: tf.Tensor) -> tf.Tensor:
    """Returns one view of each image, as `augment_views`."""
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    if tuple(config.crop_area) != (1.0, 1.0):
        images = random_crop(images, image_size, config.crop_area, seeds[0])
    view = augment_images(images, image_size, config, seeds[1])
    if config.blur:
        view = blur(view, config.blur, seeds[2])
    return view


def random_crop(images: tf.Tensor, size: int, area: tuple[float, float], seed: tf.Tensor) -> tf.Tensor:
    """Cuts one rectangle from each image and resizes it, bilinear: uint8 [B, R, R, 3] → uint8 [B, size, size, 3]."""
    side = images.shape[1]
    draws = tf.unstack(tf.random.stateless_uniform([4, tf.shape(images)[0]], seed))
    share = area[0] + draws[0] * (area[1] - area[0])
    aspect = tf.exp(math.log(ASPECT[0]) + draws[1] * math.log(ASPECT[1] / ASPECT[0]))  # width / height
    width = tf.minimum(tf.sqrt(share * aspect), 1.0) * side  # pixels
    height = tf.minimum(tf.sqrt(share * (1.0 / aspect)), 1.0) * side
    left = draws[2] * (side - width)
    top = draws[3] * (side - height)
    scale_x = width / size
    scale_y = height / size
    zero = tf.zeros_like(width)
    # Pixel centres: x_in + 1/2 = left + scale (x_out + 1/2).
    x = [scale_x, zero, left + 0.5 * (scale_x - 1.0)]
    y = [zero, scale_y, top + 0.5 * (scale_y - 1.0)]
    transforms = tf.stack([*x, *y, zero, zero], axis=1)
    return tf.ensure_shape(resample(images, size, transforms), [None, size, size, 3])


def blur(images: tf.Tensor, largest: float, seed: tf.Tensor) -> tf.Tensor:
    """Blurs each image with a Gaussian whose deviation is drawn from [0, largest] pixels: uint8 [B, S, S, 3]."""
    reach = max(1, math.ceil(BLUR_REACH * largest))
    deviation = tf.random.stateless_uniform([tf.shape(images)[0], 1], seed, 0.0, largest) + 1e-3  # a divisor: never 0
    offsets = tf.range(-reach, reach + 1, dtype=tf.float32)
    kernel = tf.exp(-0.5 * tf.square(offsets / deviation))  # [B, 2 reach + 1]
    kernel = kernel / tf.reduce_sum(kernel, axis=1, keepdims=True)
    pixels = tf.cast(images, tf.float32)
    for axis in (1, 2):  # a Gaussian is the product of one along rows and one along columns
        pixels = _convolve(pixels, kernel, reach, axis)
    return tf.cast(tf.round(tf.clip_by_value(pixels, 0.0, 255.0)), tf.uint8)


def _convolve(pixels: tf.Tensor, kernel: tf.Tensor, reach: int, axis: int) -> tf.Tensor:
    """Convolves each image with its own kernel along one axis, the border repeated: float32 [B, S, S, 3]."""
    size = pixels.shape[axis]
    rows = tf.range(size)[:, None] + tf.range(-reach, reach + 1)[None, :]  # [S, K]
    taps = tf.one_hot(tf.clip_by_value(rows, 0, size - 1), size)  # [S, K, S]
    matrix = tf.einsum("bk,oki->boi", kernel, taps)  # [B, S out, S in]
    if axis == 1:
        return tf.einsum("boi,biwc->bowc", matrix, pixels)
    return tf.einsum("boi,bhic->bhoc", matrix, pixels)
