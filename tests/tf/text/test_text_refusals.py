"""What tokenizers and vocabularies refuse: tests/snapshots/refusals_of_texts.txt has the message of each call."""

import json

import tensorflow as tf
from refusals import without
from snapshots import assert_refusals
from test_language_words import LANGUAGES, TEXTS
from test_sentence_pieces import (
    BPE,
    BPE_SETTINGS,
    CONTROLS,
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
)
from test_tokenizer import SPECIAL

from mural_lite.config import base_config
from mural_tf.text import build_tokenizer, tokenizer_of
from mural_tf.text.byte_pair import BytePairTokenizer
from mural_tf.text.language_words import WordTokenizer, build_words
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.piece_models import as_lines, byte_pair_lines
from mural_tf.text.vocabulary_file import RESERVED_TOKENS, check_digest, load_vocabulary, save_vocabulary
from mural_tf.text.word_pieces import WordPieceTokenizer


def words():
    return build_words(TEXTS, LANGUAGES, 100, True, False)


def words_config(**vocabulary):
    config = base_config()
    config.vocabulary.update(vocabulary)
    config.text_tower.update(dict(name="words", languages=LANGUAGES))
    return config


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
    "no bytes": lines_of(UNIGRAM, SETTINGS | {"byte_fallback": True}),
    "a number as a flag": lines_of(UNIGRAM, SETTINGS | {"byte_fallback": 0}),
    "two pieces in a line": [*lines_of(UNIGRAM), '["x", 1.0, "normal"], ["y", 1.0, "normal"]'],
    **{f"entry {entry}": lines_of([*UNIGRAM, entry])
       for entry in (["x", "1", "normal"], ["x", 1.0, "kind"], ["", 1.0, "normal"], [5, 1.0, "normal"], ["x", 1.0])},
    "two unknown pieces": lines_of([*UNIGRAM, ["x", 1.0, "unknown"]]),
    "characters": model_of(UNIGRAM, SETTINGS).replace(b"\x18\x01", b"\x18\x04"),
    "no name of a model": b'{"model": {"vocab": []}}',
    "NFC": tokenizer_json(UNIGRAM, normalizer=dict(type="NFC")).encode(),
    "a replacement": tokenizer_json(UNIGRAM, normalizer=dict(type="Replace", pattern={"String": "x"})).encode(),
    "steps of another type": tokenizer_json(UNIGRAM, normalizer=dict(type="Sequence", normalizers=5)).encode(),
}  # fmt: skip
LYING = {  # tables of characters, by which the operation would read any memory
    "1 kB of 0xff": b"\xff" * 1024,
    "4 kB of the largest": (2**31 - 1).to_bytes(4, "little") * 1024,
    "too short": b"\0\0\0",
    "no whole units": table(size=2046),
    "no replacements": table(replacements=b""),
    "root beyond": table(root=512 << 10),
    "root beyond by a unit": table(size=2044),
    "letter beyond": table(letter=(2000 << 10) | 0x61),
    "one letter of two beyond": table(other=(2000 << 10) | 0x62),
    "large steps": table(letter=(2000 << 10) | 0x261),
    "replacement beyond": table(leaf=0x80000002),
    "no end": table(replacements=b"b"),
}
LONG = ["a" * 2**20, -1.0, "normal"]
REFUSALS = {
    "no texts in a language": lambda _: build_words(TEXTS, ("en", "fr"), 100, True, False),
    "no room for a word": lambda _: build_words(TEXTS, LANGUAGES, 6, True, False),
    "no languages": lambda _: WordTokenizer(words(), ()),
    "other languages": lambda _: WordTokenizer(words(), ("de", "en")),
    "words out of order": lambda _: WordTokenizer([*words(), "en\tlate"], LANGUAGES),
    "a prompt of words": lambda _: tokenizer_of(words_config(prompt="a "), words()),
    "unknown padding": lambda _: WordTokenizer(words(), LANGUAGES)(tf.constant(["a"]), pad="none"),
    "special pieces that lack": lambda _: WordPieceTokenizer(["[PAD]", "[CLS]", "a"]),
    "no mask of word pieces": lambda _: WordPieceTokenizer([*SPECIAL[:4], "a"]).mask_id,
    "a piece twice": lambda _: WordPieceTokenizer([*SPECIAL, "a", "a"]),
    "no room for a word piece": lambda _: WordPieceTokenizer(SPECIAL, max_length=2),
    "an unknown cleaning of word pieces": lambda _: WordPieceTokenizer(SPECIAL, cleaning=("upper",)),
    "a long word piece": pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a" * 1001], lambda _: base_config()),
    "no file of words": lambda folder: load_vocabulary(folder / "none"),
    "an empty file": loaded(b""),
    "another encoding": loaded(b"[PAD]\n\xff\xfe\n"),
    "a file without special pieces": loaded(b"[PAD]\n[UNK]\na\n"),
    "a line twice": loaded(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\na\n"),
    "another digest": lambda folder: check_digest(["a"], "0" * 64, folder / "vocabulary.txt"),
    # Byte pairs.
    "without bytes": lambda _: BytePairTokenizer([*RESERVED_TOKENS, "word"]),
    "no room for bytes": lambda _: build_vocabulary(["a"], 260, builder="byte_pair"),
    "ids with a gap": lambda folder: byte_pair_lines({"a": 0, "b": 2}, [], {}, str, folder),
    "a merge of three": lambda folder: byte_pair_lines({"a": 0}, ["a b c"], {}, str, folder),
    # Sentence pieces.
    **{f"a file: {name}": pieces(content) for name, content in WRONG.items()},
    **{f"a table: {name}": pieces(lines_of(UNIGRAM, with_table(data))) for name, data in LYING.items()},
    "a long sentence piece": pieces(lines_of([*UNIGRAM, LONG])),
    "more pieces than rows": lambda _: tokenizer_of(config_of("", size=9), lines_of(UNIGRAM)),
    "no file of pieces": lambda folder: read_lines(folder / "none.model"),
    "an unknown layout": lambda _: tokenizer(layout="bert"),
    "a layout of two pieces": lambda _: tokenizer(layout="<s> </s>"),
    "a layout of other pieces": lambda _: tokenizer(layout="<s> </s> <none>"),
    "too few pieces": lambda _: tokenizer(CONTROLS[2:], layout="siglip"),
    "an unknown cleaning": lambda _: tokenizer(cleaning=("upper",)),
    "lower case of pieces": lambda _: tokenizer(lower_case=True),
    "accents of pieces": lambda _: tokenizer(strip_accents=True),
    "no room for a piece": lambda _: tokenizer(max_length=2),
    "no mask": lambda _: tokenizer().mask_id,
    "lines of a piece twice": lambda folder: as_lines(list(map(list, [*UNIGRAM, UNIGRAM[-1]])), SETTINGS, folder / "v"),
    "pieces to learn": lambda _: build_vocabulary(["a"], 100, builder="sentence_pieces"),
    "a folder that is missing": lambda folder: save_vocabulary(["a"], folder / "missing/vocabulary.txt"),
    "no learner": without("tokenizers", lambda _: build_vocabulary(["a"], 100)),
    "an unknown learner": lambda _: build_vocabulary(["a"], 100, "magic"),
    "a small vocabulary": lambda _: build_vocabulary(["a"], 7),
    "no words": lambda _: build_vocabulary(["", " \u3000"], 100),
}


def test_refusals(tmp_path):
    assert_refusals("refusals_of_texts", REFUSALS, tmp_path)
