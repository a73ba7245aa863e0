"""What importers of foreign checkpoints refuse, in one line each: the call, the words that must occur."""

import io
import types
import zipfile

import foreign_weights as foreign
import numpy as np
import pytest
import tensorflow as tf
from refusals import assert_refused
from test_pretrained_align import small_config
from test_pretrained_forms import POOLING, PROMPTS, change_json, settings_of

import mural_tf
from mural_tf.pretrained import efficientnet
from mural_tf.pretrained.importers import configure, starting_config
from mural_tf.pretrained.torch_file import open_torch


def too_many_positions(folder):
    config = small_config()
    config.text_tower.max_length = 97
    configure("align", foreign.write_align(folder), config)


def pooling_without_the_prompt(folder):
    foreign.write_sentences(folder)
    change_json(folder / POOLING, include_prompt=False)
    settings_of(folder)  # without a prompt it is the same
    change_json(folder / PROMPTS, prompts={"query": "query: "})
    settings_of(folder)


def large_array(folder):
    """An npz that claims more than it holds."""
    header = io.BytesIO()
    claimed = {"descr": "<f4", "fortran_order": False, "shape": (10**11, 8)}
    np.lib.format.write_array_header_1_0(header, claimed)
    with zipfile.ZipFile(folder / "siglip.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("params/txt/Embed_0/embedding.npy", header.getvalue() + bytes(64))
    configure("siglip", folder / "siglip.npz", starting_config("siglip"))


def keras_file(content):
    def call(folder):
        if content is not None:
            (folder / "a.h5").write_bytes(content)
        configure("efficientnet", folder / "a.h5", small_config())

    return call


def dense_network(folder):
    path = foreign.write_keras_h5(folder / "dense.h5", {"dense/kernel:0": np.zeros((3, 2)), "dense/bias:0": [0, 0]})
    tower = types.SimpleNamespace(variables=[tf.Variable(np.zeros((3, 3, 3, 32)), name="stem_conv/kernel")])
    efficientnet.load_weights(path, tower)


REFUSALS = {
    "too many positions": (too_many_positions, ["max_length=97", "the weights have 96 positions"]),
    "pooling without the prompt": (pooling_without_the_prompt, ["include_prompt is false"]),
    "an npz with a large array": (large_array, ["is said to be [100000000000, 8]", "bytes are there"]),
    "a single tower": (
        lambda folder: mural_tf.load(foreign.write_bert(folder)), ["cannot be used alone", "import it into a workdir"]),
    "a broken file of Keras": (keras_file(b"broken"), ["not an HDF5 file of Keras weights or is damaged"]),
    "no file of Keras": (keras_file(None), ["a.h5 does not exist"]),
    "another network": (dense_network, ["missing (stem_conv/kernel)", "2 unexpected (dense/bias, dense/kernel)"]),
    "no file of PyTorch": (lambda folder: open_torch(folder / "x.pth"), ["does not exist"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name, tmp_path):
    assert_refused(*REFUSALS[name], tmp_path)
