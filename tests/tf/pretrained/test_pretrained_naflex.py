"""SigLIP 2 NaFlex and FG-CLIP 2: transformers' numbers for pictures of any shape, and keys that are refused."""

import foreign_checkpoints as families
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from odd_pictures import saved

import mural_tf
from mural_lite.litert import pixels as lite_pixels
from mural_tf.data.images import evaluation_image, prepare_image
from mural_tf.pretrained.importers import import_weights, kind_of, starting_config

TEXTS = ["the hethe", "The THE the the he the he th e"]
SIDES = [(24, 90), (37, 53), (16, 16)]  # heights and widths; none is tall, see benchmarks/golden.py
# What transformers 5.24's `Siglip2Model` gives for `TEXTS` and `pictures()`, normalised: the first five numbers.
VECTORS = [
    [-0.1836724, -0.2487446, 0.0214038, -0.0156960, -0.0058572],
    [-0.0492718, -0.0752073, 0.3145424, 0.0348513, -0.0556847],
]
IMAGES = [
    [-0.1102544, 0.2199428, -0.2426595, 0.0208248, 0.1523359],
    [-0.0454142, -0.1030652, -0.3074588, 0.0987067, 0.3013810],
    [0.1497107, 0.0231380, 0.1374069, -0.0321986, -0.1256816],
]


def pictures():
    """Slow waves: resizing rounds few pixels otherwise."""
    arrays = []
    for height, width in SIDES:
        y, x = np.mgrid[:height, :width]
        waves = [127 + 100 * np.sin(x / (9 + channel) + y / (17 - channel) + channel) for channel in range(3)]
        arrays.append(np.stack(waves, axis=-1).astype(np.uint8))
    return arrays


def png(picture):
    return saved(PIL.Image.fromarray(picture), "PNG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return families.write_naflex(tmp_path_factory.mktemp("naflex"))


@pytest.fixture(scope="module")
def imported(folder):
    return import_weights("naflex", folder, starting_config("naflex"))


@pytest.fixture(scope="module")
def embedder(folder):
    return mural_tf.load(folder)


def test_numbers_of_transformers(folder, imported, embedder):
    assert kind_of(folder) == "naflex"
    model, config, _ = imported
    assert np.abs(embedder.encode_text(TEXTS)[:, :5] - VECTORS).max() < 1e-5
    squares = tf.stack([evaluation_image(tf.constant(picture), config.image_tower) for picture in pictures()])
    assert np.abs(model.embed_images(squares).numpy()[:, :5] - IMAGES).max() < 1e-3
    files = [png(picture) for picture in pictures()]
    assert np.abs(embedder.encode_image(files) - model.embed_images(squares)).max() < 1e-6
    assert abs(np.log(config.loss.temperature) + 2.5) < 1e-6 and config.method.bias == -7


def test_fg_clip_2_is_the_same_towers(embedder, tmp_path, caplog):
    other = families.write_naflex(tmp_path, model_type="fgclip2")
    assert kind_of(other) == "naflex"
    with caplog.at_level("WARNING"):
        loaded = mural_tf.load(other)
    assert "FG-CLIP 2's long texts, of up to 196 pieces, have weights of their own" in caplog.text
    assert "texts end after 8 pieces here" in caplog.text
    assert np.array_equal(loaded.encode_text(TEXTS), embedder.encode_text(TEXTS))


def test_patches_that_are_not_there_change_nothing(imported):
    """Whatever stands in the cells between a picture's patches and the last cell."""
    model, config, _ = imported
    tower = config.image_tower
    square = evaluation_image(tf.constant(pictures()[2]), tower).numpy()
    vector = model.embed_images(square[None])
    cells = tower.image_size // tower.patch_size
    rows, columns = (int(square[-tower.patch_size, -tower.patch_size + place, 0]) for place in (0, 1))
    assert rows * columns == 16 and cells == 5
    other = square.copy()
    other[-2 * tower.patch_size : -tower.patch_size, -tower.patch_size :] = 200  # cell 20 of 25
    assert np.array_equal(model.embed_images(other[None]), vector)
    other[0, 0] = 255
    assert np.abs(model.embed_images(other[None]) - vector).max() > 1e-4
    assert np.isfinite(model.embed_images(np.zeros_like(square)[None])).all()  # no picture


def test_squares_without_tensorflow_are_the_same(imported):
    tower = imported[1].image_tower
    for picture in pictures():
        data = png(picture)
        difference = lite_pixels.prepare(data, tower).astype(int) - prepare_image(data, tower).numpy()
        assert np.abs(difference).max() <= 1 and np.abs(difference).mean() < 0.05
