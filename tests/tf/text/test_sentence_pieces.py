"""Sentence pieces on small models that are made here: ids by hand, rows of each family, files, refusals."""

import base64
import functools
import gc
import json
import string
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from drawn_texts import drawn_texts
from snapshots import assert_snapshot

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.plain_characters import as_plain
from mural_tf.text import build_tokenizer, piece_models
from mural_tf.text.byte_words import byte_characters, with_end_mark
from mural_tf.text.character_maps import problem_of
from mural_tf.text.piece_models import byte_pair_lines, model_of, parse_lines, read_lines
from mural_tf.text.sentence_pieces import CLEANING, SentencePieceTokenizer, layout_of
from mural_tf.text.vocabulary_file import RESERVED_TOKENS, digest
from mural_tf.text.word_pieces import WordPieceTokenizer

SETTINGS = dict(
    model="unigram",
    byte_fallback=False,
    add_dummy_prefix=True,
    remove_extra_whitespaces=True,
    escape_whitespaces=True,
    treat_whitespace_as_suffix=False,
    charsmap="",
)
CONTROLS = [["<pad>", 0.0, "control"], ["</s>", 0.0, "control"], ["<unk>", 0.0, "unknown"]]
LETTERS = [[letter, -9.0, "normal"] for letter in "▁abcdeht"]
UNIGRAM = [*CONTROLS, *LETTERS, ["▁the", -2.0, "normal"], ["▁cat", -3.0, "normal"], ["at", -4.0, "normal"]]
BYTES = [[f"<0x{byte:02X}>", 0.0, "byte"] for byte in range(256)]
PAIRS = [["▁t", "normal"], ["he", "normal"], ["▁the", "normal"]]
BPE = [["<pad>", 0.0, "control"], ["<eos>", 0.0, "control"], ["<bos>", 0.0, "control"], ["<unk>", 0.0, "unknown"]]
BPE += [*BYTES, *[[piece, -float(i), kind] for i, (piece, kind) in enumerate(PAIRS)]]
BPE += [[letter, -100.0, "normal"] for letter in "▁the"]
BPE_SETTINGS = SETTINGS | dict(model="bpe", byte_fallback=True, add_dummy_prefix=False, remove_extra_whitespaces=False)


def lines_of(pieces, settings=SETTINGS):
    return [json.dumps(piece) for piece in [[*pieces[0], settings], *pieces[1:]]]


def tokenizer(pieces=UNIGRAM, settings=SETTINGS, layout="siglip", **options):
    return SentencePieceTokenizer(lines_of(pieces, settings), layout=layout, **options)


def test_an_export_does_not_look_for_variables_in_the_pieces():
    """TensorFlow asks a module for its variables many times, and looks through all that it holds."""
    for made in (tokenizer(UNIGRAM), WordPieceTokenizer([*RESERVED_TOKENS, "red"])):
        seen = set(made._flatten(predicate=lambda value: isinstance(value, str)))
        assert not seen & {*(piece for piece, *_ in UNIGRAM), "red"}


def ids(object_, *texts):
    return object_.tokenize(tf.constant(texts)).merge_dims(1, 2).to_list()


def named(pieces, found):
    return [pieces[i][0] for i in found]


def tokenizer_json(pieces, bpe=False, normalizer=None, **model):
    if bpe:
        vocabulary = {piece: i for i, (piece, _, _) in enumerate(pieces)}
        merges = [["▁", "t"], ["h", "e"], ["▁t", "he"]]
        model = dict(type="BPE", vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>") | model
        before = dict(normalizer=normalizer or dict(type="Replace", pattern={"String": " "}, content="▁"))
    else:
        model = dict(type="Unigram", vocab=[piece[:2] for piece in pieces], unk_id=2) | model
        spaces = dict(type="Replace", pattern={"Regex": " {2,}"}, content=" ")
        before = dict(normalizer=normalizer or spaces, pre_tokenizer=dict(type="Metaspace", prepend_scheme="always"))
    controls = [(i, piece[0]) for i, piece in enumerate(pieces) if piece[2] in ("control", "unknown")]
    added = [dict(id=i, content=content, special=True) for i, content in controls]
    return json.dumps(dict(model=model, added_tokens=added, **before))


def test_unigram_by_hand():
    found = ids(tokenizer(), "the cat", "  the   bat ", "", "x", "thecat")
    assert named(UNIGRAM, found[0]) == ["▁the", "▁cat"]
    assert named(UNIGRAM, found[1]) == ["▁the", "▁", "b", "at"]
    assert found[2] == [] and named(UNIGRAM, found[3]) == ["▁", "<unk>"]
    assert named(UNIGRAM, found[4]) == ["▁the", "c", "at"]


@pytest.mark.parametrize("pieces, settings", [(UNIGRAM, SETTINGS), (BPE, BPE_SETTINGS)])
def test_a_model_file_tokenizer_json_and_lines_are_the_same_vocabulary(tmp_path, pieces, settings):
    lines = lines_of(pieces, settings)
    SentencePieceTokenizer(lines, layout="siglip").save(tmp_path / "vocabulary.txt")
    assert read_lines(tmp_path / "vocabulary.txt") == lines
    (tmp_path / "spiece.model").write_bytes(model_of(pieces, settings))
    assert parse_lines(read_lines(tmp_path / "spiece.model"), "") == (pieces, settings)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(pieces, pieces is BPE))
    texts = ["the cat", "  the  the at", "the</s>", "é t he", ""]
    of_json = SentencePieceTokenizer(read_lines(tmp_path / "tokenizer.json"), layout="siglip")
    assert ids(of_json, *texts) == ids(tokenizer(pieces, settings), *texts)


def test_two_models_in_one_process_do_not_share():
    first = tokenizer()
    second = tokenizer([*CONTROLS, ["▁the", -2.0, "normal"]])
    assert ids(first, "the") == [[11]] and ids(second, "the") == [[3]] and ids(first, "the") == [[11]]


def test_a_tokenizer_outlives_another_of_the_same_model():
    first, second = tokenizer(), tokenizer()
    assert ids(first, "the") == [[11]]
    del first
    gc.collect()
    tf.random.set_seed(1)  # deletes eager kernels
    assert ids(second, "the") == [[11]] and ids(tokenizer(), "the") == [[11]]


def clip(**options):
    letters = [[letter, -9.0, "normal"] for word in "thebac" for letter in (word, with_end_mark(f"{word}</w>"))]
    names = ["<|startoftext|>", "<|endoftext|>"]
    pieces = [*([name, 0.0, "control"] for name in names), CONTROLS[2], *letters, ["ba", -1.0, "normal"]]
    settings = SETTINGS | dict(add_dummy_prefix=False, escape_whitespaces=False)
    return tokenizer(pieces, settings, "clip", cleaning=("clip_words",), **options)


def gpt2(words="gpt2_words", **options):
    """Byte pairs of GPT-2: "Ġ" is the space, "ÿ" the separator."""
    ids = {piece: i for i, piece in enumerate(["<|endoftext|>", *byte_characters(), "th", "the", "Ġc", "at"])}
    merges = ["t h", ["th", "e"], "Ġ c", "a t"]
    lines = byte_pair_lines(ids, merges, {"<|endoftext|>": "unknown"}, str, "merges.txt")
    layout = "<|endoftext|> <|endoftext|> <|endoftext|>"
    return SentencePieceTokenizer(lines, layout=layout, cleaning=(words,), **options)


def test_lines_of_byte_pairs():
    """A piece of several characters that no merge makes is not of texts; a merged piece scores minus its rank."""
    ids = {"x": 0, "a": 1, "b": 2, "ab": 3, "aba": 4, "<s>": 5, "far": 6}
    lines = byte_pair_lines(ids, ["a b", ["ab", "a"]], {"<s>": "control", "x": "unknown"}, str.upper, "merges.txt")
    assert parse_lines(lines, "")[0] == [
        ["X", 0.0, "unknown"], ["A", 0.0, "normal"], ["B", 0.0, "normal"], ["AB", 0.0, "normal"],
        ["ABA", -1.0, "normal"], ["<S>", 0.0, "control"], ["FAR", 0.0, "control"],
    ]  # fmt: skip


ORACLES = {  # of steps that Python has, too
    "lower_ascii": lambda text: text.encode().lower().decode(),
    "lower_unicode": str.lower,
    "lower_characters": lambda text: "".join(map(str.lower, text)),
    "spaces_for_underscores": lambda text: text.replace("_", " "),
    "no_punctuation": lambda text: text.translate(dict.fromkeys(map(ord, string.punctuation))),
    "single_spaces": lambda text: " ".join(text.split()),
    "composed": functools.partial(unicodedata.normalize, "NFC"),
    "plain_characters": as_plain,
}


@pytest.mark.parametrize("name", ORACLES)
def test_steps_of_cleaning_are_pythons(name):
    texts = ["", "_ΟΔΟΣ ΣΑΣ_", "e\u0301 \u1100\u1161 Å", " \t\x0b\x1f\u2028\u3000a\r\n", "\x1b[31m“ｶﾞ”\x07"]
    texts += drawn_texts(300)
    texts += [unicodedata.normalize("NFD", text) for text in texts]
    found = [text.decode() for text in CLEANING[name](tf.constant(texts)).numpy()]
    assert found == [ORACLES[name](text) for text in texts]


@pytest.mark.parametrize("pieces, settings", [(UNIGRAM, SETTINGS), (BPE, BPE_SETTINGS)])
def test_the_first_ids_of_a_long_text_are_those_of_all_of_it(pieces, settings):
    object_ = tokenizer(pieces, settings, max_length=64)
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice(list("the cat  é"), object_.max_bytes * 2)) for _ in range(8)]
    whole = ids(object_, *texts)
    for row, expected in zip(object_(tf.constant(texts))["input_word_ids"].numpy().tolist(), whole):
        assert row == [*expected[:63], 1]


def config_of(path, layout="siglip", **vocabulary):
    config = base_config()
    config.text_tower.max_length = 8
    config.vocabulary.update(dict(builder="sentence_pieces", layout=layout, file=str(path), **vocabulary))
    return config


def test_the_digest_of_a_configuration_is_of_the_lines_of_a_model_file(tmp_path):
    path = tmp_path / "spiece.model"
    path.write_bytes(model_of(UNIGRAM, SETTINGS))
    build_tokenizer(config_of(path, sha256=digest(read_lines(path))), path)
    with pytest.raises(UserError, match="SHA-256"):
        build_tokenizer(config_of(path, sha256="0" * 64), path)


def table(size=2048, root=256 << 10, letter=(352 << 10) | 0x161, leaf=0x80000000, replacements=b"b\0", other=0):
    """A table of normalisation that makes b of a: a trie of 512 units, by hand.

    The root's base is 256, so the way of "a" (0x61) is unit 256 ^ 0x61 = 353; that has a leaf, and its base is
    353 ^ 352 = 1, where the place of the replacement stands.
    """
    units = np.zeros(512, "<u4")
    units[0], units[1], units[256 ^ 0x61], units[256 ^ 0x62] = root, leaf, letter, other
    return size.to_bytes(4, "little") + units.tobytes() + replacements


def with_table(data):
    return {**SETTINGS, "charsmap": base64.b64encode(data).decode()}


STEPS = (256 << 10) | 0x61  # a unit of the letter "a" whose children lie at 353 ^ 256 = 97


@pytest.mark.parametrize("units", [
    {}, {"root": (1 << 10) | 0x200}, {"letter": 0, "other": 0}, {"letter": (97 << 10) | 0x61}, {"other": STEPS + 1},
    {"root": (255 << 10) | 0x161, "leaf": 0x80000001}, {"leaf": 0x80000001, "replacements": b"bb\0"},
], ids=str)  # fmt: skip
def test_correct_tables_of_characters(units):
    """Steps of 256, no letters, a letter that leads back, a second letter, the last replacement."""
    assert problem_of(table(**units)) == "" == problem_of(b"")


def test_the_table_of_characters_is_carried(tmp_path):
    text = tokenizer_json(
        UNIGRAM, normalizer=dict(type="Precompiled", precompiled_charsmap=with_table(table())["charsmap"])
    )
    (tmp_path / "tokenizer.json").write_text(text)
    lines = read_lines(tmp_path / "tokenizer.json")
    assert base64.b64decode(parse_lines(lines, "")[1]["charsmap"]) == table()
    found = SentencePieceTokenizer(lines, layout="siglip")
    assert ids(found, "aac") == ids(found, "bbc") != ids(tokenizer(), "aac")


def test_pieces_of_a_thousand_characters_are_taken(tmp_path):
    build_tokenizer(config_of(""), write_lines(tmp_path / "a.txt", [*UNIGRAM, ["a" * 1000, -1.0, "normal"]]))
    WordPieceTokenizer([*RESERVED_TOKENS, "a" * 1000])


def write_lines(path, pieces):
    path.write_text("".join(f"{line}\n" for line in lines_of(pieces)))
    return path


def test_a_piece_of_two_merges_scores_as_the_first(tmp_path):
    """Gemma's file has such: "▁the" of "▁t he" (rank 0) and again of "▁th e" (rank 3), after which "he" ranks 1."""
    merges = [["▁t", "he"], ["h", "e"], ["▁", "t"], ["▁th", "e"]]
    vocabulary = {piece: i for i, (piece, _, _) in enumerate([*BPE, ["▁th", 0.0, "normal"]])}
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(BPE, True, vocab=vocabulary, merges=merges))
    scores = {piece: score for piece, score, _ in parse_lines(read_lines(tmp_path / "tokenizer.json"), "")[0]}
    assert [scores[piece] for piece in ("▁the", "he", "▁t")] == [0.0, -1.0, -2.0]


FLAGS = [name for name, value_type in piece_models.SETTINGS.items() if value_type is bool]


def test_model_files_keep_every_setting_and_have_sentencepieces_defaults():
    for name in FLAGS:
        for model in ("unigram", "bpe"):
            settings = SETTINGS | {"model": model, name: not SETTINGS[name]}
            assert piece_models.read_model(model_of(UNIGRAM, settings), "") == (UNIGRAM, settings)
    assert piece_models.read_model(b"\n\x03\n\x01a", "") == ([["a", 0.0, "normal"]], SETTINGS)
    types = [["a", 1.5, name] for name in piece_models.TYPES]
    assert piece_models.read_model(model_of(types, SETTINGS), "")[0] == types


def test_fairseqs_ids_are_of_model_files_that_begin_with_the_unknown_piece(tmp_path):
    path = write_lines(tmp_path / "lines.txt", UNIGRAM)
    assert read_lines(path, fairseq=True) == lines_of(UNIGRAM)
    path.write_bytes(model_of(UNIGRAM, SETTINGS))
    assert parse_lines(read_lines(path, fairseq=True), "") == (UNIGRAM, SETTINGS)  # it begins with <pad>
    path.write_bytes(b"\r\n".join(line.encode() for line in lines_of(UNIGRAM)))
    assert read_lines(path) == lines_of(UNIGRAM)


MORE_TOKENS = [dict(id=2, content="<unk>"), dict(id=15, content="new"), dict(id=14, content="old", special=True)]
TAB = {"<unk>": 0, "\t": 1, "a": 2, "b": 3, "ab": 4, "far": 5, "<0x00>": 6}
BEFORE = {  # parts of tokenizer.json
    "nothing": {},
    "spaces": dict(normalizer=dict(type="Replace", pattern={"Regex": " {2,}"})),
    "any white space": dict(normalizer=dict(type="Replace", pattern={"Regex": "\\s+"})),
    "words": dict(pre_tokenizer=dict(type="WhitespaceSplit")),
    "a prefix": dict(normalizer=dict(type="Prepend", prepend="▁")),
    "an old prefix": dict(pre_tokenizer=dict(type="Metaspace")),
    "an old prefix, said": dict(pre_tokenizer=dict(type="Metaspace", add_prefix_space=True)),
    "no old prefix": dict(pre_tokenizer=dict(type="Metaspace", add_prefix_space=False)),
    "no prefix": dict(pre_tokenizer=dict(type="Metaspace", prepend_scheme="never", add_prefix_space=True)),
    "first": dict(pre_tokenizer=dict(type="Metaspace", prepend_scheme="first")),
    "others": dict(normalizer=dict(type="Sequence", normalizers=[dict(type="Strip"), dict(type="Sequence", normalizers=[
        dict(type="Lowercase"), dict(type="Prepend")]), dict(type="Replace", pattern={"String": " "})]),
        pre_tokenizer=dict(type="Sequence", pretokenizers=[dict(type="Split"), dict(type="WhitespaceSplit")])),
    "an empty table": dict(normalizer=dict(type="Precompiled", precompiled_charsmap=None)),
    "added tokens": dict(added_tokens=MORE_TOKENS),
    "no type": dict(model=dict(vocab=TAB, merges=["a b"], byte_fallback=True, unk_token="<unk>")),
}  # fmt: skip


def test_parts_of_tokenizer_json():
    lines = []
    for name, parts in BEFORE.items():
        model = dict(type="Unigram", vocab=[piece[:2] for piece in UNIGRAM], unk_id=2)
        pieces, settings = piece_models._read_json(json.dumps({"model": model, **parts}).encode(), "tokenizer.json")
        own = [entry for entry in pieces if entry not in UNIGRAM]
        lines.append(f"{name}: {len(pieces)} pieces, own {own}\n    {settings}")
    assert_snapshot("tokenizer_json", "\n".join(lines))


def test_a_layout_of_three_pieces_has_no_empty_piece():
    layout = layout_of("<b> <e> <p>")
    assert (layout.begin, layout.end, layout.pad) == ("<b>", "<e>", "<p>")
    assert layout_of("<b>  <p>") is None and layout_of("<b> <e> ") is None and layout_of("<b> <e>") is None
