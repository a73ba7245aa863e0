"""What tokenizers and vocabularies refuse, in one line each: the call, the words that must occur."""

import json

import pytest
import tensorflow as tf
from refusals import assert_refused, without
from test_language_words import LANGUAGES, TEXTS
from test_sentence_pieces import (
    BPE,
    BPE_SETTINGS,
    SETTINGS,
    UNIGRAM,
    config_of,
    lines_of,
    model_of,
    read_lines,
    table,
    tokenizer,
    tokenizer_json,
    with_table,
)  # fmt: skip
from test_tokenizer import SPECIAL

from mural_lite.config import base_config
from mural_tf.text import build_tokenizer
from mural_tf.text.language_words import WordTokenizer, build_words
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.vocabulary_file import load_vocabulary, save_vocabulary
from mural_tf.text.word_pieces import WordPieceTokenizer


def words():
    return build_words(TEXTS, LANGUAGES, 100, True, False)


def file_of(folder, content):
    path = folder / "vocabulary.txt"
    path.write_bytes(content if isinstance(content, bytes) else "".join(f"{line}\n" for line in content).encode())
    return path


def loaded(content):
    return lambda folder: load_vocabulary(file_of(folder, content))


def pieces(content, config=config_of):
    return lambda folder: build_tokenizer(config(""), file_of(folder, content))


CHARSMAP = with_table(table())["charsmap"]
WRONG = {  # files without pieces
    "no model": b"\x00\xff\x12 nothing",
    "text": b"[PAD]\n[UNK]\nthe\n",
    "empty": b"",
    "word": model_of(UNIGRAM, SETTINGS).replace(b"\x18\x01", b"\x18\x03"),
    "WordPiece": json.dumps({"model": {"type": "WordPiece", "vocab": {"a": 0}}}).encode(),
    "without byte fallback": json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}).encode(),
    "ByteLevel": tokenizer_json(BPE, True, dict(type="ByteLevel")).encode(),
    "JSON": b'{"model": 3}',
    "unk": tokenizer_json(UNIGRAM, unk_id=99).encode(),
    "charsmap": tokenizer_json(UNIGRAM, normalizer=dict(type="Precompiled", precompiled_charsmap="é!")).encode(),
    "charsmap's letters": tokenizer_json(
        UNIGRAM, normalizer=dict(type="Precompiled", precompiled_charsmap=f"{CHARSMAP[:8]}!{CHARSMAP[8:]}")).encode(),
    "twice": model_of([*UNIGRAM, UNIGRAM[-1]], SETTINGS),
    "no unknown": model_of(UNIGRAM[3:], SETTINGS),
    "lines": b'["a", 1]\n["b", 2]\n',
    "setting": "\n".join(lines_of(UNIGRAM, SETTINGS | {"model": "char"})).encode(),
    "bytes": model_of(BPE, BPE_SETTINGS | {"byte_fallback": False}),
}
LYING = {  # tables of characters, by which the operation would read any memory
    "1 kB of 0xff": (b"\xff" * 1024, "have 4294967295 of 1024 bytes"),
    "4 kB of the largest": ((2**31 - 1).to_bytes(4, "little") * 1024, "is said to have"),
    "too short": (b"\0\0\0", "have 0 of 3 bytes"),
    "no whole units": (table(size=2046), "is said to have 2046"),
    "no replacements": (table(replacements=b""), "is said to have 2048"),
    "root beyond": (table(root=512 << 10), "leads out of itself"),
    "root beyond by a unit": (table(size=2044), "leads out of itself"),
    "letter beyond": (table(letter=(2000 << 10) | 0x61), "leads out of itself"),
    "one letter of two beyond": (table(other=(2000 << 10) | 0x62), "leads out of itself"),
    "large steps": (table(letter=(2000 << 10) | 0x261), "leads out of itself"),
    "replacement beyond": (table(leaf=0x80000002), "a replacement lies beyond its end"),
    "no end": (table(replacements=b"b"), "its replacements have no end"),
}
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
    "no mask of word pieces": (lambda _: WordPieceTokenizer([*SPECIAL[:4], "a"]).mask_id, ["lacks [MASK]"]),
    "a piece twice": (lambda _: WordPieceTokenizer([*SPECIAL, "a", "a"]), ["twice"]),
    "a long word piece": (
        pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a" * 1001], lambda _: base_config()),
        ["a piece of 1001 characters", "at most 1000"]),
    "no file of words": (lambda folder: load_vocabulary(folder / "none"), ["Cannot read", "one piece per line"]),
    "an empty file": (loaded(b""), ["vocabulary.txt", "empty"]),
    "another encoding": (loaded(b"[PAD]\n\xff\xfe\n"), ["vocabulary.txt", "not UTF-8"]),
    "a file without special pieces": (loaded(b"[PAD]\n[UNK]\na\n"), ["lacks [CLS], [SEP]"]),
    "a line twice": (loaded(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\na\n"), ["'a' twice, in lines 5 and 7"]),
    # Sentence pieces.
    **{f"a file: {name}": (pieces(content), ["vocabulary.txt holds no pieces of SentencePiece"])
       for name, content in WRONG.items()},
    **{f"a table: {name}": (pieces(lines_of(UNIGRAM, with_table(data))), ["its charsmap is damaged", words])
       for name, (data, words) in LYING.items()},
    "a long sentence piece": (
        pieces(lines_of([*UNIGRAM, LONG])), ["a piece has 1048576 characters", "at most 1000"]),
    "no file of pieces": (lambda folder: read_lines(folder / "none.model"), ["Cannot read", "none.model"]),
    "an unknown layout": (lambda _: tokenizer(layout="bert"), ["vocabulary.layout='bert'"]),
    "an unknown cleaning": (lambda _: tokenizer(cleaning=("upper",)), ["take only cleaning"]),
    "lower case of pieces": (lambda _: tokenizer(lower_case=True), ["take only cleaning"]),
    "no room for a piece": (lambda _: tokenizer(max_length=2), ["no room"]),
    "no mask": (lambda _: tokenizer().mask_id, ["lacks <mask>"]),
    "pieces to learn": (lambda _: build_vocabulary(["a"], 100, builder="sentence_pieces"), ["not learned here"]),
    "a folder that is missing": (
        lambda folder: save_vocabulary(["a"], folder / "missing/vocabulary.txt"), ["Cannot write the vocabulary"]),
    "no learner": (without("tokenizers", lambda _: build_vocabulary(["a"], 100)), ["pip install tokenizers"]),
    "an unknown learner": (
        lambda _: build_vocabulary(["a"], 100, "magic"), ["'magic'", "expected one of tokenizers, byte_pair"]),
    "a small vocabulary": (lambda _: build_vocabulary(["a"], 7), ["ask for 8"]),
    "no words": (lambda _: build_vocabulary(["", " \u3000"], 100), ["no words"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name, tmp_path):
    assert_refused(*REFUSALS[name], tmp_path)
