"""Resizing, cropping and augmentation of images."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from mural_lite.config import base_config
from mural_tf.data import images as images_module
from mural_tf.data.images import (
    _orientation,
    augment_images,
    decode_image,
)

SEED = tf.constant([1, 2], tf.int64)


def settings(**changes):
    config = base_config().augmentation
    config.update(dict(flip=False))
    config.update(changes)
    return config


def tower(**changes):
    config = base_config().image_tower
    config.update(changes)
    return config


def pictures(count=6, side=20):
    return np.random.default_rng(0).integers(0, 255, (count, side, side, 3), dtype=np.uint8)


def test_no_augmentation_and_no_crop_change_nothing():
    images = pictures()
    np.testing.assert_array_equal(augment_images(images, 20, settings(), SEED), images)


@pytest.mark.parametrize("change", [
    dict(flip=True), dict(rotation=30.0), dict(zoom=0.5), dict(stretch=0.2), dict(shift=0.3), dict(color=0.8),
    dict(hue=120.0), dict(greyscale=1.0), dict(erase=1.0),
], ids=str)  # fmt: skip
def test_every_change_works_without_the_others(change):
    images = pictures()
    assert np.any(augment_images(images, 20, settings(**change), SEED) != images)


def test_geometry_fills_beyond_the_edge_with_the_border():
    white = np.full((4, 20, 20, 3), 255, np.uint8)
    config = settings(rotation=30.0, zoom=0.5, stretch=0.2, shift=0.3)
    np.testing.assert_array_equal(augment_images(white, 20, config, SEED), white)


def test_colours_by_a_loop_over_pictures():
    """Hue, a turn about the grey axis (Rodrigues), then saturation, contrast about the middle, brightness."""
    images = pictures()
    config = settings(color=0.8, hue=120.0, greyscale=0.3)
    draws = np.array([[0.5, -0.5, 0.3, -1.0], [1.0, -0.7, 0.0, 0.2], [0.1, -0.9, 1.0, 0.0], [0.5, 1.0, -1.0, 0.3],
                      [-0.9, 0.9, -0.3, 0.0]], np.float32)  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tf.random, "stateless_uniform", lambda *_: tf.constant(draws))
        found = images_module._change_colors(tf.constant(images[:4]), config, SEED).numpy()
    axis = np.full(3, 3**-0.5)
    beyond = set()
    for picture, changed, (saturation, turn, contrast, brightness, grey) in zip(images, found, draws.T):
        angle = np.deg2rad(120 * turn)
        x = picture.reshape(-1, 3) / 255 - 0.5
        x = x * np.cos(angle) + np.cross(axis, x) * np.sin(angle) + np.outer(x @ axis, axis) * (1 - np.cos(angle))
        share = 0.0 if (grey + 1) / 2 < 0.3 else 1 + 0.8 * saturation
        luminance = x @ [0.299, 0.587, 0.114]
        x = share * x + (1 - share) * luminance[:, None]
        exact = x * (1 + 0.4 * contrast) + 0.5 + 0.24 * brightness
        beyond |= {"dark"} if exact.min() < 0 else set()
        beyond |= {"bright"} if exact.max() > 1.1 else set()
        assert np.abs(changed.reshape(-1, 3) - np.clip(exact, 0, 1) * 255).max() < 0.51
    assert beyond == {"dark", "bright"}  # both ends are cut off somewhere


@pytest.mark.parametrize("mode,color,expected", [
    ("RGB", (10, 20, 30), (10, 20, 30)),
    ("L", 77, (77, 77, 77)),
    ("RGBA", (10, 20, 30, 0), (255, 255, 255)),  # transparent pixels go on white
    ("RGBA", (0, 100, 200, 51), (204, 224, 244)),  # alpha 0.2: 0.2 c + 0.8 · 255
    ("LA", (100, 51), (224, 224, 224)),
])  # fmt: skip
def test_every_kind_of_png_becomes_rgb(mode, color, expected):
    buffer = io.BytesIO()
    Image.new(mode, (5, 4), color).save(buffer, "PNG")
    decoded = decode_image(tf.constant(buffer.getvalue())).numpy()
    assert decoded.shape == (4, 5, 3)
    np.testing.assert_array_equal(decoded, np.broadcast_to(np.array(expected, np.uint8), (4, 5, 3)))


@pytest.mark.parametrize("mode, color", [("RGB", (10, 20, 30)), ("L", 77), ("P", 3)])
def test_a_colour_that_a_png_calls_transparent_goes_on_white(mode, color):
    """By a chunk tRNS; another colour of the same picture stays."""
    image = Image.new(mode, (5, 4), color)
    if mode == "P":
        image.putpalette([40 * number % 256 for number in range(768)])
    image.putpixel((2, 1), 0 if mode != "RGB" else (0, 0, 0))
    expected = np.full((4, 5, 3), 255)
    expected[1, 2] = image.convert("RGB").getpixel((2, 1))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=color)
    np.testing.assert_array_equal(decode_image(tf.constant(buffer.getvalue())).numpy(), expected)


def encoded(image_format="JPEG", mode="RGB", size=(13, 7), **options):
    image = Image.fromarray(pictures(1, 16)[0]).convert(mode).resize(size)
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def segment(marker, content):
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def exif_segment(orientation, order="little", kind=3, tag=0x0112, before=1):
    """EXIF data with one tag more before the orientation, which is a SHORT (kind 3) or a LONG (4)."""
    number = lambda value, size: value.to_bytes(size, order)  # noqa: E731
    entry = lambda tag, kind, value: number(tag, 2) + number(kind, 2) + number(1, 4) + value  # noqa: E731
    value = number(orientation, 4) if kind == 4 else number(orientation, 2) + b"\0\0"
    entries = [entry(0x0100 + i, 4, number(9, 4)) for i in range(before)] + [entry(tag, kind, value)]
    directory = number(len(entries), 2) + b"".join(entries) + number(0, 4)
    start = (b"II" if order == "little" else b"MM") + number(42, 2) + number(8, 4)
    return segment(0xE1, b"Exif\0\0" + start + directory)


def with_segments(*segments, after_jfif=False):
    """A JPEG with segments at its beginning, or behind the first one, JFIF's."""
    data, place = encoded(), 20 if after_jfif else 2
    return data[:place] + b"".join(segments) + data[place:]


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_as_pillow_turns_them(orientation, order):
    data = with_segments(exif_segment(orientation, order, kind=3 if orientation % 2 else 4), after_jfif=order == "big")
    lying = Image.fromarray(tf.io.decode_image(data).numpy())
    lying.getexif()[0x0112] = Image.open(io.BytesIO(data)).getexif()[0x0112]
    np.testing.assert_array_equal(decode_image(tf.constant(data)), np.array(ImageOps.exif_transpose(lying)))
    assert int(_orientation(tf.constant(data))) == orientation


@pytest.mark.parametrize("data, orientation", [
    (with_segments(segment(0xE2, b"ICC_PROFILE"), segment(0xFE, b"Exif\0\0"), exif_segment(6)), 6),
    (with_segments(segment(0xE1, b"http://ns.adobe.com/xap/1.0/"), exif_segment(8, before=300)), 8),
    (with_segments(exif_segment(6)[:4] + exif_segment(6)[4:].replace(b"II*", b"II-")), 1),  # no TIFF file
    (with_segments(exif_segment(9)), 1),
    (with_segments(exif_segment(0)), 1),
    (with_segments(exif_segment(6, tag=0x0113)), 1),
    (with_segments(segment(0xE1, b"Exif\0\0")), 1),
    (with_segments(segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff")), 1),  # a directory beyond the end
    (with_segments(segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\xff")), 1),  # 65,535 tags that are not there
])  # fmt: skip
def test_exif_data_in_odd_places_and_damaged(data, orientation):
    assert int(_orientation(tf.constant(data))) == orientation
    assert decode_image(tf.constant(data)).shape == ((13, 7, 3) if orientation >= 5 else (7, 13, 3))


@pytest.mark.parametrize("options", [
    {}, {"mode": "L"}, {"progressive": True}, {"optimize": True}, {"subsampling": 0}, {"quality": 20},
    {"image_format": "PNG"}, {"image_format": "PNG", "mode": "L"}, {"image_format": "PNG", "size": (1, 1)},
])  # fmt: skip
def test_pixels_without_exif_data_are_the_decoders(options):
    data = encoded(**options)
    plain = tf.io.decode_image(data, expand_animations=False)
    expected = tf.broadcast_to(plain, [*plain.shape[:2], 3])
    np.testing.assert_array_equal(decode_image(tf.constant(data)), expected)


def claiming(side, image_format):
    """An image whose header says that it is `side` pixels wide and high."""
    data = bytearray(encoded(image_format))
    place, size = (16, 4) if image_format == "PNG" else (data.index(b"\xff\xc0") + 5, 2)
    data[place : place + 2 * size] = 2 * side.to_bytes(size, "big")
    return bytes(data)


@pytest.mark.parametrize("image_format", ["GIF", "BMP", "WEBP", "TIFF"])
def test_other_formats_are_left_to_pillow(image_format):
    """TensorFlow's decoder of PNGs would take a GIF and a BMP, too, without a look at its size or its colours."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="Input is empty"):
        decode_image(tf.constant(encoded(image_format)))
