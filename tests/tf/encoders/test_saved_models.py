"""SavedModels that are sealed: a bit that changes in the graph or in an asset is seen, as TensorFlow sees others."""

import shutil

import pytest
import tensorflow as tf
from refusals import assert_refused

from mural_lite.errors import UserError
from mural_tf.encoders.hub import load_module
from mural_tf.encoders.saved_models import DIGESTS, load_saved_model, seal_graph


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


DATA = "variables/variables.data-00000-of-00001"
ELSEWHERE = {
    "an asset": (lambda p: flip(p / "assets/settings.json", 3), "assets/settings.json is not what was exported"),
    "the digests": (lambda p: flip(p / DIGESTS, 3), "is not what was exported"),
    "other digests": (lambda p: (p / DIGESTS).write_bytes(b"\xff\0/../../etc/passwd" * 1000), "is damaged"),
    "the numbers": (lambda p: flip(p / DATA, 3), "is damaged"),  # by TensorFlow's own checksum
    "their index": (lambda p: flip(p / "variables/variables.index", 3), "is damaged"),
    "no numbers": (lambda p: (p / DATA).write_bytes(b""), "is damaged"),
    "no graph": (lambda p: (p / "saved_model.pb").unlink(), "is damaged"),
    "no asset": (lambda p: (p / "assets/settings.json").unlink(), "is damaged"),
    "another asset": (lambda p: (p / "assets/more.txt").write_text(""), "assets/more.txt is not what was exported"),
    "an empty graph, unsealed": (
        lambda p: (p / "saved_model.pb").write_bytes(b"") and (p / DIGESTS).unlink(), "is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_damage_elsewhere_is_one_line(path, name):
    damage, words = ELSEWHERE[name]
    damage(path)
    assert_refused(load_saved_model, [str(path), words], path)
