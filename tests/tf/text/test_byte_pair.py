"""Byte-level byte pairs: the graph's pieces are those of a loop over the definition, and no text is unknown."""

import numpy as np
import pytest
import tensorflow as tf
from tokenizers.pre_tokenizers import ByteLevel

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.text import build_tokenizer
from mural_tf.text.byte_pair import LONGEST_WORD, BytePairTokenizer
from mural_tf.text.byte_words import byte_characters, ended
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.vocabulary_file import RESERVED_TOKENS, save_vocabulary

TEXTS = [
    "the red heart",
    "the red cat",
    "a red red rose",
    "ein rotes Herz",
    "красное сердце",
    "красный кот",
    "赤い猫",
] * 3


@pytest.fixture(scope="module")
def vocabulary():
    return build_vocabulary(TEXTS, 320, builder="byte_pair")


def decoded(tokenizer, ids):
    values = {character: byte for byte, character in enumerate(byte_characters())}
    return bytes(values[c] for i in ids for c in tokenizer.vocabulary[i]).decode("utf-8")


def test_special_pieces_then_bytes_then_merges(vocabulary):
    assert vocabulary[:5] == list(RESERVED_TOKENS) and vocabulary[5:261] == list(byte_characters())
    assert sorted(byte_characters()) == sorted(ByteLevel.alphabet())
    for text in map(chr, [*range(0x800), 0xFFFD, 0x1F600, 0x10FFFF]):  # as the writers of GPT-2's files write bytes
        ((written, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert written == "".join(byte_characters()[byte] for byte in text.encode())
    assert [ended(piece) for piece in ("it", "</w>")] == ["it", "</w>"]  # the mark alone is a piece like others
    assert len(vocabulary) == 320 and len(set(vocabulary)) == 320
    assert "Ġred" in vocabulary
    assert build_vocabulary(TEXTS, 320, builder="byte_pair") == vocabulary


def merge_loop(word, ranks):
    """The definition: join the neighbours of lowest rank, the first of equal ones, until none is a piece."""
    pieces = [byte_characters()[byte] for byte in (" " + word).encode("utf-8")]
    while True:
        pairs = [(ranks.get(a + b, 10**9), i) for i, (a, b) in enumerate(zip(pieces, pieces[1:]))]
        if not pairs or min(pairs)[0] == 10**9:
            return pieces
        place = min(pairs)[1]
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]


def test_pieces_are_those_of_the_definition_and_join_to_the_text(vocabulary):
    tokenizer, ranks = BytePairTokenizer(vocabulary, max_length=64), {p: i for i, p in enumerate(vocabulary)}
    words = ["the", "red", "hearts", "rotes", "красного", "кот", "猫", "ทะเลสาบ", "aaaaaa", "redredred", "🙂"]
    found = tokenizer.tokenize(tf.constant([" ".join(words)]))
    for word, ids in zip(words, found[0]):
        assert [vocabulary[i] for i in ids.numpy()] == merge_loop(word, ranks), word
        assert decoded(tokenizer, ids.numpy()) == f" {word}"


def test_rows_begin_and_end_as_word_pieces_do(vocabulary):
    tokenizer = BytePairTokenizer(vocabulary, max_length=6)
    tokens = tokenizer(tf.constant(["red", "", "the red heart is far too long"]))
    assert tokens["input_word_ids"].shape == (3, 6)
    assert tokens["input_word_ids"].numpy()[:, 0].tolist() == [2, 2, 2]
    assert tokens["input_word_ids"].numpy()[0].tolist() == [2, vocabulary.index("Ġred"), 3, 0, 0, 0]
    assert tokens["input_mask"].numpy().sum(axis=1).tolist() == [3, 2, 6]
    assert int(tokens["input_word_ids"][2, 5]) == 3
    assert tokenizer(tf.constant([], tf.string), pad="longest")["input_word_ids"].shape[0] == 0


def test_any_bytes_are_answered_and_long_words_end(vocabulary):
    tokenizer = BytePairTokenizer(vocabulary, max_length=64)
    found = tokenizer.tokenize(tf.constant([b"\xff\xfe", "x" * 1000, "[SEP] [MASK]"]))
    ids = found.flat_values.numpy()
    assert np.all(ids >= len(RESERVED_TOKENS)) and np.all(ids < 320)
    assert decoded(tokenizer, found[1][0].numpy()) == " " + "x" * 1000 and LONGEST_WORD < 1000


def test_a_saved_model_carries_it(vocabulary, tmp_path):
    save_vocabulary(vocabulary, tmp_path / "vocabulary.txt")
    module = tf.Module()
    module.tokenizer = BytePairTokenizer.load(tmp_path / "vocabulary.txt", max_length=8)
    strings = [tf.TensorSpec([None], tf.string)]
    module.run = tf.function(lambda t: module.tokenizer(t), strings, autograph=False)
    tf.saved_model.save(module, str(tmp_path / "saved"))
    texts = tf.constant(["the red heart", "", "кот"])
    expected, found = module.tokenizer(texts), tf.saved_model.load(str(tmp_path / "saved")).run(texts)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_the_configuration_picks_it(vocabulary, tmp_path):
    save_vocabulary(vocabulary, tmp_path / "vocabulary.txt")
    config = base_config()
    config.vocabulary.builder = "byte_pair"
    tokenizer = build_tokenizer(config, tmp_path / "vocabulary.txt")
    assert isinstance(tokenizer, BytePairTokenizer) and tokenizer.special_ids == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="lacks 256 of the 256 bytes"):
        BytePairTokenizer([*RESERVED_TOKENS, "word"])
    with pytest.raises(UserError, match="no room"):
        build_vocabulary(TEXTS, 260, builder="byte_pair")
