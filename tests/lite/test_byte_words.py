"""Words of bytes without TensorFlow: those of Hugging Face's tokenizers, for texts of any characters."""

import sys
import unicodedata

import pytest

from mural_lite.byte_words import (
    CLIP_WORDS,
    END,
    EXPRESSIONS,
    GPT2,
    GPT4O,
    SEPARATOR,
    byte_characters,
    clip_words,
    separated_words,
)
from mural_lite.litert.pieces import CLEANING

hypothesis = pytest.importorskip("hypothesis", reason="needs hypothesis: pip install -e '.[test]'")
tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install -e '.[test]'")
strategies = hypothesis.strategies
MANY = hypothesis.settings(max_examples=400, deadline=None)
# Python's tables of characters may be older than the tokenizers', which then know more letters.
ASSIGNED = strategies.characters(exclude_categories=("Cs", "Cn"))
COMMON = [*" \t\n\r\u00a0\u3000\u200b\x1c\x85'aBzſKİı1²½.!/", "'s", "'RE", "'ll", "  ", "Ab", "\r\n"]
TEXTS = strategies.lists(strategies.sampled_from(COMMON) | ASSIGNED, max_size=20).map("".join)


def theirs(expression, **options):
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), **{"behavior": "isolated", **options})
    in_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizers.pre_tokenizers.Sequence([split, in_bytes])


@pytest.mark.parametrize("name,tokenizer", [
    (GPT2, tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)),  # with an expression of its own
    (GPT4O, theirs(EXPRESSIONS[GPT4O])),
])  # fmt: skip
def test_words_are_the_tokenizers(name, tokenizer):

    @MANY
    @hypothesis.given(TEXTS)
    def compare(text):
        words = separated_words(text, name).split(byte_characters()[SEPARATOR])
        assert [word for word in words if word] == [word for word, _ in tokenizer.pre_tokenize_str(text)]

    compare()


def test_numbers_of_gpt4o_have_three_digits():
    text = "a12345 678"
    words = separated_words(text, GPT4O).split(byte_characters()[SEPARATOR])
    assert [word for word in words if word] == ["a", "123", "45", "Ġ", "678"]


def test_clip_words_are_the_tokenizers():
    tokenizer = theirs(CLIP_WORDS, behavior="removed", invert=True)

    @MANY
    @hypothesis.given(TEXTS)
    def compare(text):
        for step in ("composed", "single_spaces", "lower_characters"):
            text = CLEANING[step](text)
        written = "".join(f"{chr(ord(c) - END)} " if ord(c) >= END else c for c in clip_words(text))
        assert written.split() == [word for word, _ in tokenizer.pre_tokenize_str(text)]

    compare()


def test_every_byte_has_its_own_printable_character():
    characters = byte_characters()
    assert sorted(characters) == sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert all(characters[ord(letter)] == letter for letter in "aZ~é") and characters[ord(" ")] == "Ġ"
    beyond = range(0x33480, sys.maxunicode + 1)
    assert {unicodedata.category(chr(code))[0] for code in beyond if not 0xE0100 <= code < 0xE01F0} == {"C"}
