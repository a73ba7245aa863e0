"""Folders of Sentence-Transformers: the numbers of that library, and modules that are refused."""

import foreign_weights as foreign
import numpy as np
import pytest
import tensorflow as tf

import mural_tf
from mural_lite.config import base_config
from mural_tf.encoders.by_length import encode_by_length
from mural_tf.pretrained.importers import import_weights
from mural_tf.runs.import_pretrained import import_into_workdir
from mural_tf.text.word_pieces import WordPieceTokenizer

TEXTS = ["a red balloon on the photo.", "Paris cat", "", "the green cats of the cat , photo"]
# What sentence-transformers with PyTorch gives for `write_sentences`, normalised: first two texts, first five numbers.
FOLDERS = [  # the tower, its pooling, the layers above it, the numbers
    ("distilbert", "mean", (("Identity", 20, False),),
     [[-0.2816289, 0.1298868, 0.2669733, 0.2435981, 0.0524018],
      [-0.1605901, -0.0137709, 0.4001782, 0.3848688, 0.0725488]]),
    ("bert", "cls", (),
     [[0.3576927, 0.1408809, 0.0946552, 0.0096144, 0.3839607],
      [0.2966005, 0.1808548, 0.2193561, 0.0080292, 0.3814798]]),
    ("bert", "mean", (("Tanh", 32, True),),
     [[0.158754, 0.2071825, -0.0310707, -0.1962136, -0.2152456],
      [0.0930394, 0.144948, -0.2011473, -0.0418325, -0.1953311]]),
    ("bert", "cls", (("Tanh", 32, True), ("Identity", 20, True)),
     [[-0.1181602, 0.0561615, 0.072765, 0.2756604, 0.1572045],
      [0.091967, 0.196463, -0.0907481, 0.2792785, 0.0104055]]),
]  # fmt: skip


def text_config():
    config = base_config()
    config.model, config.image_tower.name = "labse", "none"
    config.text_tower.precision = "float32"
    return config


@pytest.mark.parametrize("kind, pooling, dense, expected", [
    FOLDERS[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in FOLDERS[1:3]), FOLDERS[3]
])  # fmt: skip
def test_numbers_of_sentence_transformers(tmp_path, kind, pooling, dense, expected):
    folder = foreign.write_sentences(tmp_path, kind, pooling, dense)
    model, config, pieces = import_weights("sentences", folder, text_config())
    tokens = WordPieceTokenizer(pieces, max_length=config.text_tower.max_length)(TEXTS)
    embeddings = model.embed_texts(tokens).numpy()
    assert config.text_tower.max_length == 16
    assert np.abs(embeddings[:2, :5] - expected).max() < 1e-5


def test_packed_texts_have_the_same_mean(tmp_path):
    model, *_ = import_weights("sentences", foreign.write_sentences(tmp_path), text_config())
    tokens = {name: tf.constant(ids) for name, ids in foreign.random_tokens(len(foreign.PIECES)).items()}
    packed = encode_by_length(model.text_encoder, tokens, 2, training=False)
    assert np.abs(packed - model.text_encoder(tokens)).max() < 1e-5


def test_folder_is_loaded_as_it_is_and_imported(tmp_path, eager):
    folder = foreign.write_sentences(tmp_path / "folder")
    found = mural_tf.load(folder).encode_text(TEXTS)
    import_into_workdir("sentences", folder, tmp_path / "workdir")
    assert found.shape == (4, 20)
    assert np.abs(mural_tf.load(tmp_path / "workdir").encode_text(TEXTS) - found).max() == 0
