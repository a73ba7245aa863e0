"""All that small tokenizers of every kind answer, whole: tests/snapshots/tokenizers/."""

import json

import numpy as np
import pytest
import tensorflow as tf
from snapshots import assert_snapshot
from test_language_words import LANGUAGES
from test_language_words import TEXTS as TRAINING
from test_sentence_pieces import BPE, BPE_SETTINGS, SETTINGS, UNIGRAM, clip, gpt2, table, tokenizer, with_table
from test_tokenizer import PIECES

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.text import build_tokenizer
from mural_tf.text.byte_pair import BytePairTokenizer
from mural_tf.text.byte_words import byte_characters
from mural_tf.text.language_words import WordTokenizer, build_words
from mural_tf.text.piece_models import model_of
from mural_tf.text.sentence_pieces import SentencePieceTokenizer
from mural_tf.text.tokenizer import Tokenizer
from mural_tf.text.tokens import TOKENS
from mural_tf.text.vocabulary_file import NAME
from mural_tf.text.word_pieces import WordPieceTokenizer
from mural_tf.text.words import WHOLE_CHINESE

MOVED = [["<s>", 0.0, "control"], ["<pad>", 0.0, "control"], ["</s>", 0.0, "control"], *UNIGRAM[2:],
         ["<mask>", 0.0, "control"], ["unused", 0.0, "unused"]]  # fmt: skip
UNKNOWN_FIRST = [UNIGRAM[2], *UNIGRAM[:2], *UNIGRAM[3:]]
CHINESE = [*PIECES, "##日"]
# Languages of unequal numbers of words; "chat" and "pain" are words of both, of other ranks.
WORDS = [*TRAINING, *[("en", "chat pain red")] * 3, *[("de", "pain rot")] * 4, ("de", "chat")]


def bytes_and_merges(**options):
    pieces = [
        "[UNK]",
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *byte_characters(),
        "Ġr",
        "ed",
        "Ġred",
        "aa",
        "Ġc",
    ]
    return BytePairTokenizer(pieces, **options)


def words(**options):
    vocabulary = build_words(WORDS, LANGUAGES, 22, True, False)
    return WordTokenizer(vocabulary, LANGUAGES, lower_case=True, **options)


KINDS = {
    "word_pieces": lambda **more: WordPieceTokenizer(PIECES, **more),
    "word_pieces_uncased": lambda **more: WordPieceTokenizer(PIECES, lower_case=True, strip_accents=True, **more),
    "word_pieces_of_whole_chinese": lambda **more: WordPieceTokenizer(CHINESE, cleaning=(WHOLE_CHINESE,), **more),
    "byte_pairs": bytes_and_merges,
    "words": words,
    "unigram_siglip": lambda **more: tokenizer(settings=with_table(table()), **more),
    "unigram_xlm_roberta": lambda **more: tokenizer(MOVED, layout="xlm_roberta", **more),
    "bpe_siglip2": lambda **more: tokenizer(BPE, BPE_SETTINGS, "siglip2", cleaning=("lower_ascii",), **more),
    "bpe_of_three_names": lambda **more: tokenizer(BPE, BPE_SETTINGS, "<bos> <eos> <pad>", **more),
    "clip": clip,
    "gpt2_words": gpt2,
    "gpt4o_words": lambda **more: gpt2("gpt4o_words", **more),
}
TEXTS = [
    "", " ", "the cat", "redder, cats日", "日日 red", "the bat's ÉTÉ e\u0301", "ein Hund", "<de> red pain", "<xx> ein",
    "chat pain", "කි කි",
    "a\x00b\u200bc\u200dd\u00ade\u2028f\u3000g", b"\xff the \xe0\xb8", "THE </s> [SEP] <mask> unused",
    "c a t " * 4, "aa" * 40, "ก" * 9, "is  2 345!", "I'll GO\r\n\n a", "a1b22 ３", "  two \t\u3000the",
    "don't STOP's HELLOworld", "\n the\r\n/a ... cat's",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_a_tokenizer(kind):
    made = KINDS[kind](max_length=8, prompt="")
    lines = [f"{name} = {getattr(made, name)}" for name in ("vocabulary_size", "unknown_id", "room")]
    lines.append(str([one.__name__ for one in (SentencePieceTokenizer, Tokenizer) if isinstance(made, one)]))
    if kind == "words":
        lines.append(f"vocabulary = {made.vocabulary}")
    for name in ("special_ids", "mask_id"):
        try:
            lines.append(f"{name} = {getattr(made, name)}")
        except (UserError, AttributeError) as error:
            lines.append(f"{name}: {error}")
    if not kind.startswith("gpt"):
        settings, content = made.for_lite()
        lines.append(f"for_lite = {json.dumps(settings)}, {len(content)} bytes")
    for text, ids in zip(TEXTS, made.tokenize(tf.constant(TEXTS)).to_list()):
        lines.append(f"{text!r}\n    {ids}")
    for texts in (TEXTS, TEXTS[:3], []):
        texts = tf.constant(texts, tf.string)
        whole = [made(texts)[name].numpy() for name in TOKENS]
        longest = [made(texts, "longest")[name].numpy() for name in TOKENS]
        lines.append(f"rows {whole[0].shape}, longest {longest[0].shape}, {[row.dtype.name for row in longest]}")
        lines += ["    " + " ".join(str(row.tolist()) for row in rows) for rows in zip(*whole)]
        for row, cut in zip(whole, longest):
            np.testing.assert_array_equal(cut, row[:, : cut.shape[1]])
    some = made.tokenize(tf.constant(TEXTS[:3])).merge_dims(1, 2)
    for name, row in made.pack(some, tf.constant(8)).items():
        np.testing.assert_array_equal(row, made(tf.constant(TEXTS[:3]))[name])
    with_prompt = made.with_prompt("the red ")
    assert made.prompt == "" and with_prompt.prompt == "the red "
    lines.append(f"with a prompt: {with_prompt(tf.constant(['cat']))['input_word_ids'].numpy().tolist()}")
    if kind in ("word_pieces", "words", "unigram_siglip"):
        strings = tf.TensorSpec([None], tf.string)
        outputs = tf.function(made.__call__, [strings], autograph=False).get_concrete_function().structured_outputs
        lines.append(f"in a graph: {[outputs[name].shape.as_list() for name in TOKENS]}")
    assert_snapshot(f"tokenizers/{kind}", "\n".join(lines))


@pytest.mark.parametrize("kind", KINDS)
def test_the_shortest_rows(kind):
    made = KINDS[kind](max_length=3)
    rows = made(tf.constant(TEXTS))["input_word_ids"].numpy()
    assert rows.shape == (len(TEXTS), 3)
    pieces = made.tokenize(tf.constant(["the cat"])).flat_values.numpy()
    assert pieces[0] in rows[TEXTS.index("the cat")]


CONFIGURED = {  # of `vocabulary`, and what the file holds
    "uncased": (dict(lower_case=True, prompt="a "), PIECES),
    "without_accents": (dict(strip_accents=True, cleaning=(WHOLE_CHINESE,)), PIECES),
    "byte_pairs": (dict(builder="byte_pair"), bytes_and_merges().vocabulary),
    "words": (dict(builder="sentence_pieces", lower_case=True), words().vocabulary),
    "siglip": (dict(builder="sentence_pieces", layout="siglip", prompt="b ", cleaning=("lower_ascii",)), None),
    "xlm_roberta": (dict(builder="sentence_pieces", layout="xlm_roberta", size=16), None),
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_configuration_decides_all_of_a_tokenizer(tmp_path, name):
    """Model files begin with the unknown piece here, which "xlm_roberta" moves, and "siglip" does not."""
    vocabulary, lines = CONFIGURED[name]
    config = base_config()
    config.text_tower.update(dict(max_length=9, **(dict(name="words", languages=LANGUAGES) if name == "words" else {})))
    config.vocabulary.update(vocabulary)
    path = tmp_path / NAME
    path.write_bytes("".join(f"{line}\n" for line in lines).encode() if lines else model_of(UNKNOWN_FIRST, SETTINGS))
    made = build_tokenizer(config, path)
    about = [type(made).__name__, made.max_length, made.lower_case, made.strip_accents, made.prompt]
    about += [getattr(made, "cleaning", None), getattr(made, "_whole_chinese", None), made.vocabulary_size]
    rows = made(tf.constant(["THE cat É 日日"]))["input_word_ids"].numpy().tolist()
    assert_snapshot(f"tokenizers/configured_{name}", f"{about}\n{made.vocabulary[:5]}\n{rows}")

    if name in ("uncased", "byte_pairs", "words", "siglip"):
        module = tf.Module()
        module.tokenizer = build_tokenizer(config, path, as_asset=True)
        module.rows = tf.function(module.tokenizer.__call__, [tf.TensorSpec([None], tf.string)], autograph=False)
        tf.saved_model.save(module, str(tmp_path / "saved"))
        content = path.read_bytes()
        path.unlink()  # the asset is a copy
        loaded = tf.saved_model.load(str(tmp_path / "saved"))
        assert (tmp_path / "saved/assets/vocabulary.txt").read_bytes() == content
        for tensor, values in made(tf.constant(TEXTS)).items():
            np.testing.assert_array_equal(loaded.rows(tf.constant(TEXTS))[tensor], values)
