"""Decoding, resizing, cropping and augmentation of images, all in TensorFlow's graph.

ALIGN's input as [ETCL] gives it: resize to 346 x 346 without keeping the aspect, then a random crop of 289 and a flip
in training, the centre crop in evaluation. All sizes are configuration, and so is the way of resizing: with
`resize_mode="shorter_side"` training reads the square in the centre, and crops of that. Pixels stay uint8 until the
model divides by 255, so that a batch travels to the accelerator in a quarter of the bytes.

Instead of an encoded image, records may hold features that were computed before (`ingest/features.py`), raw
little-endian float32 numbers: they are read, batched and evaluated like images, but not augmented.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.config import takes_features
from mural_lite.files import MAX_PIXELS
from mural_tf.data.patches import patch_square
from mural_tf.data.resampling import resampled, to_uint8
from mural_tf.encoders.layers import unit_range

# How the files begin.
JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"


def decode_image(data: tf.Tensor, jpeg: str = "fast") -> tf.Tensor:
    """Decodes one JPEG or PNG, a string scalar, to uint8 RGB [H, W, 3].

    Grey becomes RGB, transparent pixels go on white, and a JPEG is turned upright as its EXIF data say.

    Args:
      data: the file's bytes; `mural_lite.pictures.for_the_encoder` makes JPEG or PNG of other formats.
      jpeg: `image_tower.jpeg`: "accurate" gives a JPEG's pixels as Pillow does, "fast" as TensorFlow's default.

    Raises:
      tf.errors.InvalidArgumentError: the bytes are of another format or damaged, or claim more than `MAX_PIXELS`,
        which are not decoded.
    """
    is_jpeg = _begins_with(data, JPEG)
    # "", which no decoder takes, replaces bytes that claim too many pixels. An assertion would have a side effect: such
    # graphs are run more slowly.
    data = tf.where(claimed_pixels(data, is_jpeg) <= MAX_PIXELS, data, "")
    image = tf.cond(is_jpeg, lambda: _decode_jpeg(data, jpeg), lambda: _decode_png(data))
    return tf.ensure_shape(image, [None, None, 3])


def claimed_pixels(data: tf.Tensor, is_jpeg: tf.Tensor) -> tf.Tensor:
    """Returns height times width, an int64 scalar, by the header of a JPEG or PNG; for other files `MAX_PIXELS` + 1.

    Args:
      data: the file's bytes, a string scalar.
      is_jpeg: whether they begin as a JPEG does, a bool scalar.

    Raises:
      tf.errors.InvalidArgumentError: a JPEG's header is cut off.
    """

    def png_pixels():
        """Returns a PNG's height times width; `MAX_PIXELS` + 1 for bytes that do not begin as a PNG."""
        # After 8 bytes as in `PNG` come a chunk's length and name, 4 bytes each, and then width and height.
        header = tf.strings.substr(data, 0, 24)
        padded = tf.strings.join([header, tf.constant(bytes(24))])  # a file can be shorter than its header
        width_and_height = tf.strings.substr(padded, 16, 8)  # 4 bytes each, the highest first
        sides = tf.io.decode_raw(width_and_height, tf.int32, little_endian=False, fixed_length=8)
        return tf.where(_begins_with(data, PNG), product(sides), MAX_PIXELS + 1)

    def jpeg_pixels():
        return product(tf.io.extract_jpeg_shape(data)[:2])

    def product(sides):
        return tf.reduce_prod(tf.cast(sides, tf.int64))

    return tf.cond(is_jpeg, jpeg_pixels, png_pixels)


def _begins_with(data: tf.Tensor, start: bytes) -> tf.Tensor:
    """Whether `data`, a string scalar, begins with the bytes `start`: a bool scalar."""
    return tf.equal(tf.strings.substr(data, 0, len(start)), start)


def _decode_png(data: tf.Tensor) -> tf.Tensor:
    """Decodes a PNG, a string scalar, to uint8 RGB [H, W, 3], transparent pixels on white."""
    # Asked for alpha, the decoder also gives it to files that call one colour transparent, by a chunk tRNS.
    image = tf.io.decode_png(data, channels=4)
    is_opaque = tf.reduce_all(tf.equal(image[..., 3], 255))
    return tf.cond(is_opaque, lambda: image[..., :3], lambda: _on_white(image))


def _on_white(image: tf.Tensor) -> tf.Tensor:
    """Returns uint8 [H, W, 3]: an image with alpha, uint8 [H, W, 4], laid on white."""
    colors = tf.cast(image[..., :-1], tf.float32)
    alpha = unit_range(image[..., -1:])
    return tf.cast(tf.round(colors * alpha + 255.0 * (1.0 - alpha)), tf.uint8)


def _decode_jpeg(data: tf.Tensor, jpeg: str) -> tf.Tensor:
    """Decodes a JPEG, a string scalar, to uint8 RGB [H, W, 3], upright; `jpeg` as in `decode_image`."""
    dct_method = "INTEGER_ACCURATE" if jpeg == "accurate" else ""
    image = tf.io.decode_jpeg(data, 3, dct_method=dct_method)
    orientation = _orientation(data)
    return tf.cond(tf.equal(orientation, 1), lambda: image, lambda: turned_upright(image, orientation))


# EXIF data say how a JPEG is to be turned: cameras write a tag instead of turning the pixels (Exif 2.3, §4.6.4). They
# are a TIFF file, II or MM by the order of its bytes, in which the tag 0x0112 is followed by its type, SHORT or LONG,
# the count 1 and its value, 1 to 8.
_EXIF_WITHIN = 4096  # bytes of a file in which the tag is looked for; it is in the first hundreds
_EXIF = rb"\C*Exif\x00\x00(?:II\*\x00|MM\x00\*)\C*"
_LITTLE = rb"II\*\x00\C*?\x12\x01[\x03\x04]\x00\x01\x00\x00\x00([\x01-\x08])"
_BIG = rb"MM\x00\*\C*?\x01\x12\x00(?:\x03\x00\x00\x00\x01\x00|\x04\x00\x00\x00\x01\x00\x00\x00)([\x01-\x08])"
_TAG = rb"\C*?Exif\x00\x00(?:" + _LITTLE + b"|" + _BIG + rb")\C*"


def _orientation(data: tf.Tensor) -> tf.Tensor:
    """Returns the orientation in a JPEG's EXIF data, an int32 scalar from 1, upright, to 8.

    Without EXIF data, and for damaged data, it is 1: viewers show such pictures as they are.
    """
    head = tf.strings.substr(data, 0, _EXIF_WITHIN)
    head = tf.where(tf.strings.regex_full_match(head, _EXIF), head, "")  # the search for the tag takes longer
    tag_value = tf.strings.regex_replace(head, _TAG, rb"\1\2", replace_global=False)  # a byte, if there is a tag
    has_tag = tf.equal(tf.strings.length(tag_value), 1)
    orientation = tf.io.decode_raw(tag_value, tf.uint8, fixed_length=1)[0]
    return tf.where(has_tag, tf.cast(orientation, tf.int32), 1)


# How each orientation, from an unused 0 on, is turned upright: "s" swaps rows and columns, then "r" reverses the rows
# and "c" the columns. So "sc" for 6 is a quarter turn clockwise.
_TURNS = np.array(["", "", "c", "rc", "r", "s", "sc", "src", "sr"])
_AXES = np.array([[1, 0, 2] if "s" in turn else [0, 1, 2] for turn in _TURNS])
_IS_REVERSED = np.array([["r" in turn, "c" in turn] for turn in _TURNS])


def turned_upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Returns an image [H, W, C] turned and mirrored as its EXIF orientation, an int32 scalar in [1, 8], asks for."""
    transposed = tf.transpose(image, tf.gather(_AXES, orientation))
    reversed_axes = tf.boolean_mask([0, 1], tf.gather(_IS_REVERSED, orientation))
    return tf.reverse(transposed, reversed_axes)


def resize_image(image: tf.Tensor, tower: ConfigDict) -> tf.Tensor:
    """Resizes an image, uint8 [H, W, 3], to the square from which training crops: uint8 [R, R, 3].

    Args:
      image: the decoded image.
      tower: the configuration's `image_tower`, whose `resize` is R. By its `resize_mode` the square is the whole image,
        squashed, the centre of the image after its shorter side became R, or a square of patches.
    """
    return _centre_of_resized(image, tower, tower.resize)


def evaluation_image(image: tf.Tensor, tower: ConfigDict) -> tf.Tensor:
    """Resizes an image, uint8 [H, W, 3], as `resize_image` and cuts the centre out: uint8 [S, S, 3].

    S is `image_size` of `tower`, the configuration's `image_tower`.
    """
    return _centre_of_resized(image, tower, tower.image_size)


def _centre_of_resized(image: tf.Tensor, tower: ConfigDict, side: int) -> tf.Tensor:
    """Returns the centre, uint8 [side, side, 3], of an image, uint8 [H, W, 3], resized as `resize_image` says."""
    if tower.resize_mode == "patches":
        return tf.ensure_shape(patch_square(image, tower), [side, side, 3])
    resize = tower.resize
    offset = (resize - side) // 2

    def centre(square):
        return square[offset : offset + side, offset : offset + side]

    def centre_of_resized():
        """Returns the centre of the image after it was resized."""
        # Settings of Hugging Face's processors, which resize by Pillow.
        if tower.resize_mode == "shorter_side" or tower.interpolation == "bicubic":
            return _resize_as_pillow(image, tower, side)
        antialias = tower.interpolation != "big_vision"
        pixels = tf.image.resize(image, [resize, resize], antialias=antialias)
        return centre(to_uint8(pixels, tower.interpolation))

    # Most data sets are stored at one size: then there is nothing to do.
    is_resized = tf.reduce_all(tf.equal(tf.shape(image)[:2], resize))
    square = tf.cond(is_resized, lambda: centre(image), centre_of_resized)
    return tf.ensure_shape(square, [side, side, 3])


def _resize_as_pillow(image: tf.Tensor, tower: ConfigDict, side: int) -> tf.Tensor:
    """Resizes an image, uint8 [H, W, 3], with Pillow's numbers, and returns the centre, uint8 [side, side, 3].

    Each row and then each column is resampled to whole numbers of [0, 255], as in Pillow (since 13 not always in this
    order): a bicubic kernel overshoots at edges, and the clipping in between shows. Sizes and offsets are as in
    Hugging Face's processors.
    """
    shape = tf.shape(image, tf.int64)[:2]  # rows and columns, as all pairs below
    new_shape = tf.fill([2], tf.constant(tower.resize, tf.int64))
    if tower.resize_mode == "shorter_side":
        new_shape = new_shape * shape // tf.minimum(shape[0], shape[1])
    scale = tf.cast(new_shape, tf.float64) / tf.cast(shape, tf.float64)
    offset = tf.cast((new_shape - side) // 2, tf.float64)
    # Only pixels that the kernel sees are kept: a strip of 1 x 5,000 would become 224 x 1,120,000. The widest kernel,
    # the cubic one, reaches 2 pixels, of the output where that is coarser; 1 more is for rounding.
    reach = 2.0 / tf.minimum(scale, 1.0) + 1.0
    begin = tf.cast(tf.maximum(offset / scale - reach, 0.0), tf.int64)
    end = tf.minimum(tf.cast((offset + side) / scale + reach, tf.int64) + 1, shape)
    image = image[begin[0] : end[0], begin[1] : end[1]]
    translation = tf.cast(begin, tf.float64) * scale - offset
    for axis in (1, 0):
        image = resampled(image, axis, side, tower.interpolation, scale[axis], translation[axis])
    return image


def augment_images(images: tf.Tensor, image_size: int, config: ConfigDict, seed: tf.Tensor) -> tf.Tensor:
    """Crops and augments a batch of images at random: uint8 [B, R, R, 3] → uint8 [B, S, S, 3].

    Crop, shift, flip, zoom, stretch and rotation are one projective resampling; beyond the edge the border pixel is
    repeated. Crop and flip without the others copy pixels.

    Args:
      images: the batch, as `resize_image` makes its images.
      image_size: S.
      config: the configuration's `augmentation` branch; 0 or false switches a field off.
      seed: int [2]; the same seed gives the same images.
    """
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    batch = tf.shape(images)[0]
    draws = tf.unstack(tf.random.stateless_uniform([6, batch], seeds[0], -1.0, 1.0))
    if config.zoom or config.stretch or config.rotation or config.shift:
        transforms = _transforms(images.shape[1], image_size, config, draws)
        augmented = resample(images, image_size, transforms)
    else:
        augmented = _crop_and_flip(images, image_size, config.flip, draws)
    augmented.set_shape([None, image_size, image_size, 3])
    if config.color or config.hue or config.greyscale:
        augmented = _change_colors(augmented, config, seeds[1])
    if config.erase:
        augmented = _erase(augmented, config.erase, seeds[2])
    return augmented


def _crop_and_flip(images: tf.Tensor, size: int, flip: bool, draws: list[tf.Tensor]) -> tf.Tensor:
    """Returns crops at whole pixels, some of them flipped: uint8 [B, R, R, 3] → uint8 [B, size, size, 3].

    `draws` are as in `_transforms`, whose crops and flips these are in an eighth of the resampling's time.
    """
    left_draw, top_draw, *_, flip_draw = draws
    margin = (images.shape[1] - size) / 2.0
    left = tf.cast(tf.round(margin + left_draw * margin), tf.int32)[:, tf.newaxis]  # [B, 1]
    top = tf.cast(tf.round(margin + top_draw * margin), tf.int32)[:, tf.newaxis]
    rows = columns = tf.range(size)[tf.newaxis]
    if flip:
        columns = tf.where(flip_draw[:, tf.newaxis] < 0.0, columns[:, ::-1], columns)
    cropped_rows = tf.gather(images, top + rows, axis=1, batch_dims=1)  # [B, S, R, 3]
    return tf.gather(cropped_rows, left + columns, axis=2, batch_dims=1)  # [B, S, S, 3]


def resample(images: tf.Tensor, size: int, transforms: tf.Tensor) -> tf.Tensor:
    """Resamples images [B, R, R, C] to [B, size, size, C], bilinear, with the border pixel repeated beyond the edge.

    `transforms`, float32 [B, 8], lead from output to input pixels, see `_transforms`.
    """
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[size, size],
        interpolation="BILINEAR",
        fill_mode="NEAREST",
        fill_value=0.0,
    )


def _transforms(resize: int, size: int, config: ConfigDict, draws: list[tf.Tensor]) -> tf.Tensor:
    """Returns [a, b, c, d, e, f, 0, 0] for each image, [B, 8]: x_in = a x + b y + c, y_in = d x + e y + f.

    Args:
      resize: the input's side in pixels.
      size: the output's side in pixels.
      config: the configuration's `augmentation` branch.
      draws: six tensors [B] of random numbers, uniform in -1..1: for left, top, angle, zoom, stretch and flip.
    """
    left_draw, top_draw, angle_draw, zoom_draw, stretch_draw, flip_draw = draws
    margin = (resize - size) / 2.0
    reach = margin + config.shift * size
    left = margin + left_draw * reach
    top = margin + top_draw * reach
    angle = angle_draw * config.rotation * math.pi / 180.0
    zoom = 1.0 + zoom_draw * config.zoom
    stretch = 1.0 + stretch_draw * config.stretch
    mirror = tf.ones_like(zoom)
    if config.flip:
        mirror = tf.where(flip_draw < 0.0, -1.0, 1.0)
    scale_x = mirror / (zoom * stretch)  # input pixels per output pixel: a zoom above 1 enlarges the picture
    scale_y = stretch / zoom
    # A rotation of the scaled output pixels about the crop's centre, which stays in its place: hence c and f.
    a = scale_x * tf.cos(angle)
    b = -scale_y * tf.sin(angle)
    d = scale_x * tf.sin(angle)
    e = scale_y * tf.cos(angle)
    centre = (size - 1) / 2.0
    c = left + centre - (a + b) * centre
    f = top + centre - (d + e) * centre
    zero = tf.zeros_like(a)
    return tf.stack([a, b, c, d, e, f, zero, zero], axis=1)


def _change_colors(images: tf.Tensor, config: ConfigDict, seed) -> tf.Tensor:
    """Changes hue, saturation, contrast and brightness of each image, uint8 [B, S, S, 3], by one linear map of RGB.

    `seed` is int [2]. For the strength `config.color` saturation is within 1 ± strength, contrast within 1 ± strength
    / 2, brightness within ± 0.3 strength; hue turns by up to `config.hue` degrees, and the share `config.greyscale`
    becomes grey.
    """
    batch = tf.shape(images)[0]
    strength = config.color
    draws = tf.random.stateless_uniform([5, batch], seed, -1.0, 1.0)
    saturation_draw, hue_draw, contrast_draw, brightness_draw, grey_draw = tf.unstack(draws)  # [B] each
    is_grey = (grey_draw + 1.0) / 2.0 < config.greyscale
    saturation = tf.where(is_grey, 0.0, 1.0 + strength * saturation_draw)
    angle = hue_draw * config.hue * math.pi / 180.0
    contrast = (1.0 + 0.5 * strength * contrast_draw)[:, None, None]  # [B, 1, 1]
    brightness = (0.3 * strength * brightness_draw)[:, None, None]  # [B, 1, 1]
    matrix = contrast * tf.matmul(_saturation_matrix(saturation), _hue_matrix(angle))  # [B, 3, 3]
    size = images.shape[1]
    pixels = tf.reshape(unit_range(images), [batch, size * size, 3])
    changed = tf.matmul(pixels - 0.5, matrix, transpose_b=True) + 0.5 + brightness  # contrast about the middle grey
    changed = tf.cast(tf.round(tf.clip_by_value(changed, 0.0, 1.0) * 255.0), tf.uint8)
    return tf.reshape(changed, [batch, size, size, 3])


def _saturation_matrix(saturation: tf.Tensor) -> tf.Tensor:
    """Returns the maps of RGB for saturations [B], [B, 3, 3]: the identity for 1, luminance in every channel for 0."""
    luminance = tf.constant([0.299, 0.587, 0.114])  # of red, green and blue (ITU-R BT.601)
    to_grey = tf.tile(luminance[None, :], [3, 1])  # [3, 3]
    saturation = saturation[:, None, None]  # [B, 1, 1]
    return saturation * tf.eye(3) + (1.0 - saturation) * to_grey


def _hue_matrix(angle: tf.Tensor) -> tf.Tensor:
    """Returns the rotations of RGB about the grey axis, (1, 1, 1) / √3, by angles [B] in radians: [B, 3, 3]."""
    # Rodrigues' formula: cos · (1 - a aᵀ) + a aᵀ + sin · (a ×), for the axis a.
    onto_axis = tf.fill([3, 3], 1.0 / 3.0)
    cross = tf.constant([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], tf.float32) / math.sqrt(3.0)
    angle = angle[:, None, None]  # [B, 1, 1]
    return tf.cos(angle) * (tf.eye(3) - onto_axis) + onto_axis + tf.sin(angle) * cross


def _erase(images: tf.Tensor, probability: float, seed) -> tf.Tensor:
    """Covers a rectangle of each image, uint8 [B, S, S, 3], with one grey, with the given probability.

    Random erasing, Zhong et al., 2020; here a rectangle's sides are 15% to 50% of the image's. `seed` is int [2].
    """
    size = images.shape[1]
    draws = tf.random.stateless_uniform([6, tf.shape(images)[0], 1], seed)
    height_draw, width_draw, top_draw, left_draw, erasing_draw, grey_draw = tf.unstack(draws)  # [B, 1] each
    height = size * (0.15 + 0.35 * height_draw)
    width = size * (0.15 + 0.35 * width_draw)
    top = top_draw * (size - height)
    left = left_draw * (size - width)
    positions = tf.range(size, dtype=tf.float32)[None, :]  # [1, S], of rows and of columns
    in_rows = (positions >= top) & (positions < top + height)  # [B, S]
    in_columns = (positions >= left) & (positions < left + width)  # [B, S]
    is_erased = erasing_draw[:, :, None] < probability  # [B, 1, 1]
    is_covered = in_rows[:, :, None] & in_columns[:, None, :] & is_erased  # [B, S, S]
    grey = tf.cast(grey_draw * 255.0, tf.uint8)[:, :, None, None]  # [B, 1, 1, 1]
    return tf.where(is_covered[..., None], grey, images)


def decode_features(data: tf.Tensor, size: int) -> tf.Tensor:
    """Decodes an image's features, a string scalar of `size` little-endian float32 numbers, to float32 [size].

    Raises `tf.errors.InvalidArgumentError` for a string of another length.
    """
    fits = tf.debugging.assert_equal(tf.strings.length(data), 4 * size, "not the bytes of a feature")  # 4 bytes each
    with tf.control_dependencies([fits]):
        return tf.ensure_shape(tf.io.decode_raw(data, tf.float32), [size])


def read_image(data: tf.Tensor, tower: ConfigDict, usable: tf.Tensor) -> tf.Tensor:
    """Decodes an image for training: returns uint8 [R, R, 3], as `resize_image`, or its features, float32 [F].

    Args:
      data: an encoded image or features, a string scalar.
      tower: the configuration's `image_tower`, which says whether the model takes features.
      usable: bool scalar; where it is false, `data` is not decoded, and zeros are returned.

    Raises:
      tf.errors.InvalidArgumentError: `data` does not decode.
    """
    if takes_features(tower):
        size = tower.feature_size
        return tf.cond(usable, lambda: decode_features(data, size), lambda: tf.zeros([size]))

    def resized_image():
        image = decode_image(data, tower.jpeg)
        return resize_image(image, tower)

    blank = tf.zeros([tower.resize, tower.resize, 3], tf.uint8)
    return tf.cond(usable, resized_image, lambda: blank)


def prepare_image(data: tf.Tensor, tower: ConfigDict) -> tf.Tensor:
    """Decodes an image for evaluation: returns uint8 [S, S, 3], as `evaluation_image`, or its features, float32 [F].

    Arguments and errors are as in `read_image`.
    """
    if takes_features(tower):
        return decode_features(data, tower.feature_size)
    return evaluation_image(decode_image(data, tower.jpeg), tower)


def prepared_spec(tower: ConfigDict) -> tf.TensorSpec:
    """Returns the shape and type of the result of `prepare_image`; `tower` is the configuration's `image_tower`."""
    if takes_features(tower):
        return tf.TensorSpec([tower.feature_size], tf.float32)
    return tf.TensorSpec([tower.image_size, tower.image_size, 3], tf.uint8)
