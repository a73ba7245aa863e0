"""Resampling of whole numbers along one axis, as Pillow does it."""

from __future__ import annotations

import tensorflow as tf


def to_uint8(pixels: tf.Tensor, interpolation: str, half_up: bool = False) -> tf.Tensor:
    """Rounds pixels, float32 of any shape, to uint8, or cuts decimals off for the interpolation "big_vision".

    Args:
      pixels: numbers in [0, 255]; beyond them only for "bicubic", whose numbers are clipped.
      interpolation: the way of resizing, `image_tower.interpolation`: "bilinear", "bicubic" or "big_vision".
      half_up: whether 126.5 becomes 127, as in Pillow, for any interpolation, and not the even 126. A picture enlarged
        to twice its size has many halves.
    """
    if interpolation == "bicubic":
        pixels = tf.clip_by_value(pixels, 0.0, 255.0)
    if half_up:
        pixels = tf.floor(pixels + 0.5)
    elif interpolation != "big_vision":
        pixels = tf.round(pixels)
    return tf.cast(pixels, tf.uint8)


def resampled(
    image: tf.Tensor, axis: int, size, interpolation: str, scale=None, translation=None, half_up: bool = False
) -> tf.Tensor:
    """Resamples an image along one axis: returns uint8 [size, W, 3] for axis 0, [H, size, 3] for axis 1.

    Args:
      image: uint8 [H, W, 3].
      axis: 0, which changes the number of rows, or 1, which changes the number of columns.
      size: rows or columns of the result, an integer or an integer scalar.
      interpolation: as `image_tower.interpolation`: "bilinear", "bicubic" or "big_vision", which is not anti-aliased.
      scale, translation: float64 scalars, both or none; position x of the image becomes scale * x + translation. By
        default the image fills the result.
      half_up: see `to_uint8`.
    """
    lines = image
    if axis == 1:
        lines = tf.transpose(image, [1, 0, 2])  # the axis to resample comes first
    kernel = "triangle"
    if interpolation == "bicubic":
        kernel = "keyscubic"
    length = tf.shape(lines)[0]
    width = tf.shape(lines)[1]
    if scale is None:
        scale = tf.cast(size, tf.float64) / tf.cast(length, tf.float64)
        translation = tf.zeros([], tf.float64)
    pixels = tf.raw_ops.ScaleAndTranslate(
        images=tf.reshape(lines, [1, length, 1, width * 3]),  # one column: only the first axis is resampled
        size=[size, 1],
        scale=tf.stack([tf.cast(scale, tf.float32), 1.0]),
        translation=tf.stack([tf.cast(translation, tf.float32), 0.0]),
        kernel_type=kernel,
        antialias=interpolation != "big_vision",
    )
    lines = tf.reshape(to_uint8(pixels, interpolation, half_up), [size, width, 3])
    if axis == 1:
        lines = tf.transpose(lines, [1, 0, 2])
    return lines
