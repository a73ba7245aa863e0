"""Pictures as squares of patches, as `mural_tf/data/patches.py` makes them, by Pillow and NumPy."""

from __future__ import annotations

import math

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

# The smallest and the largest factor of a picture's sides, and how exactly the factor is found.
SMALLEST = 1e-6
LARGEST = 100.0
EXACT = 1e-5


def grid_of(height: int, width: int, patch_size: int, patches: int) -> tuple[int, int]:
    """Returns (rows, columns) of the patches that a picture becomes, the most that `patches` allow in its ratio."""

    def grid(factor: float) -> tuple[int, int]:
        """Returns (rows, columns) of the patches of a picture whose sides are multiplied by a factor."""
        rows, columns = (max(1, math.ceil(side * factor / patch_size)) for side in (height, width))
        return rows, columns

    least = SMALLEST
    most = LARGEST
    while most - least >= EXACT:
        factor = (least + most) / 2
        if math.prod(grid(factor)) <= patches:
            least = factor
        else:
            most = factor
    return grid(least)


def patch_square(picture: Image.Image, tower: ConfigDict, kernel: Image.Resampling) -> np.ndarray:
    """Returns an RGB picture's patches, uint8 [S, S, 3], S = `tower.image_size`; the last cell holds their numbers."""
    size = tower.patch_size
    cells = tower.image_size // size
    rows, columns = grid_of(picture.height, picture.width, size, tower.patches)
    pixels = np.asarray(picture.resize((columns * size, rows * size), kernel))
    square = np.zeros((cells**2, size, size, 3), np.uint8)
    patches = pixels.reshape(rows, size, columns, size, 3).transpose(0, 2, 1, 3, 4)
    square[: rows * columns] = patches.reshape(-1, size, size, 3)
    for pixel, number in enumerate((rows, columns)):
        square[-1, 0, pixel, :2] = number % 256, number // 256
    square = square.reshape(cells, cells, size, size, 3).transpose(0, 2, 1, 3, 4)
    return square.reshape(tower.image_size, tower.image_size, 3)
