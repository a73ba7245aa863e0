"""The in-graph tokenizer against hand-derived rows and a naive Python oracle."""

import random
import types
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_tf.text import tokenizer_of
from mural_tf.text.byte_pair import BytePairTokenizer
from mural_tf.text.byte_words import byte_characters
from mural_tf.text.word_pieces import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIAL,
    "red",
    "##der",
    "cat",
    "##s",
    ",",
    "日",
    "c",
    "##a",
    "##t",
    "é",
    "e",
    "É",
    "ก",
    "##ก",
    "##กก",
    "ි",
    "ක",
    "##ි",
]


def tokenizer(**options):
    return WordPieceTokenizer(PIECES, **options)


def row(texts, **options):
    """The pieces of one text's row, without padding."""
    outputs = tokenizer(**options)(tf.constant([texts]))
    length = int(outputs["input_mask"].numpy().sum())
    return [PIECES[i] for i in outputs["input_word_ids"].numpy()[0, :length]]


def naive_row(text, max_length):
    """BERT's rules written out: words at white space, marks and Chinese characters apart, greedy longest pieces."""
    words, word = [], ""
    for c in text + " ":
        alone = unicodedata.category(c).startswith("P") or "\u4e00" <= c <= "\u9fff"
        if c.isspace() or alone:
            words += [word] if word else []
            words += [c] if alone else []
            word = ""
        else:
            word += c
    pieces = []
    for word in words:
        start = 0
        while start < len(word):
            candidates = [("##" if start else "") + word[start:end] for end in range(len(word), start, -1)]
            piece = next((candidate for candidate in candidates if candidate in PIECES), "[UNK]")
            pieces.append(piece)
            start += 1 if piece == "[UNK]" else len(piece.replace("##", ""))
    return ["[CLS]", *pieces[: max_length - 2], "[SEP]"]


def test_random_texts_match_the_naive_rules():
    draw = random.Random(0)
    parts = ["red", "der", "cat", "s", ",", "日", "a", "t", "c", " ", "  ", "\n", "é", "ก", "กก", "x", "!"]
    texts = ["".join(draw.choices(parts, k=draw.randint(0, 30))) for _ in range(300)]
    ids = tokenizer(max_length=12)(tf.constant(texts))["input_word_ids"].numpy()
    for text, pieces in zip(texts, ids):
        expected = naive_row(text, 12)
        assert [PIECES[i] for i in pieces] == expected + ["[PAD]"] * (12 - len(expected)), repr(text)


def test_long_words_in_scripts_without_spaces_are_divided():
    # 41 characters of three bytes: 123 bytes, over BERT's limit of 100, where its tokenizer answers [UNK].
    assert row("ก" * 41) == ["[CLS]", "ก", *["##กก"] * 20, "[SEP]"]


@pytest.mark.parametrize(
    "text",
    [b"", b"\xff\xfe\x00\x80abc", b"\xe0\xb8", "a" * 100_000, "\u0e01" * 33_000, " " * 100_000, b"\xff" * 100_000],
)
def test_any_bytes_are_answered(text):
    ids = tokenizer()(tf.constant([text, "cat"]))["input_word_ids"].numpy()
    assert ids.shape == (2, 64)
    assert [PIECES[i] for i in ids[1, :4]] == ["[CLS]", "cat", "[SEP]", "[PAD]"]
    assert (ids[0] == 3).sum() == 1


def whole_row(object_, texts):
    """The rows of texts that are read to their end."""
    return object_.pack(object_.tokenize(texts).merge_dims(1, 2), object_.max_length)["input_word_ids"].numpy()


def test_only_what_fits_is_read():
    # The cuts before splitting must not change the row: compare with `tokenize`, which reads the whole text.
    draw = random.Random(1)
    texts = ["".join(draw.choices(["ก", "cat", " ", ",", "x", "redders"], k=2000)) for _ in range(20)]
    object_ = tokenizer(max_length=16)
    np.testing.assert_array_equal(object_(texts)["input_word_ids"], whole_row(object_, texts))


@pytest.mark.parametrize("kind", [WordPieceTokenizer, BytePairTokenizer])
def test_a_text_of_longest_pieces_keeps_them_all(kind):
    pieces = [*SPECIAL, *byte_characters(), "aaaabbbbcccc", *("Ġaaaabbbbcccc"[:end] for end in range(2, 14))]
    object_ = kind(pieces, max_length=6)
    row = object_(["aaaabbbbcccc " * 3 + "aaaabbbbcccc"])["input_word_ids"].numpy()[0]
    longest = pieces.index("aaaabbbbcccc" if kind is WordPieceTokenizer else "Ġaaaabbbbcccc")
    assert row.tolist() == [2, *[longest] * 4, 3]


def test_a_text_of_longest_pieces_in_another_script_keeps_them_all():
    """A letter of it has two bytes, which the cut must not count as two letters."""
    object_ = WordPieceTokenizer([*SPECIAL, "яяяяббббдддд"], max_length=6)
    row = object_(["яяяяббббдддд " * 5])["input_word_ids"].numpy()[0]
    assert row.tolist() == [2, *[len(SPECIAL)] * 4, 3]


@pytest.mark.parametrize("lower_case", [False, True])  # and accents stripped
def test_texts_are_cut_in_bytes_before_they_are_cleaned(lower_case):
    object_ = tokenizer(max_length=8, lower_case=lower_case, strip_accents=lower_case)
    fillers = [x.encode() for x in (" ", "\u3000", "\x01", "\u200d", "\u0301", "e\u0301", "é", "😀", "ก")]
    # The cut falls into the filler, at each byte of a character.
    starts = [b"cat" + b"," * count for count in range(4)]
    texts = [start + x * object_.max_bytes for x in [*fillers, b"\xff", b"\xe0\xb8"] for start in starts]
    np.testing.assert_array_equal(object_(texts)["input_word_ids"], whole_row(object_, texts))


def test_what_stands_behind_long_runs_of_spaces_is_not_read():
    object_ = tokenizer(max_length=8)
    rows = object_([" " * count + "cat" for count in (object_.max_bytes - 3, object_.max_bytes)])["input_word_ids"]
    np.testing.assert_array_equal(rows[:, :3], [[2, 7, 3], [2, 3, 0]])


def test_a_tokenizer_has_a_table_of_its_own_in_each_process():
    here = tokenizer(max_length=8)
    assert here.on_device_in_scope() is here
    elsewhere = here.with_prompt("cat ")
    elsewhere._table = types.SimpleNamespace(resource_handle=tf.constant(0))
    assert elsewhere.on_device_in_scope() is elsewhere
    for device in ("/job:worker/task:1", "/job:localhost/replica:0/task:1", "/job:worker/task:0"):
        elsewhere._table = types.SimpleNamespace(resource_handle=types.SimpleNamespace(device=device))
        other = elsewhere.on_device_in_scope()
        assert other._table is not elsewhere._table
        np.testing.assert_array_equal(other(["s"])["input_word_ids"], here(["cat s"])["input_word_ids"])


@pytest.mark.parametrize("field,expected", [("lower_case", "é"), ("strip_accents", "e")])
def test_the_vocabulary_s_settings_reach_the_tokenizer(field, expected):
    """A letter is one piece under one setting and another piece, or none, under the other setting."""
    letter = {"lower_case": "É", "strip_accents": "é"}[field]
    pieces = []
    for value in (False, True):
        config = base_config()
        config.vocabulary.lower_case = config.vocabulary.strip_accents = False
        config.vocabulary[field] = value
        ids = tokenizer_of(config, PIECES)(tf.constant([letter]))["input_word_ids"]
        pieces.append(PIECES[int(ids[0, 1])])
    assert pieces == [letter, expected]
