"""Pictures as squares of patches, as `mural_tf/data/patches.py` makes them, by Pillow and NumPy."""

from __future__ import annotations

import math

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

# The smallest and the largest factor of a picture's sides, and how exactly the factor is searched.
SMALLEST = 1e-6
LARGEST = 100.0
EXACT = 1e-5


def grid_of(height: int, width: int, patch_size: int, patches: int) -> tuple[int, int]:
    """Returns (rows, columns) of the largest grid of at most `patches` patches in about a picture's ratio of sides.

    `height`, `width`: of the picture; `patch_size`: side of a patch; in pixels.
    """

    def scaled_grid(factor: float) -> tuple[int, int]:
        """Returns (rows, columns) of the patches of a picture whose sides are multiplied by a factor."""
        rows, columns = (max(1, math.ceil(side * factor / patch_size)) for side in (height, width))
        return rows, columns

    # Bisection: `fitting` is always a factor whose grid is small enough.
    fitting = SMALLEST
    too_large = LARGEST
    while too_large - fitting >= EXACT:
        middle = (fitting + too_large) / 2
        if math.prod(scaled_grid(middle)) <= patches:
            fitting = middle
        else:
            too_large = middle
    return scaled_grid(fitting)


def patch_square(picture: Image.Image, tower: ConfigDict, kernel: Image.Resampling) -> np.ndarray:
    """Returns an RGB picture's patches as the cells of a square, uint8 [S, S, 3], S = `tower.image_size`.

    The first pixels of the last cell hold the numbers of rows and columns, the lower byte in red, the upper in green.
    """
    size = tower.patch_size
    side_cells = tower.image_size // size  # per side of the square
    rows, columns = grid_of(picture.height, picture.width, size, tower.patches)
    pixels = np.asarray(picture.resize((columns * size, rows * size), kernel))
    patches = pixels.reshape(rows, size, columns, size, 3).transpose(0, 2, 1, 3, 4)  # [rows, columns, size, size, 3]
    cells = np.zeros((side_cells**2, size, size, 3), np.uint8)
    cells[: rows * columns] = patches.reshape(-1, size, size, 3)
    for pixel, number in enumerate((rows, columns)):
        cells[-1, 0, pixel, :2] = number % 256, number // 256
    square = cells.reshape(side_cells, side_cells, size, size, 3).transpose(0, 2, 1, 3, 4)  # rows of pixels again
    return square.reshape(tower.image_size, tower.image_size, 3)
