"""Decoding, resizing, cropping and augmentation of images, all in TensorFlow's graph.

ALIGN's input as [ETCL] gives it: resize to 346 x 346 without keeping the aspect, then a random crop of 289 and a flip
in training, the centre crop in evaluation. All sizes are configuration. Pixels stay uint8 until the model divides by
255, so that a batch travels to the accelerator in a quarter of the bytes.

Instead of an encoded image, records may hold features that were computed before (`ingest/features.py`), raw
little-endian float32 numbers: they are read, batched and evaluated like images, but not augmented.
"""

from __future__ import annotations

import math

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.encoders.towers import takes_features


def decode_image(data: tf.Tensor) -> tf.Tensor:
    """Decodes one JPEG, PNG, BMP or (the first frame of a) GIF, a string scalar, to uint8 RGB [H, W, 3].

    Grey becomes RGB and transparent pixels go on white. Raises `tf.errors.InvalidArgumentError` for anything else.
    """
    image = tf.io.decode_image(data, channels=0, expand_animations=False)  # [H, W, 1 to 4]: grey or RGB, then alpha
    image.set_shape([None, None, None])
    is_rgb = tf.equal(tf.shape(image)[2], 3)  # nearly all: nothing to do, and a copy costs half as much as decoding
    return tf.ensure_shape(tf.cond(is_rgb, lambda: image, lambda: _as_rgb(image)), [None, None, 3])


def _as_rgb(image: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(image)
    colors = tf.cond(tf.equal(shape[2] % 2, 0), lambda: _on_white(image), lambda: image)
    return tf.broadcast_to(colors, [shape[0], shape[1], 3])


def _on_white(image: tf.Tensor) -> tf.Tensor:
    colors, alpha = tf.cast(image[..., :-1], tf.float32), unit_range(image[..., -1:])
    return tf.cast(tf.round(colors * alpha + 255.0 * (1.0 - alpha)), tf.uint8)


def unit_range(images: tf.Tensor) -> tf.Tensor:
    """Returns uint8 images as float32 in [0, 1]; what is float already as it is."""
    return tf.cast(images, tf.float32) / 255.0 if images.dtype == tf.uint8 else images


def resize_image(image: tf.Tensor, side: int) -> tf.Tensor:
    """Resizes uint8 [H, W, 3] to uint8 [side, side, 3], bilinear with anti-aliasing, ignoring the aspect."""
    shape = tf.shape(image)
    resized = tf.cond(  # most data sets are stored at one size: then there is nothing to do
        tf.reduce_all(tf.equal(shape[:2], side)),
        lambda: image,
        lambda: tf.cast(tf.round(tf.image.resize(image, [side, side], antialias=True)), tf.uint8),  # in [0, 255]
    )
    return tf.ensure_shape(resized, [side, side, 3])


def evaluation_image(image: tf.Tensor, resize: int, image_size: int) -> tf.Tensor:
    """Resizes uint8 [H, W, 3] to `resize` and cuts the centre: uint8 [image_size, image_size, 3]."""
    offset = (resize - image_size) // 2
    resized = resize_image(image, resize)
    return resized[offset : offset + image_size, offset : offset + image_size]


def augment_images(images: tf.Tensor, image_size: int, config: ConfigDict, seed: tf.Tensor) -> tf.Tensor:
    """Crops and augments a batch: uint8 [B, R, R, 3] → uint8 [B, S, S, 3], deterministic in `seed` (int [2]).

    One projective resampling holds the random crop, shift, flip, zoom, stretch and rotation; beyond the edge the
    border pixel is repeated. Crop and flip alone copy pixels. `config` is the configuration's `augmentation` branch.
    """
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    draws = tf.unstack(tf.random.stateless_uniform([6, tf.shape(images)[0]], seeds[0], -1.0, 1.0))
    if config.zoom or config.stretch or config.rotation or config.shift:
        resampled = resample(images, image_size, _transforms(images.shape[1], image_size, config, draws))
    else:
        resampled = _crop_and_flip(images, image_size, config.flip, draws)
    resampled.set_shape([None, image_size, image_size, 3])
    if config.color or config.hue or config.greyscale:
        resampled = _change_colors(resampled, config, seeds[1])
    if config.erase:
        resampled = _erase(resampled, config.erase, seeds[2])
    return resampled


def _crop_and_flip(images: tf.Tensor, size: int, flip: bool, draws: list[tf.Tensor]) -> tf.Tensor:
    """The crop and flip of `_transforms` at whole pixels, an eighth of the resampling's time."""
    crop = (images.shape[1] - size) / 2.0
    left, top = (tf.cast(tf.round(crop + draw * crop), tf.int32)[:, tf.newaxis] for draw in draws[:2])  # [B, 1]
    rows = columns = tf.range(size)[tf.newaxis]
    if flip:
        columns = tf.where(draws[5][:, tf.newaxis] < 0.0, columns[:, ::-1], columns)
    cropped = tf.gather(images, top + rows, axis=1, batch_dims=1)  # [B, S, R, 3]
    return tf.gather(cropped, left + columns, axis=2, batch_dims=1)  # [B, S, S, 3]


def resample(images: tf.Tensor, size: int, transforms: tf.Tensor) -> tf.Tensor:
    """Resamples [B, R, R, C] to [B, size, size, C], bilinear; `transforms` [B, 8] lead from output to input pixels."""
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[size, size],
        interpolation="BILINEAR",
        fill_mode="NEAREST",
        fill_value=0.0,
    )


def _transforms(resize: int, size: int, config: ConfigDict, draws: list[tf.Tensor]) -> tf.Tensor:
    """Returns [B, 8] maps from output to input pixels: x_in = a x + b y + c, y_in = d x + e y + f."""
    crop = (resize - size) / 2.0
    reach = crop + config.shift * size
    left, top = crop + draws[0] * reach, crop + draws[1] * reach
    angle = draws[2] * config.rotation * math.pi / 180.0
    zoom, stretch = 1.0 + draws[3] * config.zoom, 1.0 + draws[4] * config.stretch
    mirror = tf.where(draws[5] < 0.0, -1.0, 1.0) if config.flip else tf.ones_like(zoom)
    scale_x, scale_y = mirror / (zoom * stretch), stretch / zoom
    a, b = scale_x * tf.cos(angle), -scale_y * tf.sin(angle)
    d, e = scale_x * tf.sin(angle), scale_y * tf.cos(angle)
    centre = (size - 1) / 2.0
    c = left + centre - (a + b) * centre
    f = top + centre - (d + e) * centre
    zero = tf.zeros_like(a)
    return tf.stack([a, b, c, d, e, f, zero, zero], axis=1)


def _change_colors(images: tf.Tensor, config: ConfigDict, seed) -> tf.Tensor:
    """Applies one linear map of RGB per image: hue rotation, saturation, contrast and brightness."""
    batch = tf.shape(images)[0]
    strength = config.color
    draws = tf.random.stateless_uniform([5, batch], seed, -1.0, 1.0)
    grey_axis = tf.constant([0.299, 0.587, 0.114])
    to_grey = tf.tile(grey_axis[None, :], [3, 1])  # every output channel is the luminance
    saturation = 1.0 + strength * draws[0]
    saturation = tf.where((draws[4] + 1.0) / 2.0 < config.greyscale, 0.0, saturation)[:, None, None]
    mix = saturation * tf.eye(3) + (1.0 - saturation) * to_grey  # [B, 3, 3]
    angle = (draws[1] * config.hue * math.pi / 180.0)[:, None, None]
    third = tf.fill([3, 3], 1.0 / 3.0)
    cross = tf.constant([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3.0)
    hue = tf.cos(angle) * (tf.eye(3) - third) + third + tf.sin(angle) * cross  # rotation about the grey axis
    contrast = (1.0 + 0.5 * strength * draws[2])[:, None, None]
    brightness = (0.3 * strength * draws[3])[:, None, None]
    matrix = contrast * tf.matmul(mix, hue)
    size = images.shape[1]
    pixels = tf.reshape(unit_range(images), [batch, size * size, 3])
    changed = tf.matmul(pixels - 0.5, matrix, transpose_b=True) + 0.5 + brightness
    changed = tf.cast(tf.round(tf.clip_by_value(changed, 0.0, 1.0) * 255.0), tf.uint8)
    return tf.reshape(changed, [batch, size, size, 3])


def _erase(images: tf.Tensor, probability: float, seed) -> tf.Tensor:
    """Covers one rectangle of each image, with the given probability, with one grey (Zhong et al., 2020)."""
    size = images.shape[1]
    draws = tf.random.stateless_uniform([6, tf.shape(images)[0], 1], seed)
    height, width = (size * (0.15 + 0.35 * draws[i]) for i in (0, 1))
    top, left = draws[2] * (size - height), draws[3] * (size - width)
    line = tf.range(size, dtype=tf.float32)[None, :]
    in_rows = tf.logical_and(line >= top, line < top + height)
    in_columns = tf.logical_and(line >= left, line < left + width)
    covered = tf.logical_and(in_rows[:, :, None], in_columns[:, None, :])
    covered = tf.logical_and(covered, draws[4][:, :, None] < probability)
    grey = tf.cast(draws[5] * 255.0, tf.uint8)[:, :, None, None]
    return tf.where(covered[..., None], grey, images)


def decode_features(data: tf.Tensor, size: int) -> tf.Tensor:
    """Decodes a string scalar to float32 [size]; raises `tf.errors.InvalidArgumentError` for any other length."""
    fits = tf.debugging.assert_equal(tf.strings.length(data), 4 * size, "not the bytes of a feature")
    with tf.control_dependencies([fits]):
        return tf.ensure_shape(tf.io.decode_raw(data, tf.float32), [size])


def read_image(data: tf.Tensor, tower: ConfigDict, usable: tf.Tensor) -> tf.Tensor:
    """Returns uint8 [R, R, 3] or float32 [F] for training; zeros where `usable`, a bool scalar, is false."""
    if takes_features(tower):
        size = tower.feature_size
        return tf.cond(usable, lambda: decode_features(data, size), lambda: tf.zeros([size]))
    side = tower.resize
    blank = tf.zeros([side, side, 3], tf.uint8)
    return tf.cond(usable, lambda: resize_image(decode_image(data), side), lambda: blank)


def finish_images(images: tf.Tensor, tower: ConfigDict, augmentation: ConfigDict, seed: tf.Tensor) -> tf.Tensor:
    """Crops and augments pixels, deterministically in `seed` (int [2]); features stay."""
    return images if takes_features(tower) else augment_images(images, tower.image_size, augmentation, seed)


def prepare_image(data: tf.Tensor, tower: ConfigDict) -> tf.Tensor:
    """Returns uint8 [S, S, 3] or float32 [F] as evaluation takes it."""
    if takes_features(tower):
        return decode_features(data, tower.feature_size)
    return evaluation_image(decode_image(data), tower.resize, tower.image_size)


def prepared_spec(tower: ConfigDict) -> tf.TensorSpec:
    """The shape and type of what `prepare_image` returns."""
    if takes_features(tower):
        return tf.TensorSpec([tower.feature_size], tf.float32)
    return tf.TensorSpec([tower.image_size, tower.image_size, 3], tf.uint8)
