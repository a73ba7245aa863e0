"""SavedModels that are sealed: a bit that changes in the graph or in an asset is seen, as TensorFlow sees others."""

import shutil

import pytest
import tensorflow as tf

from mural_tf.encoders.hub import load_module
from mural_tf.encoders.saved_models import DIGESTS, load_saved_model, seal_graph
from mural_tf.errors import UserError


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A module whose graph holds the very numbers that it returns."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "settings.json").write_text('{"a": 1}')

    class Constant(tf.Module):
        def __init__(self):
            super().__init__()
            self.settings = tf.saved_model.Asset(str(folder / "settings.json"))
            self.number = tf.Variable(0.0)

        @tf.function(input_signature=[])
        def __call__(self):
            return tf.constant([0.15625] * 64) + self.number

    tf.saved_model.save(Constant(), str(folder / "model"))
    seal_graph(folder / "model")
    return folder / "model"


@pytest.fixture
def path(good, tmp_path):
    return shutil.copytree(good, tmp_path / "model")


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_a_constant_of_the_graph_is_seen(path):
    assert load_saved_model(path)().numpy()[0] == 0.15625
    constant = (path / "saved_model.pb").read_bytes().index(tf.constant(0.15625).numpy().tobytes())
    flip(path / "saved_model.pb", constant + 2)
    with pytest.raises(UserError, match="is damaged: saved_model.pb is not what was exported"):
        load_saved_model(path)
    with pytest.raises(UserError, match="is damaged: saved_model.pb is not what was exported"):
        load_module(str(path), "image_tower", "")
    (path / DIGESTS).unlink()  # made before there were digests: TensorFlow alone does not see it
    assert load_saved_model(path)().numpy()[0] != 0.15625


@pytest.mark.parametrize("name, message", [
    ("assets/settings.json", "assets/settings.json is not what was exported"),
    (DIGESTS, "is not what was exported"),
    ("variables/variables.data-00000-of-00001", "is not a SavedModel or is damaged"),  # TensorFlow's own checksum
    ("variables/variables.index", "is not a SavedModel or is damaged"),
])  # fmt: skip
def test_damage_elsewhere_is_one_line(path, name, message):
    flip(path / name, 3)
    with pytest.raises(UserError, match=message):
        load_saved_model(path)


@pytest.mark.parametrize("change", [
    lambda p: (p / "saved_model.pb").unlink(),
    lambda p: (p / "assets/settings.json").unlink(),
    lambda p: (p / "assets/more.txt").write_text(""),
    lambda p: (p / DIGESTS).write_bytes(b"\xff\0/../../etc/passwd" * 1000),
    lambda p: (p / "variables/variables.data-00000-of-00001").write_bytes(b""),
    lambda p: (p / "saved_model.pb").write_bytes(b"") and (p / DIGESTS).unlink(),
])  # fmt: skip
def test_missing_and_foreign_files_are_one_line(path, change):
    change(path)
    with pytest.raises(UserError, match="damaged"):
        load_saved_model(path)
