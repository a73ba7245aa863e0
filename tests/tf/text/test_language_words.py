"""Words of several languages as ids: vocabularies, tags, the likeliest language, padding."""

import math
import random

import pytest
import tensorflow as tf

from mural_tf.text.language_words import MAX_BYTES, WordTokenizer, build_words
from mural_tf.text.tokens import tag_language

LANGUAGES = ("en", "de", "ja")
TEXTS = [
    ("en", "a red heart"), ("en", "a dog"), ("de", "Ein rotes Herz"), ("de", "ein Hund"), ("ja", "赤いハート"),
    ("xx", "no"),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return WordTokenizer(build_words(TEXTS, LANGUAGES, 100, True, False), LANGUAGES, max_length=4, lower_case=True)


def lines(tokenizer, tokens):
    rows = zip(tokens["input_word_ids"].numpy(), tokens["input_mask"].numpy())
    return [[tokenizer.vocabulary[word] for word, real in zip(*row) if real] for row in rows]


def test_vocabulary_is_by_language_and_frequency(tokenizer):
    assert tokenizer.vocabulary[:4] == ["[PAD]", "en\t[UNK]", "de\t[UNK]", "ja\t[UNK]"]
    assert tokenizer.vocabulary[4:8] == ["en\ta", "en\tdog", "en\theart", "en\tred"]  # "a" occurs twice
    assert tokenizer.vocabulary[8] == "de\tein"
    assert len(build_words(TEXTS, LANGUAGES, 10, True, False)) == 1 + 3 + 3 * 2  # two words for each language
    assert build_words(TEXTS, (), 100, True, False) == ["[PAD]"]


def test_tags_choose_the_language(tokenizer):
    tokens = tokenizer(tag_language(tf.constant(["a dog", "ein Hund", "a Hund"]), tf.constant(["en", "de", "de"])))
    assert lines(tokenizer, tokens) == [["en\ta", "en\tdog"], ["de\tein", "de\thund"], ["de\t[UNK]", "de\thund"]]
    assert tokens["input_type_ids"].numpy()[:, 0].tolist() == [0, 1, 1]
    assert {value.shape for value in tokens.values()} == {(3, 4)}  # padded to max_length
    assert tokenizer(tf.constant(["<en> a dog"]), pad="longest")["input_word_ids"].shape == (1, 2)


def test_the_likeliest_language_is_that_of_the_formula():
    """log(1 / (r + 1)) of the r-th word of a language, and a word that is not there a tenth of the rarest's 1 / n."""
    draw = random.Random(0)
    counts = {"en": 3, "de": 12, "ja": 40}  # words of each language, from frequent to rare
    ranked = {name: draw.sample([f"w{n}" for n in range(60)], count) for name, count in counts.items()}
    vocabulary = ["[PAD]", *(f"{name}\t[UNK]" for name in counts)]
    vocabulary += [f"{name}\t{word}" for name, words in ranked.items() for word in words]
    texts = [draw.choices([f"w{n}" for n in range(70)], k=draw.randint(0, 9)) for _ in range(2000)]
    found = WordTokenizer(vocabulary, tuple(counts)).likeliest_languages(tf.ragged.constant(texts, dtype=tf.string))
    checked = set()
    for text, language in zip(texts, found.numpy()):
        odds = []  # the probability's inverse, an integer
        for words in ranked.values():
            odds.append(math.prod(words.index(word) + 2 if word in words else 400 for word in text))
        if odds.count(min(odds)) == 1:  # sums of logarithms do not tell equal ones apart
            assert language == odds.index(min(odds)), text
            checked.add(language)
    assert checked == {0, 1, 2}


def test_of_a_very_long_text_the_first_bytes_are_read(tokenizer):
    rows = lines(tokenizer, tokenizer(tf.constant([" " * count + "a" for count in (MAX_BYTES - 1, MAX_BYTES)])))
    assert rows == [["en\ta"], ["en\t[UNK]"]]
