"""Byte-level byte pairs: the graph's pieces are those of a loop over the definition, and no text is unknown."""

import pytest
import tensorflow as tf
from tokenizers.pre_tokenizers import ByteLevel

from mural_tf.text.byte_pair import BytePairTokenizer
from mural_tf.text.byte_words import byte_characters, with_end_mark
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.vocabulary_file import RESERVED_TOKENS

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
    assert [with_end_mark(piece) for piece in ("it", "</w>")] == ["it", "</w>"]  # the mark alone is a piece like others
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
