"""How pictures become pixels, against Pillow; and Hugging Face's preprocessor_config.json."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from mural_lite.config import base_config
from mural_tf.data.images import augment_images, evaluation_image, prepare_image, read_image
from mural_tf.encoders.efficientnet import STATISTICS, PixelNormalization
from mural_tf.export.signatures import decode_batch
from mural_tf.pretrained.pixels import clip_pixels, configure_pixels, siglip_pixels

PILLOWS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
WAYS = [(mode, interpolation) for mode in ("squash", "shorter_side") for interpolation in PILLOWS]


def tower(**changes):
    config = base_config().image_tower
    config.update(dict(resize=32, image_size=32))
    config.update(changes)
    return config


def picture(height, width, kind="noise"):
    """Noise, or squares of black and white, at whose edges a bicubic kernel overshoots."""
    draw = np.random.default_rng(height * width)
    if kind == "noise":
        return draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
    squares = draw.integers(0, 2, (height // 8 + 1, width // 8 + 1, 3)) * 255
    return np.kron(squares, np.ones((8, 8, 1)))[:height, :width].astype(np.uint8)


def by_pillow(image, config):
    """Hugging Face's steps: resize, then cut the centre; rows and columns apart, whose order is not Pillow's choice."""
    sizes = [config.resize] * 2
    if config.resize_mode == "shorter_side":
        sizes = [int(config.resize * side / min(image.size)) for side in image.size]
    (width, height), kind = sizes, PILLOWS[config.interpolation]
    image = image.convert("RGB").resize((width, image.height), kind).resize((width, height), kind)
    left, top = (width - config.image_size) // 2, (height - config.image_size) // 2
    return np.asarray(image.crop((left, top, left + config.image_size, top + config.image_size)))


def assert_close(ours, theirs):
    apart = np.abs(np.asarray(ours).astype(int) - theirs)
    assert apart.max() <= 3 and apart.mean() <= 0.5, (apart.max(), apart.mean())


@pytest.mark.parametrize("mode, interpolation", WAYS)
@pytest.mark.parametrize("resize, image_size", [(32, 32), (37, 30)])
def test_pixels_are_pillows(mode, interpolation, resize, image_size):
    config = tower(resize_mode=mode, interpolation=interpolation, resize=resize, image_size=image_size)
    make = tf.function(lambda image: evaluation_image(image, config), [tf.TensorSpec([None, None, 3], tf.uint8)])
    sizes = [(1, 1), (2, 3), (31, 33), (33, 31), (32, 32), (32, 71), (7, 300), (301, 97), (129, 257), (37, 37)]
    for height, width in sizes:
        for kind in ("noise", "squares"):
            image = picture(height, width, kind)
            assert_close(make(image), by_pillow(Image.fromarray(image), config))


def encoded(image, image_format, **options):
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def files():
    """Bytes, and the picture that a viewer shows."""
    y, x = np.mgrid[:61, :90]
    waves = np.stack([127.5 + 127.5 * np.sin(x / 9 + i) * np.cos(y / 7) for i in range(4)], axis=-1).astype(np.uint8)
    rgb, rgba = Image.fromarray(waves[..., :3]), Image.fromarray(waves, "RGBA")
    white = Image.new("RGBA", rgba.size, "white")
    yield "alpha", encoded(rgba, "PNG"), Image.alpha_composite(white, rgba)
    quality = dict(quality=100, subsampling=0)
    cmyk = encoded(rgb.convert("CMYK"), "JPEG", **quality)
    yield "cmyk", cmyk, Image.open(io.BytesIO(cmyk))
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = encoded(rgb, "JPEG", exif=exif, **quality)
    yield "exif", lying, ImageOps.exif_transpose(Image.open(io.BytesIO(lying)))


@pytest.mark.parametrize("mode, interpolation", WAYS)
def test_pixels_of_odd_files_are_pillows_in_memory_and_exported(mode, interpolation):
    config = tower(resize_mode=mode, interpolation=interpolation, jpeg="accurate", image_size=28)
    _, contents, shown = zip(*files())
    exported, readable = tf.function(lambda data: decode_batch(data, config))(tf.constant([*contents, b"none"]))
    assert readable.numpy().tolist() == [True, True, True, False]
    for data, image, row in zip(contents, shown, exported):
        np.testing.assert_array_equal(row, prepare_image(tf.constant(data), config))
        assert_close(row, by_pillow(image, config))


@pytest.mark.parametrize("height, width", [(40, 51), (51, 40), (224, 224), (9, 30)])
def test_defaults_and_big_vision_are_tensorflows(height, width):
    image, config = picture(height, width), tower(resize=40, image_size=33)
    resized = tf.image.resize(image, [40, 40], antialias=True)
    expected = tf.cast(tf.round(resized), tf.uint8)[3:36, 3:36]
    np.testing.assert_array_equal(evaluation_image(tf.constant(image), config), expected)
    config = tower(resize=40, image_size=40, interpolation="big_vision")
    resized = tf.image.resize(image, [40, 40], method="bilinear", antialias=False)
    expected = tf.cast(tf.clip_by_value(resized, 0, 255), tf.uint8)
    np.testing.assert_array_equal(evaluation_image(tf.constant(image), config), expected)


def test_training_reads_the_square_in_the_centre_and_crops_it():
    config = tower(resize_mode="shorter_side", interpolation="bicubic", image_size=24)
    data = encoded(Image.fromarray(picture(50, 141)), "PNG")
    read = read_image(tf.constant(data), config, tf.constant(True))
    assert_close(read, by_pillow(Image.open(io.BytesIO(data)), tower(**{**config, "image_size": 32})))
    augmentation = base_config().augmentation
    augmentation.flip = False
    crop = augment_images(read[tf.newaxis], config.image_size, augmentation, tf.constant([1, 2], tf.int64))[0].numpy()
    windows = np.lib.stride_tricks.sliding_window_view(read, (24, 24, 3)).reshape(-1, 24, 24, 3)
    assert any(np.array_equal(window, crop) for window in windows)


@pytest.mark.parametrize("kind", ["clip", "given", "imagenet"])
def test_normalisation_is_mean_and_deviation(kind):
    mean, deviation = STATISTICS.get(kind, ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    config = tower(normalization=kind, pixel_mean=(0.1, 0.2, 0.3), pixel_deviation=(0.4, 0.5, 0.6))
    images = np.random.default_rng(0).random((2, 3, 3, 3), np.float32)
    for training in (False, True):
        out = PixelNormalization(config, dtype="float32")(images, training=training)
        np.testing.assert_allclose(out, (images - np.array(mean)) / np.array(deviation), atol=1e-6)


def configured(folder, values, default=clip_pixels, size=224, name="preprocessor_config.json", **options):
    if values is not None:
        (folder / name).write_text(json.dumps(values))
    config = base_config().image_tower
    configure_pixels(folder / "preprocessor_config.json", config, size, default(size), **options)
    fields = ("resize", "image_size", "resize_mode", "interpolation", "normalization")
    assert config.jpeg == ("fast" if config.interpolation == "big_vision" else "accurate")
    return tuple(config[field] for field in fields), config


CLIP = (224, 224, "shorter_side", "bicubic", "clip")
SIGLIP = (224, 224, "squash", "bicubic", "symmetric")


@pytest.mark.parametrize("default, values, expected", [
    (clip_pixels, None, CLIP),
    (siglip_pixels, None, SIGLIP),
    (clip_pixels, {"size": 224, "crop_size": 224, "feature_extractor_type": "CLIPFeatureExtractor"}, CLIP),
    (clip_pixels, {"size": {"shortest_edge": 256}, "resample": 2}, (256, 224, "shorter_side", "bilinear", "clip")),
    (clip_pixels, {"size": {"height": 224, "width": 224, "shortest_edge": None}, "do_center_crop": False,
                   "crop_size": None}, (224, 224, "squash", "bicubic", "clip")),
    (siglip_pixels, {"resample": 2}, (224, 224, "squash", "bilinear", "symmetric")),
    (siglip_pixels, {"do_normalize": False}, (*SIGLIP[:4], "none")),
    (siglip_pixels, {"do_normalize": False, "rescale_factor": 1 / 127.5, "rescale_offset": True}, SIGLIP),
    (siglip_pixels, dict(zip(("image_mean", "image_std"), STATISTICS["imagenet"])), (*SIGLIP[:4], "imagenet")),
])  # fmt: skip
def test_preprocessor_config(tmp_path, default, values, expected):
    assert configured(tmp_path, values, default)[0] == expected


def test_other_statistics_the_whole_processor_and_as_trained(tmp_path):
    config = configured(tmp_path, {"image_mean": [0, 0.1, 0.2], "image_std": [1, 1, 0.5]})[1]
    assert (config.normalization, config.pixel_mean, config.pixel_deviation) == ("given", (0, 0.1, 0.2), (1, 1, 0.5))
    as_trained = configured(tmp_path, {"resample": 3}, siglip_pixels, as_trained=True)[0]
    assert as_trained == (224, 224, "squash", "big_vision", "symmetric")
    (tmp_path / "preprocessor_config.json").unlink()  # as transformers 5 saves
    whole = {"image_processor": {"resample": 2}, "processor_class": "SiglipProcessor"}
    assert configured(tmp_path, whole, siglip_pixels, name="processor_config.json")[0][3] == "bilinear"
