"""Vocabulary building, saving and loading."""

import collections
import hashlib
import random

import pytest

from mural_tf.text import learning as vocabulary_module
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


@pytest.mark.parametrize("size", (60, 150, 300))
def test_size_is_an_upper_bound_and_reserved_pieces_come_first(size):
    pieces = build_vocabulary(sample_texts(), size)
    assert len(pieces) <= size
    assert len(pieces) > 0.8 * size  # there are plenty of candidates
    assert len(set(pieces)) == len(pieces)
    assert tuple(pieces[:5]) == RESERVED_TOKENS


def test_same_texts_give_the_same_vocabulary_from_a_generator_in_any_order():
    texts = sample_texts()
    first = build_vocabulary(texts, 200)
    assert build_vocabulary((text for text in reversed(texts)), 200) == first
    assert build_vocabulary(sample_texts(seed=1), 200) != first


def test_training_words_need_few_pieces_and_no_unknown():
    texts = sample_texts()
    pieces = build_vocabulary(texts, 400)
    tokenizer = WordPieceTokenizer(pieces)
    ids = tokenizer.tokenize(texts)
    words = ids.bounding_shape(out_type="int64")
    assert words[0] == len(texts)
    flat = ids.flat_values.numpy()
    assert not (flat == pieces.index("[UNK]")).any()
    characters = sum(len(text.replace(" ", "")) for text in texts)
    assert len(flat) < 0.5 * characters  # a vocabulary of characters alone needs one piece for each


def test_frequent_words_become_pieces():
    texts = ["the red circle"] * 50 + ["the blue square"] * 50 + ["zig"]
    pieces = build_vocabulary(texts, 60)
    assert {"the", "red", "circle", "blue", "square"} <= set(pieces)


def test_pieces_that_could_never_be_used_are_left_out():
    # A Chinese character and a punctuation mark always stand alone, so none of them can continue a word.
    pieces = build_vocabulary(["日本 日本, word"] * 20, 60)
    assert "日" in pieces and "," in pieces and "##o" in pieces
    assert "##日" not in pieces and "##," not in pieces


def test_count_words_matches_splitting_by_hand():
    counts = count_words(["Red circle, red!", "red\u00a0circle\u200b日本"])
    expected = {"Red": 1, "circle": 2, ",": 1, "red": 2, "!": 1, "日": 1, "本": 1}
    assert counts == collections.Counter(expected)
    assert count_words(["ÉTÉ Été"], lower_case=True) == {"été": 2}
    assert count_words(["ÉTÉ Été"], lower_case=True, strip_accents=True) == {"ete": 2}


def test_the_most_frequent_words_are_kept():
    counts = {"bbb": 9, "qqq": 1, "aaa": 9}
    assert vocabulary_module._most_frequent(counts, 2) == [("aaa", 9), ("bbb", 9)]
    assert "qqq" in vocabulary_module.learn_vocabulary(counts, 60)


def test_rare_characters_are_cut_when_the_alphabet_is_limited():
    # A vocabulary of 12 has room for an alphabet of two.
    pieces = vocabulary_module.learn_vocabulary({"ab": 10, "ba": 10, "abz": 1}, 12)
    assert "a" in pieces and "b" in pieces and not any("z" in piece for piece in pieces)


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
