"""How a picture becomes a tower's pixels, by Hugging Face's `preprocessor_config.json`."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import check_json, json_field
from mural_tf.encoders.efficientnet import STATISTICS
from mural_tf.pretrained.keys import json_or_empty

INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
HALF = (0.5, 0.5, 0.5)
# {(mean, deviation): name of the tower's normalization}.
NAMES = {(HALF, HALF): "symmetric", **{statistics: name for name, statistics in STATISTICS.items()}}


def square(side: int) -> dict[str, int]:
    """Returns the size of a square with this side in pixels, as these files have it."""
    return {"height": side, "width": side}


def siglip_pixels(size: int) -> dict:
    """Returns the defaults of `SiglipImageProcessor`, {key: value}, for pictures of `size` pixels."""
    return {"size": square(size), "resample": 3, "image_mean": list(HALF), "image_std": list(HALF)}


def clip_pixels(size: int) -> dict:
    """Returns the defaults of `CLIPImageProcessor`, {key: value}, for pictures of `size` pixels."""
    mean, deviation = map(list, STATISTICS["clip"])
    crop = {"crop_size": square(size), "do_center_crop": True}
    return {"size": {"shortest_edge": size}, **crop, "resample": 3, "image_mean": mean, "image_std": deviation}


def configure_pixels(
    path: pathlib.Path, tower: ConfigDict, image_size: int, defaults: Mapping, as_trained: bool = False
) -> None:
    """Sets sizes, resizing and normalisation of pictures in `tower` by a preprocessor's file.

    Args:
      path: the file. Without it `processor_config.json` next to it is read, where transformers 5 writes the same.
      tower: the `image_tower` part of a configuration, which is changed.
      image_size: pixels that the model takes; 0 for any.
      defaults: {key: value} for keys that the file lacks or has as null, or for a missing file; for example
        `clip_pixels(224)`.
      as_trained: whether a SigLIP's pictures are resized as in big_vision's demo: squashed, without anti-aliasing.

    Raises:
      UserError: an unsupported setting of the file: pictures of another size or not square, another interpolation or
        scale, patches in place of squares.
    """
    values, path = _read_preprocessor(path, defaults)
    if "max_num_patches" in values:
        raise UserError(
            f"{path}: max_num_patches={values['max_num_patches']} is NaFlex's, whose pictures keep their shape, and "
            "the model takes pictures of one size: they are not of one checkpoint."
        )
    _configure_resizing(values, path, tower)
    if tower.image_size != image_size and image_size:
        raise UserError(f"{path} makes pictures of {tower.image_size} pixels, and the model takes {image_size}.")
    _configure_normalization(values, path, tower)
    if as_trained:
        tower.update(resize_mode="squash", interpolation="big_vision", jpeg="fast", normalization="symmetric")


def configure_patches(path: pathlib.Path, tower: ConfigDict) -> None:
    """Sets the number of patches, the square that holds them, and normalisation in `tower`, a NaFlex.

    `path` and `tower` are as in `configure_pixels`. Raises `UserError` for pictures that are not resized, or patches of
    another size than `tower.patch_size`.
    """
    # By default as `Siglip2ImageProcessor`.
    values, path = _read_preprocessor(path, {"resample": 2, "image_mean": list(HALF), "image_std": list(HALF)})
    patch_size = json_field(values, "patch_size", int, path, 16)
    if not json_field(values, "do_resize", bool, path, True) or patch_size != tower.patch_size:
        raise UserError(
            f"{path}: do_resize={values.get('do_resize', True)}, patch_size={patch_size}: expected pictures resized to "
            f"patches of {tower.patch_size} pixels."
        )
    interpolation = _interpolation(values, path)
    patches = json_field(values, "max_num_patches", int, path, 256)
    side = patch_size * (math.isqrt(patches) + 1)  # of a square with at least one cell more than patches
    tower.update(resize_mode="patches", interpolation=interpolation, jpeg="accurate")
    tower.update(patches=patches, resize=side, image_size=side)
    _configure_normalization(values, path, tower)


def _read_preprocessor(path: pathlib.Path, defaults: Mapping) -> tuple[dict, pathlib.Path]:
    """Returns ({key: value} of a preprocessor's file, with `defaults` for keys that it lacks, the file that was read).

    "size" and "crop_size" are {"height", "width": pixels} or {"shortest_edge": pixels}.
    """
    newer = path.with_name("processor_config.json")
    if newer.is_file() and not path.is_file():
        path = newer
    values = json_or_empty(path)
    values = json_field(values, "image_processor", dict, path, values)
    values = {**defaults, **_without_null(values)}
    for key in {"size", "crop_size"} & set(values):
        if isinstance(values[key], int):  # in older files
            values[key] = dict.fromkeys(defaults.get(key, ("height", "width")), values[key])
        size = check_json(values[key], dict, key, path)
        values[key] = check_json(_without_null(size), dict[str, int], key, path)
    return values, path


def _without_null(values: Mapping) -> dict:
    """Returns the entries whose value is not `None`."""
    return {key: value for key, value in values.items() if value is not None}


def _interpolation(values: dict, path: pathlib.Path) -> str:
    """Returns the name of the interpolation that "resample" means; raises `UserError` for another one."""
    number = json_field(values, "resample", int, path)
    if number not in INTERPOLATIONS:
        raise UserError(f"{path}: resample is {number}, expected 2 (bilinear) or 3 (bicubic).")
    return INTERPOLATIONS[number]


def _configure_resizing(values: dict, path: pathlib.Path, tower: ConfigDict) -> None:
    """Sets how pictures are resized and cropped in `tower`; `values` and `path` are `_read_preprocessor`'s.

    Raises `UserError` where pictures do not become squares of one size.
    """
    resizes = json_field(values, "do_resize", bool, path, True)
    crops = json_field(values, "do_center_crop", bool, path, False)
    size = values["size"]
    interpolation = _interpolation(values, path)
    is_squashed = set(size) != {"shortest_edge"}
    if is_squashed:
        resize = _side(values, "size", path)
    else:
        resize = size["shortest_edge"]
    image_size = resize
    if crops:
        image_size = _side(values, "crop_size", path)
    makes_squares = is_squashed or crops
    if not resizes or not makes_squares or not 0 < image_size <= resize:
        raise UserError(
            f"{path}: do_resize={resizes}, size={size}, do_center_crop={crops}, crop_size={values.get('crop_size')} do "
            "not make squares of one size out of every picture."
        )
    tower.update(
        resize_mode="squash" if is_squashed else "shorter_side",
        interpolation=interpolation,
        jpeg="accurate",
        resize=resize,
        image_size=image_size,
    )


def _side(values: dict, key: str, path: pathlib.Path) -> int:
    """Returns the side of the square in `values[key]`; raises `UserError` for another shape."""
    size = values.get(key, {})
    if set(size) != {"height", "width"} or size["height"] != size["width"]:
        raise UserError(f"{path}: {key} is {size}, expected one height and width.")
    return size["height"]


def _configure_normalization(values: dict, path: pathlib.Path, tower: ConfigDict) -> None:
    """Sets how pixel values are normalised in `tower`; `values` and `path` are `_read_preprocessor`'s.

    Raises `UserError` for another scale than [0, 1] or [-1, 1], or for a mean or deviation that is not three numbers.
    """
    factor = json_field(values, "rescale_factor", float, path, 1 / 255)
    is_scaled = json_field(values, "do_rescale", bool, path, True)
    is_normalized = json_field(values, "do_normalize", bool, path, True)
    has_offset = json_field(values, "rescale_offset", bool, path, False)
    is_normalized_again = json_field(values, "include_top", bool, path, False)
    is_bare = not is_normalized and not is_normalized_again
    if math.isclose(factor, 1 / 127.5) and is_scaled and has_offset and is_bare:  # x / 127.5 - 1
        tower.normalization = "symmetric"
    elif not math.isclose(factor, 1 / 255) or not is_scaled or has_offset or is_normalized_again:
        raise UserError(
            f"{path}: pixels times {factor:.6g} with do_rescale={is_scaled}, rescale_offset={has_offset}, "
            f"do_normalize={is_normalized}, include_top={is_normalized_again}: expected times 1/255, and no offset."
        )
    elif not is_normalized:
        tower.normalization = "none"
    else:
        mean = tuple(map(float, json_field(values, "image_mean", list[float], path)))
        deviation = tuple(map(float, json_field(values, "image_std", list[float], path)))
        is_finite = all(map(math.isfinite, mean + deviation))
        if len(mean) != 3 or len(deviation) != 3 or not is_finite or 0 in deviation:
            raise UserError(f"{path}: image_mean is {mean}, image_std {deviation}: expected three finite numbers each.")
        tower.normalization = NAMES.get((mean, deviation), "given")
        if tower.normalization == "given":
            tower.update(pixel_mean=mean, pixel_deviation=deviation)
