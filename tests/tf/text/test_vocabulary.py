"""Vocabulary building, saving and loading."""

import collections
import hashlib
import random

import pytest
from snapshots import assert_snapshot

from mural_tf.text import learning
from mural_tf.text import words as words_module
from mural_tf.text.learning import build_vocabulary, count_words
from mural_tf.text.vocabulary_file import (
    RESERVED_TOKENS,
    digest,
    load_vocabulary,
    save_vocabulary,
)
from mural_tf.text.word_pieces import WordPieceTokenizer


def sample_texts(count=800, seed=0):
    """Made-up words of a few syllables in five scripts, some far more frequent than others."""
    draw = random.Random(seed)
    alphabets = ("aeioklmnst", "абвгдеклмн", "กขคงจชดตนบ", "אבגדהוזחטי", "日本中国山川")
    lexicon = []
    for letters in alphabets:
        syllables = [draw.choice(letters) + draw.choice(letters) for _ in range(12)]
        lexicon.append(["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(200)])
    weights = [1 / (rank + 1) for rank in range(200)]
    return [" ".join(draw.choices(draw.choice(lexicon), weights, k=draw.randint(1, 6))) for _ in range(count)]


def test_same_texts_give_the_same_vocabulary_from_a_generator_in_any_order():
    texts = sample_texts()
    first = build_vocabulary(texts, 200)
    assert build_vocabulary((text for text in reversed(texts)), 200) == first
    assert build_vocabulary(sample_texts(seed=1), 200) != first


@pytest.mark.parametrize("size, builder", [(60, "tokenizers"), (150, "tokenizers"), (300, "byte_pair")])
def test_learned_vocabularies(size, builder):
    pieces = build_vocabulary(sample_texts(), size, builder)
    assert_snapshot(f"vocabularies/{builder}_{size}", "\n".join(map(repr, pieces)))


def test_words_are_given_to_the_learner_as_often_as_they_occur(monkeypatch):
    words = [("a", 2001), ("b", 1000), ("c", 1)]
    lines = [line.split(" ") for line in learning._written_out(words)]
    assert lines == [["a"] * 1000, ["a"] * 1000, ["a"], ["b"] * 1000, ["c"]]
    monkeypatch.setattr(learning, "_train", lambda tokenizers, model, trainer, words: words)
    counts = {"b": 10, "a": 30}
    for most, expected in ((40, [("a", 30), ("b", 10)]), (39, [("a", 29), ("b", 10)]), (4, [("a", 3), ("b", 1)])):
        monkeypatch.setattr(learning, "MOST_OCCURRENCES", most)
        assert learning.learn_vocabulary(counts, 60) == expected
    monkeypatch.setattr(learning, "_learn_word_pieces", lambda counts, size, most: most)
    sizes = {size: learning.learn_vocabulary(counts, size) for size in (8, 60, 3004, 3005, 6006)}
    assert sizes == {8: 1, 60: 18, 3004: 999, 3005: 1000, 6006: 1001}


def test_counts_of_many_texts_are_those_of_all(monkeypatch):
    """In batches of three texts of a language, and of two distinct words at most."""
    monkeypatch.setattr(words_module, "BATCH", 3)
    texts = [(["en", "de", "ja"][n % 3], f"w{n % 5} x") for n in range(20)]
    batches = list(words_module.count_by_language(texts, words_module.WordSplitter()))
    assert [(language, counts.total()) for language, counts in batches] == [
        ("en", 6), ("de", 6), ("ja", 6), ("en", 6), ("de", 6), ("ja", 6), ("en", 2), ("de", 2)
    ]  # fmt: skip
    assert sum((counts for _, counts in batches), collections.Counter()) == {"x": 20, **{f"w{n}": 4 for n in range(5)}}
    bounded = words_module.BoundedCounts(2)
    for counts in ({"a": 5, "b": 2}, {"c": 1}, {"b": 1}, {"d": 9, "e": 9}):
        bounded.add(counts)
    # After "c" the counts are 5, 2, 1: words up to 2 are forgotten. "b" comes back with 2 + 1; 5, 3, 11, 11 keep none
    # of 11 or less.
    assert (bounded.counts, bounded.error) == ({}, 11)
    assert words_module.count_words(["a b"], max_words=1) == {}
    with pytest.raises(ValueError, match="max_words is 0; expected at least 1."):
        words_module.BoundedCounts(0)


@pytest.mark.parametrize("options,letter", [({}, "É"), ({"lower_case": True}, "é"), ({"strip_accents": True}, "E")])
def test_pieces_keep_case_and_accents_unless_told_otherwise(options, letter):
    letters = {piece.removeprefix("##") for piece in build_vocabulary(["É"] * 20, 60, **options)}
    assert letters & {"É", "é", "E", "e"} == {letter}


def test_count_words_matches_splitting_by_hand():
    counts = count_words(["Red circle, red!", "red\u00a0circle\u200b日本"])
    expected = {"Red": 1, "circle": 2, ",": 1, "red": 2, "!": 1, "日": 1, "本": 1}
    assert counts == collections.Counter(expected)
    assert count_words(["ÉTÉ Été"], lower_case=True) == {"été": 2}
    assert count_words(["ÉTÉ Été"], lower_case=True, strip_accents=True) == {"ete": 2}


def test_rare_characters_are_cut_when_the_alphabet_is_limited():
    # A vocabulary of 12 has room for an alphabet of two.
    pieces = learning.learn_vocabulary({"ab": 10, "ba": 9, "abz": 1}, 12)
    assert pieces == [*RESERVED_TOKENS, "a", "b", "##a", "##b", "ab", "ba"]


def test_save_and_load_round_trip(tmp_path):
    # U+2028 and U+0085 are line separators for Python's splitlines(), not in a vocabulary file.
    pieces = [*RESERVED_TOKENS, "a", "##ß", "\u2028", "##\u0085", "\u00a0", "日"]
    save_vocabulary(pieces, tmp_path / "vocabulary.txt")
    assert load_vocabulary(tmp_path / "vocabulary.txt") == pieces
    assert [file.name for file in tmp_path.iterdir()] == ["vocabulary.txt"]


def test_a_digest_is_of_the_lines_and_their_order(tmp_path):
    pieces = [*RESERVED_TOKENS, "a", "##ß"]
    save_vocabulary(pieces, tmp_path / "vocabulary.txt")
    data = (tmp_path / "vocabulary.txt").read_bytes()
    assert digest(pieces) == hashlib.sha256(data).hexdigest()  # as `sha256sum` prints it
    (tmp_path / "vocabulary.txt").write_bytes(data.replace(b"\n", b"\r\n")[:-2])
    assert digest(load_vocabulary(tmp_path / "vocabulary.txt")) == digest(pieces)
    others = [[], ["a"], ["##ß", "a"], ["a##ß"], ["a", "##ß", ""], ["q", "##ß"]]
    assert len({digest(pieces), *(digest([*RESERVED_TOKENS, *last]) for last in others)}) == 7


def test_bert_files_load_as_they_are(tmp_path):
    lines = ["[PAD]", *(f"[unused{i}]" for i in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s"]
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join(lines).encode())  # Windows line ends, no end of line at the end
    assert load_vocabulary(path) == lines
    ids = WordPieceTokenizer.load(path, max_length=4)(["thes [unused1]"])["input_word_ids"].numpy()[0]
    assert [lines[i] for i in ids] == ["[CLS]", "the", "##s", "[SEP]"]
