"""From the bytes of a record to what the image tower takes: pixels, or features that were computed beforehand.

Features are raw little-endian float32 numbers in place of an encoded image (see features.py). They are read, batched
and evaluated like images, but not augmented.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.images import augment_images, decode_image, evaluation_image, resize_image


def uses_features(tower: ConfigDict) -> bool:
    """Tells whether the `image_tower` part of a configuration takes features."""
    return tower.name == "features"


def decode_features(data: tf.Tensor, size: int) -> tf.Tensor:
    """Decodes a string scalar to float32 [size]; raises `tf.errors.InvalidArgumentError` for any other length."""
    fits = tf.debugging.assert_equal(tf.strings.length(data), 4 * size, "not the bytes of a feature")
    with tf.control_dependencies([fits]):
        return tf.ensure_shape(tf.io.decode_raw(data, tf.float32), [size])


def read_image(data: tf.Tensor, tower: ConfigDict, usable: tf.Tensor) -> tf.Tensor:
    """Returns uint8 [R, R, 3] or float32 [F] for training; zeros where `usable`, a bool scalar, is false."""
    if uses_features(tower):
        size = tower.feature_size
        return tf.cond(usable, lambda: decode_features(data, size), lambda: tf.zeros([size]))
    side = tower.resize
    blank = tf.zeros([side, side, 3], tf.uint8)
    return tf.cond(usable, lambda: resize_image(decode_image(data), side), lambda: blank)


def finish_images(images: tf.Tensor, config: ConfigDict, seed: tf.Tensor) -> tf.Tensor:
    """Crops and augments pixels, deterministically in `seed` (int [2]); features stay."""
    if uses_features(config.image_tower):
        return images
    return augment_images(images, config.image_tower.image_size, config.augmentation, seed)


def prepare_image(data: tf.Tensor, tower: ConfigDict) -> tf.Tensor:
    """Returns uint8 [S, S, 3] or float32 [F] as evaluation takes it."""
    if uses_features(tower):
        return decode_features(data, tower.feature_size)
    return evaluation_image(decode_image(data), tower.resize, tower.image_size)


def prepared_spec(tower: ConfigDict) -> tf.TensorSpec:
    """The shape and type of what `prepare_image` returns."""
    if uses_features(tower):
        return tf.TensorSpec([tower.feature_size], tf.float32)
    return tf.TensorSpec([tower.image_size, tower.image_size, 3], tf.uint8)
