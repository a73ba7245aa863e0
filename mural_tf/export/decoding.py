"""Decoding a batch of images in a served graph, where one that is damaged must not spoil the others."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.image_inputs import prepare_image, prepared_spec, uses_features
from mural_tf.data.untuned import untuned

# Images of a batch decoded at once, at most; the server's threads limit it further. Fixed, because tf.data's own
# choice starts at one and is forgotten after every batch.
DECODED_AT_ONCE = 16
# A few kilobytes of PNG can hold gigabytes of one colour; a decoder would fill the server's memory with them.
MAX_PIXELS = 2**26
BMP_SIDES = 18  # where a BMP's width and height stand


def decode_batch(data: tf.Tensor, tower: ConfigDict) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes string [B] as in evaluation to [B + 1, …] and bool [B], whether each could be decoded.

    Rows are uint8 [S, S, 3] or features, float32 [F], as `tower`, the `image_tower` part of a configuration, takes
    them. Those that could not be decoded, and the last one, are zeros. A graph cannot catch an error, but tf.data can
    leave out what fails.
    """
    count, spec = tf.size(data, out_type=tf.int64), prepared_spec(tower)

    def decode(index, image):
        pixels = tf.constant(0, tf.int64) if uses_features(tower) else claimed_pixels(image)
        with tf.control_dependencies([tf.debugging.Assert(pixels <= MAX_PIXELS, ["too large"])]):
            return index, prepare_image(tf.identity(image), tower)

    examples = tf.data.Dataset.from_tensor_slices((tf.range(count), data))
    decoded = examples.map(decode, num_parallel_calls=DECODED_AT_ONCE).ignore_errors()
    last = (count, tf.zeros(spec.shape, spec.dtype))  # a data set without any element would be an error
    decoded = decoded.concatenate(tf.data.Dataset.from_tensors(last)).batch(count + 1)
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    # Tuning would cost a thread a request.
    indices, images = untuned(decoded.with_options(options)).get_single_element()  # [K + 1], [K + 1, …]
    indices = indices[:, tf.newaxis]
    readable = tf.scatter_nd(indices, tf.ones_like(indices[:, 0], tf.int32), [count + 1])[:-1] > 0
    return tf.scatter_nd(indices, images, tf.stack([count + 1, *spec.shape])), readable


def claimed_pixels(data: tf.Tensor) -> tf.Tensor:
    """Returns height times width as the header of a JPEG, PNG, GIF or BMP (string scalar) has them, int64; else 0.

    Raises `tf.errors.InvalidArgumentError` if the header is cut off.
    """

    def starts_with(magic):
        return tf.equal(tf.strings.substr(data, 0, len(magic)), magic)

    def header(position, size, byteorder):
        """The product of two unsigned numbers of `size` bytes."""
        raw = tf.cast(tf.io.decode_raw(tf.strings.substr(data, position, 2 * size), tf.uint8), tf.int64)
        weights = 256 ** np.arange(size, dtype=np.int64)
        sides = tf.reshape(raw, [2, size]) * (weights[::-1] if byteorder == "big" else weights)
        sides = tf.reduce_sum(sides, axis=1)
        if position == BMP_SIDES:
            sides = tf.minimum(sides, 2**32 - sides)  # a negative height says that the rows stand from the top
        return tf.reduce_prod(sides)

    def of_jpeg():
        return tf.reduce_prod(tf.cast(tf.io.extract_jpeg_shape(data)[:2], tf.int64))

    return tf.case(
        [
            (starts_with(b"\xff\xd8"), of_jpeg),
            (starts_with(b"\x89PNG"), lambda: header(16, 4, "big")),
            (starts_with(b"GIF8"), lambda: header(6, 2, "little")),
            (starts_with(b"BM"), lambda: header(BMP_SIDES, 4, "little")),
        ],
        default=lambda: tf.constant(0, tf.int64),
    )
