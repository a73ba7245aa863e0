"""NaFlex: SigLIP 2's vision transformer for pictures of any shape (Tschannen et al., 2025, section 2.4.2).

A picture keeps its shape, about: it is resized to rows x columns of whole patches, at most `patches` of them; padding
up to `patches`, to which no patch attends, follows. The learned positions are a square grid, which is resized
for each picture's rows and columns, bilinear and anti-aliased.

So that a picture is uint8 [S, S, 3] here as everywhere, its patches come one after the other in a square of
S / `patch_size` by as many cells, row by row; the last cell says in its first two pixels how many rows and columns of
patches the picture has (`data/patches.py` makes such squares). A square of zeros is a picture without patches.

Such squares cannot be cropped or turned, so the tower is frozen here, and its states are made once.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.efficientnet import PixelNormalization
from mural_tf.encoders.kernels import dtype_policy
from mural_tf.encoders.pooling import OnePosition
from mural_tf.encoders.towers import image_input, tower_with_projection
from mural_tf.encoders.transformer import LayerNorm, TransformerLayer, initializer, product
from mural_tf.encoders.vit import AttentionPooling, check_layers


@tf.autograph.experimental.do_not_convert  # saves a second of every start; no layer needs it
def build_naflex(config: ConfigDict) -> keras.Model:
    """Builds the tower that `config`, an `image_tower`, describes: float32 [B, S, S, 3] in [0, 1] -> float32 [B, D].

    Images are squares of patches, see above. S is `image_size`; D is `hidden_size`, or `projection` where that is set.
    Raises `UserError` for values that cannot be built, and unless the tower is `frozen` and `cached`.
    """
    _check(config)
    policy = dtype_policy(config.precision, "text")  # its work is products, as a text tower's, not convolutions
    images = image_input(config.image_size)
    pixels = PixelNormalization(config, name="normalization", dtype="float32")(images)
    patch_positions = PatchPositions(
        config.patch_size, config.patches, config.position_grid, name="patch_positions", dtype="float32"
    )
    positions, mask = patch_positions(images)
    x = FlexiblePatches(config.patch_size, config.hidden_size, name="patches", dtype=policy)([pixels, positions])
    options = dict(norm_first=True, activation=config.activation, epsilon=config.epsilon, dtype=policy)
    for index in range(config.layers):
        x = TransformerLayer(config.heads, config.feed_forward_size, name=f"block_{index}", **options)([x, mask])
    x = LayerNorm(config.epsilon, name="post_norm", dtype=policy)(x)
    x = AttentionPooling(config.heads, config.feed_forward_size, name="pooling", **options)([x, mask])
    return tower_with_projection(images, OnePosition(name="state", dtype="float32")(x), config)


class PatchPositions(keras.layers.Layer):
    """Squares of patches, [B, S, S, 3] in [0, 1] -> weights of the grid's positions, and a mask of patches.

    The weights are float32 [B, N, grid * grid], with the sum 1 for each patch; the mask is int32 [B, N], 1 on patches.
    N is `patches`, the most patches of a picture; the learned positions are a square of `grid` by `grid`.
    """

    def __init__(self, patch_size: int, patches: int, grid: int, **options):
        super().__init__(**options)
        self.patch_size = patch_size
        self.patches = patches
        self.grid = grid

    def call(self, images):
        rows, columns = self.sizes(images)
        patch_numbers = tf.range(self.patches, dtype=tf.float32)  # [N]
        mask = tf.cast(patch_numbers < rows * columns, tf.int32)  # [B, N]
        rows = tf.maximum(rows, 1.0)  # 0 in a picture without patches
        columns = tf.maximum(columns, 1.0)
        # Half a patch is added so that division never rounds to the row before.
        row = tf.floor((patch_numbers + 0.5) / columns)
        column = patch_numbers - row * columns
        by_row = self.line_weights(row, rows)  # [B, N, grid]
        by_column = self.line_weights(column, columns)  # [B, N, grid]
        weights = by_row[..., tf.newaxis] * by_column[:, :, tf.newaxis]  # [B, N, grid, grid]
        weights = tf.reshape(weights, [-1, self.patches, self.grid**2])
        return weights * tf.cast(mask, tf.float32)[..., tf.newaxis], mask

    def sizes(self, images):
        """Returns how many rows and columns of patches each picture has, float32 [B, 1] each.

        The first pixel of the last cell has the number of rows, the second of columns: red + 256 green.
        """
        corner = images.shape[1] - self.patch_size  # of the last cell
        pixels = tf.round(images[:, corner, corner : corner + 2] * 255.0)  # [B, 2, 3]
        sizes = pixels[..., 0] + 256.0 * pixels[..., 1]  # [B, 2]
        return tf.split(sizes, 2, axis=1)

    def line_weights(self, line, count):
        """Returns the weights of the grid's lines, rows or columns, for each patch's line: float32 [B, N, grid].

        They are a triangle around the patch, as wide as a line of the grid or of the picture, the wider of the two.
        `line` are the patches' rows or columns, [B, N]; `count` is how many the picture has, [B, 1].
        """
        scale = self.grid / count
        centre = (line + 0.5) * scale - 0.5  # in lines of the grid
        width = tf.maximum(scale, 1.0)[..., tf.newaxis]
        distance = tf.abs(tf.range(self.grid, dtype=tf.float32) - centre[..., tf.newaxis])
        weights = tf.maximum(1.0 - distance / width, 0.0)
        return tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=-1, keepdims=True))


class FlexiblePatches(keras.layers.Layer):
    """A projection of each patch plus its position's vector: [B, S, S, 3] and [B, N, grid * grid] -> [B, N, hidden]."""

    def __init__(self, patch_size: int, hidden_size: int, **options):
        super().__init__(**options)
        self.patch_size = patch_size
        self.hidden_size = hidden_size

    def build(self, shapes):
        def weight(name, *size, start=None):
            return self.add_weight(name, shape=size, initializer=start or initializer(self.hidden_size))

        self.kernel = weight("kernel", 3 * self.patch_size**2, self.hidden_size)
        self.bias = weight("bias", self.hidden_size, start="zeros")
        self.position_table = weight("position_embeddings", shapes[1][-1], self.hidden_size)

    def call(self, inputs):
        pixels, positions = inputs
        cells = tf.nn.space_to_depth(pixels, self.patch_size)  # [B, S / p, S / p, p * p * 3]
        count = cells.shape[1] * cells.shape[2]
        patches = tf.reshape(cells, [-1, count, cells.shape[3]])[:, : positions.shape[1]]  # the first N cells
        x = product(patches, tf.cast(self.kernel, patches.dtype), self.bias)
        return x + product(positions, tf.cast(self.position_table, positions.dtype), None)


def _check(config: ConfigDict) -> None:
    """Raises `UserError` for values that cannot be built, and unless the tower is frozen and cached."""
    check_layers(config)
    cells = config.image_size // config.patch_size  # on a side; the last of all says the sizes, in two pixels of a row
    if config.image_size % config.patch_size or cells**2 <= config.patches or config.patch_size < 2:
        raise UserError(
            f"image_tower.image_size={config.image_size} of patches of {config.patch_size}: expected whole patches, "
            f"and more of them than image_tower.patches={config.patches}, for a naflex tower."
        )
    if not config.frozen or not config.cached:
        raise UserError(
            "image_tower.name=naflex takes no crops or flips, so it is not trained here: set image_tower.frozen=True "
            "and image_tower.cached=True, and the text tower is trained under it."
        )
