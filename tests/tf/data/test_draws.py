"""Random draws: by loops over the same numbers, and as earlier runs drew them, which a run goes on with."""

import math

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from test_images import claiming, encoded, exif_segment, pictures, segment, settings, tower, with_segments

from mural_lite.litert import patches as lite
from mural_tf.data import images as images_module
from mural_tf.data.images import augment_images, decode_features, prepare_image, prepared_spec, read_image
from mural_tf.data.patches import grid_of, patch_square
from mural_tf.data.resampling import resampled, to_uint8
from mural_tf.data.streams.captions import _place_count, mask_tokens
from mural_tf.data.streams.image_groups import draw_captions
from mural_tf.data.streams.text_text import draw_across_languages, language_pairs
from mural_tf.data.streams.triples import swap_texts
from mural_tf.data.streams.views import augment_views, blur

SEED = tf.constant([1, 2], tf.int64)
DRAWS = np.random.default_rng(3).uniform(-1, 1, [6, 5]).astype(np.float32)
EVERY = dict(flip=True, rotation=40.0, zoom=0.3, stretch=0.2, shift=0.1, color=0.6, hue=50.0, greyscale=0.3, erase=0.7)


def drawing(draws):
    """A patch of `tf.random.stateless_uniform` that checks the shape and gives these numbers."""

    def uniform(shape, *_):
        assert tf.convert_to_tensor(shape).numpy().tolist() == list(draws.shape)
        return tf.constant(draws, tf.float32)

    patch = pytest.MonkeyPatch()
    patch.setattr(tf.random, "stateless_uniform", uniform)
    return patch


def test_geometry_by_matrices():
    """Output pixels about their centre: mirrored and scaled, then turned, about the crop's centre in the input."""
    config = settings(**EVERY)
    found = images_module._transforms(14, 9, config, list(tf.constant(DRAWS))).numpy()
    for row, (across, down, turn, zoom, stretch, mirror) in zip(found, DRAWS.T):
        angle = np.deg2rad(40.0 * turn)
        turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        larger, wider = 1 + 0.3 * zoom, 1 + 0.2 * stretch
        scaled = np.diag([(-1 if mirror < 0 else 1) / (larger * wider), wider / larger])
        corner = 2.5 + (2.5 + 0.1 * 9) * np.array([across, down])  # of the crop
        for point in ([0, 0], [8, 0], [3, 7]):
            x, y = turned @ scaled @ (np.array(point) - 4) + 4 + corner
            a, b, c, d, e, f, *rest = row
            np.testing.assert_allclose(
                [a * point[0] + b * point[1] + c, d * point[0] + e * point[1] + f], [x, y], atol=1e-4
            )
            assert rest == [0, 0]


@pytest.mark.parametrize("flip", [False, True])
def test_a_crop_is_at_the_pixels_that_were_drawn(flip):
    images = pictures(5, 14)
    found = images_module._crop_and_flip(tf.constant(images), 9, flip, list(tf.constant(DRAWS))).numpy()
    for image, crop, draw in zip(images, found, DRAWS.T):
        left, top = (round(2.5 + 2.5 * float(number)) for number in draw[:2])
        expected = image[top : top + 9, left : left + 9]
        np.testing.assert_array_equal(crop, expected[:, ::-1] if flip and draw[5] < 0 else expected)


def test_one_grey_rectangle_by_a_loop_over_pixels():
    images = pictures(5, 20)
    draws = (DRAWS[..., None] + 1) / 2
    with_draws = drawing(draws)
    found = images_module._erase(tf.constant(images), 0.6, SEED).numpy()
    with_draws.undo()
    counts = []
    for image, covered, (high, wide, down, across, chance, grey) in zip(images, found, draws[..., 0].T):
        expected = image.copy()
        height, width = 20 * (0.15 + 0.35 * high), 20 * (0.15 + 0.35 * wide)
        top, left = down * (20 - height), across * (20 - width)
        for y in range(20):
            for x in range(20):
                if chance < 0.6 and top <= y < top + height and left <= x < left + width:
                    expected[y, x] = int(grey * 255)
        np.testing.assert_array_equal(covered, expected)
        counts.append(int(np.any(covered != image, axis=-1).sum()))
    assert 0 in counts and max(counts) > 9


def test_blur_by_a_loop_over_pixels():
    images = pictures(3, 7)
    deviations = np.array([[0.3], [1.1], [1.9]])
    with_draws = drawing(deviations)
    found = blur(tf.constant(images), 1.75, SEED).numpy()
    with_draws.undo()
    for image, blurred, deviation in zip(images, found, deviations[:, 0]):
        weights = [math.exp(-0.5 * (k / (deviation + 1e-3)) ** 2) for k in range(-4, 5)]  # 2 * 1.75, rounded up
        lines = image.astype(float)
        for axis in (0, 1):
            padded = np.pad(lines, [(4, 4) if side == axis else (0, 0) for side in range(3)], mode="edge")
            moved = [np.roll(padded, -k, axis)[tuple(slice(0, 7) for _ in range(2))] for k in range(9)]
            lines = sum(weight * line for weight, line in zip(weights, moved)) / sum(weights)
        assert np.abs(blurred - lines).max() < 0.51


def waves(count=2, side=8):
    """Smooth pictures: rounding of places moves a pixel by little."""
    y, x, number = np.meshgrid(np.arange(side), np.arange(side), np.arange(count), indexing="ij")
    channels = [127 + 80 * np.sin(x / (3 + k) + number) * np.cos(y / (5 - k)) for k in range(3)]
    return tf.constant(np.stack(channels, axis=-1).transpose(2, 0, 1, 3).astype(np.uint8))


@pytest.mark.parametrize("make,expected", [
    (lambda: augment_images(waves(), 6, settings(**EVERY), SEED),
     [154, 136, 128, 104, 175, 168, 115, 79, 195, 187, 154, 177, 186, 142, 141, 138]),
    (lambda: augment_images(waves(), 6, settings(flip=True), SEED),
     [184, 165, 179, 150, 152, 97, 150, 109, 201, 197, 161, 192, 179, 144, 151, 143]),
    (lambda: augment_views(waves(), 6, settings(**EVERY, crop_area=(0.3, 0.8), blur=0.8), SEED),
     [178, 169, 181, 169, 156, 148, 166, 143, 155, 181, 188, 188, 144, 154, 161, 146,
      106, 106, 124, 124, 102, 102, 121, 121, 214, 209, 195, 200, 181, 163, 177, 171]),
    (lambda: augment_views(waves(), 6, settings(), SEED),
     [185, 160, 190, 182, 161, 123, 164, 120, 194, 198, 137, 185, 175, 144, 134, 141,
      150, 139, 195, 169, 140, 125, 167, 121, 196, 185, 159, 181, 168, 119, 145, 120]),
], ids=["every", "crop", "views", "squares"])  # fmt: skip
def test_pixels_are_as_earlier_runs_drew_them(make, expected):
    """Means of the quarters of each picture, red and blue."""
    images = make()
    images = np.concatenate(images if isinstance(images, tuple) else [images])
    quarters = images[..., ::2].reshape(-1, 2, 3, 2, 3, 2).mean(axis=(2, 4))
    np.testing.assert_allclose(quarters.ravel(), expected, atol=1)


def joined(tensors):
    return b"".join(tf.reshape(tensors, [-1]).numpy().tolist()).decode()


def test_texts_are_as_earlier_runs_drew_them():
    names = tf.constant(list("abcdefgh"))
    languages = tf.constant(["en", "de", "en", "fr", "de", "en", "cs", "fr"])
    assert joined(tf.stack(draw_captions(names, languages, 6, 2, SEED))) == "hgdbeffrcsfrdedeen"
    assert joined(tf.stack(draw_captions(names, languages, 9, 1, SEED))) == "hgbffrcsdeen"  # and empty places
    swapped = swap_texts({"text_a": names, "text_b": tf.strings.upper(names), "x": 1}, SEED)
    assert (joined(swapped["text_a"]), joined(swapped["text_b"]), swapped["x"]) == ("aBcDEfGH", "AbCdeFgh", 1)
    entries = ("text_a", "text_b", "language_a", "language_b", "group_id", "problem")
    item = {"captions": tf.io.serialize_tensor(tf.stack([names, languages])), "problem": "", "group_id": "g"}
    for second, expected in (
        ((), ["bgdecsg", "agencsg", "fhenfrg"]),
        (("fr", "cs"), ["gdcsfrg", "bhdefrg", "fgencsg"]),
    ):
        drawn = [draw_across_languages(item, second, SEED + number) for number in range(3)]
        assert [joined([one[name] for name in entries]) for one in drawn] == expected
    unusable = draw_across_languages({**item, "problem": "text that is not UTF-8"}, (), SEED)
    assert [joined(unusable[name]) for name in entries] == ["", "", "", "", "g", "text that is not UTF-8"]
    pairs = language_pairs(tf.constant(["de", "en", "fr"]), ("en", "cs", "de"))
    assert [joined(pair) for pair in pairs] == ["deen", "ende", "frde", "fren"]


def test_masks_are_as_earlier_runs_drew_them():
    """4 is [MASK]; the last piece of the first row becomes another piece."""
    ids = [[2, 10, 11, 12, 13, 14, 15, 3], [2, 20, 21, 3, 0, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0, 0]]
    tokens = {"input_word_ids": tf.constant(ids), "input_mask": tf.cast(tf.constant(ids) > 0, tf.int32), "other": 7}
    found = mask_tokens(tokens, toy_data.toy_tokenizer(), 0.5, SEED)
    assert found.pop("input_mask") is tokens["input_mask"] and found.pop("other") == 7
    assert {name: value.numpy().tolist() for name, value in found.items()} == {
        "input_word_ids": [[2, 4, 4, 12, 13, 14, 65, 3], [2, 4, 21, 3, 0, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0, 0]],
        "places": [[2, 6, 1], [1, 2, 0], [0, 1, 2]], "targets": [[11, 15, 10], [20, 21, 2], [2, 3, 0]],
        "weights": [[1, 1, 1], [1, 0, 0], [0, 0, 0]],
    }  # fmt: skip
    many = {name: tf.repeat(values, 40, axis=0) for name, values in list(tokens.items())[:2]}
    masked = mask_tokens(many, toy_data.toy_tokenizer(), 0.5, SEED)["input_word_ids"]
    assert masked.numpy().sum(axis=0).tolist() == [240, 1191, 848, 639, 385, 401, 495, 120]
    of_unknown_length = tf.function(lambda ids: _place_count(ids, 0.15), [tf.TensorSpec([1, None])])
    for length, count in {2: 1, 8: 1, 9: 2, 16: 3, 22: 3}.items():
        ids = tf.zeros([1, length])
        assert _place_count(ids, 0.15) == of_unknown_length(ids) == count


def test_the_seed_of_an_item_and_of_a_batch():
    stream = toy_data.stream_of(toy_data.toy_config("/nowhere"), toy_data.toy_tokenizer(), "image_text")
    stream.settings.__dict__["seed"] = 3
    assert stream.item_seed(tf.constant([5, 7], tf.int64)).numpy().tolist() == [3 * 2**20 + 5, 7]


def test_features_are_read_and_never_augmented():
    features = tower(name="features", feature_size=3)
    data = np.array([1.5, -2.0, 1e-9], "<f4")
    for read in (
        lambda d: decode_features(d, 3),
        lambda d: prepare_image(d, features),
        lambda d: read_image(d, features, True),
    ):
        assert read(tf.constant(data.tobytes())).numpy().tolist() == data.tolist()
        for wrong in (b"", data.tobytes()[:-4], data.tobytes() + b"1234"):
            with pytest.raises(tf.errors.InvalidArgumentError, match="not the bytes of a feature"):
                read(tf.constant(wrong))
    assert read_image(tf.constant(b""), features, tf.constant(False)).numpy().tolist() == [0, 0, 0]
    blank = read_image(tf.constant(b""), tower(resize=7, image_size=5), tf.constant(False))
    assert blank.dtype == tf.uint8 and blank.shape == (7, 7, 3) and not blank.numpy().any()
    assert prepared_spec(features) == tf.TensorSpec([3], tf.float32)
    assert prepared_spec(tower(resize=7, image_size=5)) == tf.TensorSpec([5, 5, 3], tf.uint8)


@pytest.mark.parametrize("height,width,patch,patches", [
    (24, 90, 8, 20), (37, 53, 8, 256), (16, 16, 16, 1), (1, 900, 16, 64), (900, 1, 16, 64), (5000, 3000, 16, 300),
    (1, 1, 16, 256), (300, 301, 14, 255),
])  # fmt: skip
def test_the_grid_is_the_largest_that_fits(height, width, patch, patches):
    """Rounded up, rows and columns change where a side is a whole number of patches; at most 100 times as large."""
    factors = sorted({min(k * patch / side, 100.0) for side in (height, width) for k in range(1, patches + 1)})

    def grid(factor):
        return [max(math.ceil(round(side * factor / patch, 9)), 1) for side in (height, width)]

    expected = max((factor for factor in factors if math.prod(grid(factor)) <= patches), default=0.0)
    assert grid_of(tf.constant([height, width]), patch, patches).numpy().tolist() == grid(expected)
    assert [*lite.grid_of(height, width, patch, patches)] == grid(expected)


def test_a_square_of_patches_is_the_picture_and_its_grid():
    config = tower(resize_mode="patches", patch_size=4, patches=300, image_size=72, interpolation="bilinear")
    image = pictures(1, 1200)[0][:4, :1200]
    square = patch_square(tf.constant(image), config).numpy()
    cells = square.reshape(18, 4, 18, 4, 3).transpose(0, 2, 1, 3, 4).reshape(324, 4, 4, 3)
    for number in range(300):
        np.testing.assert_array_equal(cells[number], image[:, 4 * number : 4 * number + 4])
    assert not cells[300:323].any()
    assert cells[323, 0, :2].tolist() == [[1, 0, 0], [300 - 256, 1, 0]] and cells[323].sum() == 1 + 44 + 1


# Resampling.


def kernel(x, interpolation):
    x = abs(x)
    if interpolation != "bicubic":
        return max(1 - x, 0)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("interpolation,scale,translation,size", [
    ("bilinear", None, None, 5), ("bicubic", None, None, 21), ("big_vision", None, None, 5),
    ("bilinear", None, None, 18), ("bilinear", 0.7, 0.3, 6), ("bicubic", 0.4, -0.5, 3),
])  # fmt: skip
def test_lines_are_weighted_by_a_kernel(axis, interpolation, scale, translation, size):
    image = pictures(1, 9)[0][:, :7] if axis == 0 else pictures(1, 9)[0][:7]
    place = () if scale is None else (tf.constant(scale, tf.float64), tf.constant(translation, tf.float64))
    found = resampled(tf.constant(image), axis, size, interpolation, *place).numpy()
    lines = np.moveaxis(image, axis, 0).astype(float)
    scale, translation = scale or size / 9, translation or 0.0
    reach = max(1 / scale, 1.0) if interpolation != "big_vision" else 1.0
    for row, line in enumerate(np.moveaxis(found, axis, 0)):
        centre = (row + 0.5 - translation) / scale - 0.5
        weights = np.array([kernel((k - centre) / reach, interpolation) for k in range(9)])
        expected = np.clip(np.tensordot(weights / weights.sum(), lines, 1), 0, 255)
        apart = expected - line
        assert apart.max() < (1.001 if interpolation == "big_vision" else 0.501) and apart.min() > -0.501


@pytest.mark.parametrize("interpolation,half_up,expected", [
    ("bilinear", False, [0, 2, 2, 126, 127, 255]), ("bilinear", True, [1, 2, 3, 127, 127, 255]),
    ("bicubic", False, [0, 2, 2, 126, 127, 255]), ("big_vision", False, [0, 1, 2, 126, 126, 254]),
])  # fmt: skip
def test_halves_are_rounded(interpolation, half_up, expected):
    pixels = tf.constant([0.5, 1.5, 2.5, 126.5, 126.7, 254.6])
    found = to_uint8(pixels, interpolation, half_up)
    assert found.dtype == tf.uint8 and found.numpy().tolist() == expected
    if interpolation == "bicubic":
        assert to_uint8(tf.constant([-3.0, 300.0]), interpolation).numpy().tolist() == [0, 255]


def test_pixels_that_the_kernel_sees(monkeypatch):
    """Of 1 x 5,000, made 32 times as large, its centre at 2,500: two pixels and one to either side."""
    calls = []

    def note(image, axis, side, interpolation, scale, translation):
        calls.append(
            (image.shape.as_list(), axis, side, interpolation, round(float(scale), 6), round(float(translation), 6))
        )
        return image

    monkeypatch.setattr(images_module, "resampled", note)
    config = tower(resize=32, image_size=32, resize_mode="shorter_side", interpolation="bicubic")
    images_module._resize_as_pillow(tf.zeros([1, 5000, 3], tf.uint8), config, 32)
    images_module._resize_as_pillow(tf.zeros([320, 100, 3], tf.uint8), config, 20)
    assert calls == [
        ([1, 8, 3], 1, 32, "bicubic", 32.0, 2496 * 32 - 79_984.0), ([1, 8, 3], 0, 32, "bicubic", 32.0, 0.0),
        ([78, 78, 3], 1, 20, "bicubic", 0.32, -2.48),
        ([78, 78, 3], 0, 20, "bicubic", 0.31875, -2.43125),
    ]  # fmt: skip


@pytest.mark.parametrize("more,orientation", [(0, 6), (1, 1)])
def test_exif_data_are_looked_for_in_the_first_bytes(more, orientation):
    """The value is the last of 4,096 bytes, or the first behind them."""
    begin = with_segments(segment(0xE2, b""), exif_segment(6)).index(b"\x06\0\0\0")
    data = with_segments(segment(0xE2, b"x" * (4095 - begin + more)), exif_segment(6))
    assert data[4095 + more] == 6 and int(images_module._orientation(tf.constant(data))) == orientation


def test_as_many_pixels_as_may_be_are_decoded():
    for image_format in ("JPEG", "PNG"):
        for side in (8192, 8193):
            data = tf.constant(claiming(side, image_format))
            assert int(images_module.claimed_pixels(data, tf.constant(image_format == "JPEG"))) == side**2
        with pytest.raises(tf.errors.InvalidArgumentError, match="Input is empty"):  # no decoder saw it
            images_module.decode_image(data)
    whole = tf.constant(encoded("PNG"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(images_module, "MAX_PIXELS", 13 * 7)
        assert images_module.decode_image(whole).shape == (7, 13, 3)
        patched.setattr(images_module, "MAX_PIXELS", 13 * 7 - 1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Input is empty"):
            images_module.decode_image(whole)
