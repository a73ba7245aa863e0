"""What tokenizers and vocabularies refuse, in one line each: the call, the words that must occur."""

import pytest
import tensorflow as tf
from refusals import assert_refused
from test_language_words import LANGUAGES, TEXTS
from test_sentence_pieces import UNIGRAM, config_of, lines_of
from test_tokenizer import SPECIAL

from mural_tf.config import base_config
from mural_tf.text import build_tokenizer
from mural_tf.text.language_words import WordTokenizer, build_words
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.vocabulary_file import save_vocabulary
from mural_tf.text.word_pieces import WordPieceTokenizer


def words():
    return build_words(TEXTS, LANGUAGES, 100, True, False)


def file_of(folder, lines):
    path = folder / "vocabulary.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


LONG = ["a" * 2**20, -1.0, "normal"]
REFUSALS = {
    "no texts in a language": (
        lambda _: build_words(TEXTS, ("en", "fr"), 100, True, False), ["No training texts in fr"]),
    "no room for a word": (lambda _: build_words(TEXTS, LANGUAGES, 4, True, False), ["size=4", "no room"]),
    "other languages": (lambda _: WordTokenizer(words(), ("de", "en")), ["languages de, en"]),
    "words out of order": (lambda _: WordTokenizer([*words(), "en\tlate"], LANGUAGES), ["out of order"]),
    "unknown padding": (
        lambda _: WordTokenizer(words(), LANGUAGES)(tf.constant(["a"]), pad="none"), ["max_length, longest"]),
    "special pieces that lack": (lambda _: WordPieceTokenizer(["[PAD]", "[CLS]", "a"]), ["lacks [UNK], [SEP]"]),
    "a piece twice": (lambda _: WordPieceTokenizer([*SPECIAL, "a", "a"]), ["twice"]),
    "a long sentence piece": (
        lambda folder: build_tokenizer(config_of(""), file_of(folder, lines_of([*UNIGRAM, LONG]))),
        ["a piece has 1048576 characters", "at most 1000"]),
    "a long word piece": (
        lambda folder: build_tokenizer(
            base_config(), file_of(folder, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a" * 1001])),
        ["a piece of 1001 characters", "at most 1000"]),
    "a folder that is missing": (
        lambda folder: save_vocabulary(["a"], folder / "missing/vocabulary.txt"), ["Cannot write the vocabulary"]),
    "an unknown learner": (
        lambda _: build_vocabulary(["a"], 100, "magic"), ["'magic'", "expected one of tokenizers, byte_pair"]),
    "a small vocabulary": (lambda _: build_vocabulary(["a"], 7), ["ask for 8"]),
    "no words": (lambda _: build_vocabulary(["", " \u3000"], 100), ["no words"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name, tmp_path):
    assert_refused(*REFUSALS[name], tmp_path)
