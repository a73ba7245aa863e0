"""A model with sentence pieces in a workdir, an export and what starts from them: nothing there knows the pieces."""

import numpy as np
import pytest
import tensorflow as tf
from test_sentence_pieces import SETTINGS
from toy_data import toy_config, write_toy_data

import mural_tf
from mural_lite.config import base_config
from mural_lite.config_file import load_config
from mural_tf.backend import keras
from mural_tf.data.streams.captions import mask_tokens
from mural_tf.export import serving
from mural_tf.export.saved_model import export_model
from mural_tf.models.build import build_model
from mural_tf.runs import finetune
from mural_tf.text.piece_models import model_of, read_lines
from mural_tf.training.prepare import prepare_tokenizer
from mural_tf.training.workdir import open_workdir

PIECES = [["<pad>", 0.0, "control"], ["</s>", 0.0, "control"], ["<unk>", 0.0, "unknown"]]
PIECES += [[piece, -2.0, "normal"] for piece in ("▁thing", "▁ding", "▁", "w", "v", *"0123456789")]
PIECES += [["<mask>", 0.0, "control"]]
TEXTS = ["Thing w1", "", "ding v7 " * 30, "ŋ</s>"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "spiece.model").write_bytes(model_of(PIECES, SETTINGS))
    write_toy_data(folder / "data")
    config = toy_config(folder / "data")
    config.vocabulary.update(dict(builder="sentence_pieces", layout="siglip2", cleaning=("lower_unicode",)))
    config.vocabulary.update(dict(file=str(folder / "spiece.model"), size=len(PIECES)))
    (folder / "work").mkdir()
    open_workdir(folder / "work", config)
    tokenizer = prepare_tokenizer(config, folder / "work")
    keras.utils.set_random_seed(0)
    return folder, config, tokenizer


@pytest.fixture(scope="module")
def exported(made):
    folder, config, tokenizer = made
    model = build_model(config, tokenizer.vocabulary_size)
    export_model(model, tokenizer, config, folder / "export")
    return folder, config, model, tokenizer


def test_the_workdir_keeps_the_lines(made):
    folder, config, tokenizer = made
    kept = load_config(folder / "work/config.json")
    assert read_lines(folder / "work/vocabulary.txt") == tokenizer.vocabulary == read_lines(folder / "spiece.model")
    assert kept.vocabulary.sha256 == config.vocabulary.sha256 != ""
    assert tuple(kept.vocabulary.cleaning) == ("lower_unicode",)
    again = prepare_tokenizer(kept, folder / "work")(tf.constant(TEXTS))["input_word_ids"]
    np.testing.assert_array_equal(again, tokenizer(tf.constant(TEXTS))["input_word_ids"])


@pytest.mark.slow
def test_exports_embed_as_the_model_does(exported):
    folder, _, model, tokenizer = exported
    expected = model.embed_texts(tokenizer(tf.constant(TEXTS))).numpy()
    np.testing.assert_allclose(mural_tf.load(folder / "export").encode_text(TEXTS, progress=False), expected, atol=1e-5)
    path = folder / "export/text_encoder/1"
    assert serving.unlisted_operations(path) == set()
    assert {"SentencepieceOp", "SentencepieceTokenizeOp"} <= serving.operations(path)


@pytest.mark.slow
def test_modules_and_fine_tuning_take_the_same_tokenizer(exported):
    folder, config, _, tokenizer = exported
    config, _ = finetune.starting_point(base_config(), str(folder / "export"))
    assert (config.vocabulary.builder, config.vocabulary.layout) == ("sentence_pieces", "siglip2")
    assert tuple(config.vocabulary.cleaning) == ("lower_unicode",) and config.vocabulary.size == len(PIECES)
    assert read_lines(config.vocabulary.file) == tokenizer.vocabulary
    module = tf.saved_model.load(str(folder / "export/hub/text_preprocessor"))
    for name, values in tokenizer(tf.constant(TEXTS)).items():
        np.testing.assert_array_equal(module(tf.constant(TEXTS))[name], values)
    packed = module.bert_pack_inputs([module.tokenize(tf.constant(["ding 1"]))], tf.constant(6))
    assert packed["input_word_ids"].numpy().tolist() == [[4, 5, 9, 1, 0, 0]]


def test_cloze_masks_pieces_alone(made):
    tokenizer = made[2]
    tokens = tokenizer(tf.constant(["ding v7 w1", ""]))
    masked = mask_tokens(tokens, tokenizer, 0.5, tf.constant([1, 2]))
    ids, before = masked["input_word_ids"].numpy(), tokens["input_word_ids"].numpy()
    assert (ids != before)[before <= 2].sum() == 0 and (masked["weights"].numpy().sum(axis=1) > 0).tolist() == [
        True,
        False,
    ]
