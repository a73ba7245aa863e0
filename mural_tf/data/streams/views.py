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
        """Returns the entries that the module lists; arguments as in `Stream.make_batch`."""
        settings = self.settings
        views = augment_views(items["image"], settings.image_tower.image_size, settings.augmentation, seed)
        first, second = with_static_batch_size(items["image"], views)
        return {"view_0": first, "view_1": second, **self.cloze_caption(items, seed)}


def augment_views(
    images: tf.Tensor, image_size: int, config: ConfigDict, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two random views of each image, uint8 [B, S, S, 3] both (see the module).

    Args:
      images: uint8 [B, R, R, 3].
      image_size: S.
      config: the configuration's `augmentation` branch.
      seed: int [2]; the same seed gives the same views.

    Raises:
      UserError: `config.crop_area` or `config.blur` is out of range.
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
    """Returns one random view of each image, uint8 [B, S, S, 3]; arguments as in `augment_views`."""
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    if tuple(config.crop_area) != (1.0, 1.0):
        images = random_crop(images, image_size, config.crop_area, seeds[0])
    view = augment_images(images, image_size, config, seeds[1])
    if config.blur:
        view = blur(view, config.blur, seeds[2])
    return view


def random_crop(images: tf.Tensor, size: int, area: tuple[float, float], seed: tf.Tensor) -> tf.Tensor:
    """Cuts a random rectangle from each image and resizes it, bilinear: uint8 [B, R, R, 3] → uint8 [B, size, size, 3].

    Args:
      images: the batch.
      size: the result's side in pixels.
      area: the smallest and the largest share of the picture that a rectangle covers, in (0, 1].
      seed: int [2]; the same seed cuts the same rectangles.
    """
    side = images.shape[1]
    draws = tf.random.stateless_uniform([4, tf.shape(images)[0]], seed)
    area_draw, aspect_draw, left_draw, top_draw = tf.unstack(draws)  # [B] each, as all numbers below
    share = area[0] + area_draw * (area[1] - area[0])
    aspect = tf.exp(math.log(ASPECT[0]) + aspect_draw * math.log(ASPECT[1] / ASPECT[0]))  # width / height
    width = tf.minimum(tf.sqrt(share * aspect), 1.0) * side  # pixels
    height = tf.minimum(tf.sqrt(share * (1.0 / aspect)), 1.0) * side
    left = left_draw * (side - width)
    top = top_draw * (side - height)
    scale_x = width / size
    scale_y = height / size
    zero = tf.zeros_like(width)
    # Pixel centres: x_in + 1/2 = left + scale (x_out + 1/2); `resample` takes x_in = a x_out + b y_out + c.
    x_row = [scale_x, zero, left + 0.5 * (scale_x - 1.0)]
    y_row = [zero, scale_y, top + 0.5 * (scale_y - 1.0)]
    transforms = tf.stack([*x_row, *y_row, zero, zero], axis=1)  # [B, 8]
    return tf.ensure_shape(resample(images, size, transforms), [None, size, size, 3])


def blur(images: tf.Tensor, largest: float, seed: tf.Tensor) -> tf.Tensor:
    """Blurs each image, uint8 [B, S, S, 3], with a Gaussian whose deviation is drawn from [0, largest] pixels.

    `seed` is int [2]; the same seed gives the same images.
    """
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
    """Convolves each image, float32 [B, S, S, 3], with its own kernel along one axis, with the border repeated.

    Args:
      pixels: the images.
      kernel: float32 [B, K], K = 2 reach + 1.
      reach: how many pixels the kernel reaches to each side.
      axis: 1, down the columns, or 2, along the rows.
    """
    size = pixels.shape[axis]
    inputs = tf.range(size)[:, None] + tf.range(-reach, reach + 1)[None, :]  # [S out, K]
    is_input = tf.one_hot(tf.clip_by_value(inputs, 0, size - 1), size)  # [S out, K, S in]
    matrix = tf.einsum("bk,oki->boi", kernel, is_input)  # [B, S out, S in]
    if axis == 1:
        return tf.einsum("boi,biwc->bowc", matrix, pixels)
    return tf.einsum("boi,bhic->bhoc", matrix, pixels)
