"""Pictures as squares of patches, which keep their shape, for NaFlex (see `encoders/naflex.py`).

The number of rows and columns is the largest for which the picture, enlarged or made smaller by one factor and rounded
up to whole patches, has at most so many patches. The factor is found by halving an interval, as Hugging Face's
processor does, to the same numbers.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.resampling import resampled

# Factors of a picture's sides, and how exactly one is found.
SMALLEST = 1e-6
LARGEST = 100.0
EXACT = 1e-5


def grid_of(shape: tf.Tensor, patch_size: int, patches: int) -> tf.Tensor:
    """Returns how many rows and columns of patches a picture is divided into, int32 [2].

    Args:
      shape: the picture's height and width in pixels, int [2].
      patch_size: a patch's side in pixels.
      patches: how many patches there may be at most.
    """
    sides = tf.cast(shape, tf.float64)

    def grid(factor):
        return tf.maximum(tf.math.ceil(sides * factor / patch_size), 1.0)

    fitting_factor = tf.constant(SMALLEST, tf.float64)
    too_large_factor = tf.constant(LARGEST, tf.float64)
    distance = LARGEST - SMALLEST
    while distance >= EXACT:  # a Python number: the same number of steps for every picture
        factor = (fitting_factor + too_large_factor) / 2.0
        fits = tf.reduce_prod(grid(factor)) <= patches
        fitting_factor = tf.where(fits, factor, fitting_factor)
        too_large_factor = tf.where(fits, too_large_factor, factor)
        distance /= 2.0
    return tf.cast(grid(fitting_factor), tf.int32)


def patch_square(image: tf.Tensor, tower: ConfigDict) -> tf.Tensor:
    """Returns a picture, uint8 [H, W, 3], as a square of its patches, uint8 [S, S, 3]; see `encoders/naflex.py`.

    The square's cells are, row by row, the picture's patches, blank patches, and a last one whose first two pixels hold
    the numbers of rows and columns. `tower` is the configuration's `image_tower`, whose `image_size` is S.
    """
    size = tower.patch_size
    cells = tower.image_size // size  # along each side of the square
    grid = grid_of(tf.shape(image)[:2], size, tower.patches)
    rows, columns = tf.unstack(grid)
    for axis in (1, 0):
        image = resampled(image, axis, grid[axis] * size, tower.interpolation, half_up=True)
    patches = tf.reshape(image, [rows, size, columns, size, 3])
    patches = tf.reshape(tf.transpose(patches, [0, 2, 1, 3, 4]), [rows * columns, size, size, 3])
    # A number's low byte is its pixel's red, its high byte the green.
    header = tf.stack([grid % 256, grid // 256, tf.zeros_like(grid)], axis=-1)  # [2, 3]
    header = tf.cast(header, tf.uint8)[tf.newaxis, tf.newaxis]
    # A whole patch, whose first row begins with the two pixels.
    last = tf.pad(header, [[0, 0], [0, size - 1], [0, size - 2], [0, 0]])
    blank = tf.zeros([cells**2 - 1 - rows * columns, size, size, 3], tf.uint8)
    square = tf.reshape(tf.concat([patches, blank, last], axis=0), [cells, cells, size, size, 3])
    square = tf.transpose(square, [0, 2, 1, 3, 4])
    return tf.reshape(square, [tower.image_size, tower.image_size, 3])
