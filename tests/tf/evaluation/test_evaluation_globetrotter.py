"""Sentence and word translation by retrieval, and rotations between languages."""

import fake_embedder
import numpy as np
import pytest
from fake_embedder import FakeEmbedder

from mural_lite.errors import UserError
from mural_tf.evaluation.globetrotter import count_words, pair_words, words_of
from mural_tf.evaluation.parallel import read_parallel


def write(folder, **texts):
    for language, lines in texts.items():
        (folder / f"talk.{language}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(folder, embedder, **options):
    options = {f"globetrotter__{key}": value for key, value in options.items()}
    return fake_embedder.run("globetrotter", folder, embedder, **options)[0]


def test_sentence_translation_by_hand(tmp_path):
    write(tmp_path, en=["red cat", "big dog"], de=["rote Katze", "großer Hund"], fr=["chat rouge", "grand chien"])
    vector = {
        "red cat": [1, 0, 0],
        "rote Katze": [0.9, 0.1, 0],
        "chat rouge": [0.9, 0, 0.1],
        "big dog": [0, 1, 0],
        "großer Hund": [0.1, 0.9, 0],
        "grand chien": [0.8, 0, 0.2],  # says cat
    }
    embedder = FakeEmbedder()
    embedder.encode_text = lambda texts, **_: np.array([vector.get(t, np.ones(3)) for t in texts], np.float32)
    result = run(tmp_path, embedder, words=1)
    # M = 3: two nearest of five each. All candidates:
    # red cat: rote Katze .9, chat rouge .9, grand chien .8 -> 2 hits. rote Katze: red cat .9, chat rouge .81 -> 2 hits.
    # chat rouge: red cat .9, rote Katze .81, grand chien .74 -> 2. big dog: großer Hund .9, rote Katze .1 -> 1.
    # großer Hund: big dog .9, rote Katze .18 -> 1. grand chien: red cat .8, chat rouge .74 -> 0.
    assert result.metrics["globetrotter/sentence_translation/all_candidates"] == pytest.approx(100 * 8 / 12)
    # Without the own language only big dog loses red cat (nothing), grand chien chat rouge: then rote Katze .72 -> 0.
    assert result.metrics["globetrotter/sentence_translation/other_languages"] == pytest.approx(100 * 8 / 12)
    assert "NOT COMPLETE: 2 sentences" in " ".join(result.notes)


def test_same_language_candidates_are_left_out(tmp_path):
    # Every sentence is nearest to its own language: none found among all, all found in the other language.
    write(tmp_path, en=["a1", "a2", "a3"], de=["b1", "b2", "b3"])
    axis = np.eye(5)
    vector = {f"{x}{i}": 2 * axis[3 + (x == "b")] + axis[i - 1] for x in "ab" for i in (1, 2, 3)}
    embedder = FakeEmbedder({**vector})
    result = run(tmp_path, embedder)
    assert result.metrics["globetrotter/sentence_translation/all_candidates"] == 0
    assert result.metrics["globetrotter/sentence_translation/other_languages"] == 100


def test_each_head_of_the_text_tower_is_measured(tmp_path):
    """The image-text head maps each language to its own axis, the text-text head each sentence to its own."""
    write(tmp_path, en=["a1", "a2", "a3"], de=["b1", "b2", "b3"])
    axis = np.eye(5)
    apart = {f"{x}{i}": axis[3 + (x == "b")] + 0.1 * axis[i - 1] for x in "ab" for i in (1, 2, 3)}
    together = {f"{x}{i}": axis[i - 1] for x in "ab" for i in (1, 2, 3)}
    embedder = FakeEmbedder(apart)
    embedder.text_heads = {"text_text": None}
    embedder.with_text_head = lambda name: FakeEmbedder(together)
    metrics = run(tmp_path, embedder).metrics
    for name, expected in (("all_candidates", 0), ("all_candidates_text_text_head", 100)):
        assert metrics[f"globetrotter/sentence_translation/{name}"] == expected
    assert metrics["globetrotter/word_translation/raw_text_text_head"] == 100
    assert "globetrotter/word_translation/rotated" in metrics


def test_word_pairs_are_found_where_words_occur_together():
    # The words go together one to one, "the" goes with everything, which idf discounts to zero.
    english = ["the cat", "the dog", "the fish", "the cat dog"]
    german = ["die Katze", "die Hund", "die Fisch", "die Katze Hund"]
    (a, counts_a), (b, counts_b) = count_words(english, 100), count_words(german, 100)
    left, right = pair_words(counts_a, counts_b)
    found = {(a[i], b[j]) for i, j in zip(left, right)}
    assert {("cat", "katze"), ("dog", "hund"), ("fish", "fisch")} <= found
    assert not any("die" in pair for pair in found)


def test_tf_idf_by_hand():
    # One word of A in both sentences: its document is "x x y"; the other's is "y". Frequencies 2/3, 1/3 and 0, 1;
    # x is in 1 of 2 documents, y in both: tf-idf 2/3 log 2 and 0.
    from mural_tf.evaluation.globetrotter import _tf_idf

    counts_a, counts_b = np.array([[1, 0], [1, 1]]), np.array([[2, 0], [0, 1]])
    np.testing.assert_allclose(_tf_idf(counts_a, counts_b), [[2 / 3 * np.log(2), 0], [0, 0]], atol=1e-7)


def test_words_in_lower_case_without_punctuation():
    assert words_of("L'Été, 20-year-old — снег!") == ["l'été", "20-year-old", "снег"]


def test_word_recall_with_and_without_identical_words(tmp_path):
    write(tmp_path, en=["taxi cat", "taxi dog", "fish"], de=["taxi katze", "taxi hund", "fisch"])
    same = {"cat": "katze", "dog": "hund", "fish": "fisch", "taxi": "taxi"}
    axis = {word: np.eye(4)[i] for i, word in enumerate(same)}
    axis |= {german: axis[english] for english, german in same.items()}
    embedder = FakeEmbedder()
    embedder.encode_text = lambda texts, **_: np.array([sum(axis[w] for w in t.split()) for t in texts], np.float32)
    metrics = run(tmp_path, embedder).metrics
    assert metrics["globetrotter/word_translation/raw"] == 100  # ten nearest of four words
    assert metrics["globetrotter/word_translation/rotated_without_identical"] == 100


def test_parallel_sentences_need_lines_side_by_side(tmp_path):
    write(tmp_path, en=["one", "two"], de=["eins"])
    with pytest.raises(UserError, match="equally many lines.*de 1, en 2"):
        read_parallel(tmp_path, "")
    write(tmp_path, en=["one", "two"], de=["eins", ""])
    texts, notes = read_parallel(tmp_path, "")
    assert texts == {"de": ["eins"], "en": ["one"]} and "1 of 2 sentences" in notes[0]
    with pytest.raises(UserError, match="No sentences in sw"):
        read_parallel(tmp_path, "", ["sw"])
    with pytest.raises(UserError, match="Two languages or more are needed; got de"):
        read_parallel(tmp_path, "", ["de", "de"])
