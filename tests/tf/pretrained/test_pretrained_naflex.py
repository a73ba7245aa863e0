"""SigLIP 2 NaFlex and FG-CLIP 2: transformers' numbers for pictures of any shape, and keys that are refused."""

import foreign_checkpoints as families
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from odd_pictures import saved

import mural_tf
from mural_lite.errors import UserError
from mural_lite.litert import patches as lite
from mural_lite.litert import pixels as lite_pixels
from mural_tf.data.images import evaluation_image, prepare_image
from mural_tf.data.patches import grid_of
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


def test_numbers_of_transformers(folder, imported):
    assert kind_of(folder) == "naflex"
    model, config, _ = imported
    embedder = mural_tf.load(folder)
    assert np.abs(embedder.encode_text(TEXTS)[:, :5] - VECTORS).max() < 1e-5
    squares = tf.stack([evaluation_image(tf.constant(picture), config.image_tower) for picture in pictures()])
    assert np.abs(model.embed_images(squares).numpy()[:, :5] - IMAGES).max() < 1e-3
    files = [png(picture) for picture in pictures()]
    assert np.abs(embedder.encode_image(files) - model.embed_images(squares)).max() < 1e-6
    assert abs(np.log(config.loss.temperature) + 2.5) < 1e-6 and config.method.bias == -7


def test_fg_clip_2_is_the_same_towers(folder, tmp_path, caplog):
    other = families.write_naflex(tmp_path, model_type="fgclip2")
    assert kind_of(other) == "naflex"
    with caplog.at_level("WARNING"):
        mural_tf.load(other)
    assert "FG-CLIP 2's long texts, of up to 196 pieces, have weights of their own" in caplog.text
    assert "texts end after 8 pieces here" in caplog.text
    assert np.array_equal(mural_tf.load(other).encode_text(TEXTS), mural_tf.load(folder).encode_text(TEXTS))


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


@pytest.mark.parametrize("height, width, expected", [
    (100, 100, (16, 16)), (1, 1, (7, 7)), (480, 640, (14, 18)), (10, 5000, (1, 256)), (5000, 10, (256, 1)),
    (4000, 3000, (18, 14)),
])  # fmt: skip
def test_rows_and_columns_of_patches(height, width, expected):
    """Of at most 256 patches of 16 pixels, as Hugging Face's processor finds them."""
    assert tuple(grid_of(tf.constant([height, width]), 16, 256).numpy()) == expected
    assert lite.grid_of(height, width, 16, 256) == expected


def test_squares_without_tensorflow_are_the_same(imported):
    tower = imported[1].image_tower
    for picture in pictures():
        data = png(picture)
        difference = lite_pixels.prepare(data, tower).astype(int) - prepare_image(data, tower).numpy()
        assert np.abs(difference).max() <= 1 and np.abs(difference).mean() < 0.05


@pytest.mark.parametrize("values, words", [
    ({"model_type": "siglip3"}, "model_type is 'siglip3', expected siglip2 or fgclip2"),
    ({"vision_config": {"num_patches": 15}}, "vision_config.num_patches is 15, expected a square number"),
    ({"vision_config": {"vision_use_head": False}}, "vision_use_head is False, and only True is supported"),
    ({"vision_config": {"num_channels": 4}}, "num_channels is 4, and only 3"),
    ({"text_config": {"longtext_len": 196}}, "longtext_len is 196, and only null is supported"),
    ({"text_config": {"layer_scale": 1}}, "unknown key layer_scale"),
    ({"vision_config": {"patch_size": 9}}, "patch_size=8: expected pictures resized to patches of 9 pixels"),
    ({"vision_config": {**families.SIZES, "patch_size": 8, "num_patches": 25}}, "1 of another shape .vision_model.emb"),
])  # fmt: skip
def test_keys_and_tensors_are_used_or_refused(tmp_path, values, words):
    with pytest.raises(UserError, match=words):
        import_weights("naflex", families.write_naflex(tmp_path, **values), starting_config("naflex"))


def test_another_tensor_is_refused(tmp_path):
    def change(tensors):
        tensors["longtext_head.weight"] = np.zeros((2, 2), np.float32)  # FG-CLIP 2's, and this is SigLIP 2

    with pytest.raises(UserError, match="1 unexpected .longtext_head.weight"):
        import_weights("naflex", families.write_naflex(tmp_path, change), starting_config("naflex"))


def test_the_tower_is_not_trained(imported):
    from mural_tf.encoders import build_image_encoder

    tower = imported[1].image_tower.copy_and_resolve_references()
    tower.cached = False
    with pytest.raises(UserError, match="naflex takes no crops or flips, so it is not trained here"):
        build_image_encoder(tower)
