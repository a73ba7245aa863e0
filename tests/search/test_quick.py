"""What a server keeps in memory changes the time that a question takes, not its answer."""

import numpy as np
import pytest

from mural_tf.fingerprint import TEXTS, Fingerprint
from mural_tf.search import codes, ranking
from mural_tf.search.codes import Codes, quicken
from mural_tf.search.index import Index, exact
from mural_tf.search.items import Item, parse_filters

RANDOM = np.random.default_rng(7)


def unit(*shape):
    vectors = RANDOM.standard_normal(shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_products_are_within_their_bounds_and_the_best_are_candidates(dtype, monkeypatch):
    monkeypatch.setattr(codes, "PART", 1024)  # several tasks, the last of them short
    vectors, vector = unit(3000, 48), unit(48)
    vectors[7] = 0.0
    vectors[8] *= 300.0  # a damaged row of another length
    vectors = vectors.astype(dtype)
    made = Codes(vectors)
    products = vectors.astype(np.float64) @ vector.astype(np.float64)
    lower, upper = made.bounds(vector)
    assert (lower <= products).all() and (products <= upper).all()
    # Rounding moves a number by half a step at most, a 254th of the row's largest: of 48 such, far less than this.
    assert np.delete(upper - lower, 8).max() < 0.05
    for among in (None, np.arange(0, 3000, 2), np.arange(100)):
        chosen = made.candidates(vector, 20, among)
        assert among is None or np.isin(chosen, among).all()
        assert len(chosen) < 200
        for got, wanted in zip(exact(vector[None], vectors, 20, chosen), exact(vector[None], vectors, 20, among)):
            np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_rows_that_are_no_numbers_are_candidates():
    vectors = unit(50, 16)
    vectors[3, 2], vectors[4, 0] = np.nan, np.inf
    assert {3, 4} <= set(Codes(vectors).candidates(unit(16), 5).tolist())


@pytest.fixture(scope="module")
def index():
    things = ["red shoe", "blue shoe", "banana bandana banana", "赤い風船", "a", "green hat with a red shoe on it"]
    items = [
        Item(
            f"{n}.jpg",
            f"/p/{n}.jpg",
            captions=(("en", f"{things[n % 6]} {n:x}"), ("de", f"{things[n % 4]} nummer {n}"))[: 1 + n % 2],
            fields={"price": str(n % 50), "note": "long " * (n % 40)},  # from 128 trigrams on a length has two bytes
        )
        for n in range(900)
    ]
    made = Index(items, unit(900, 32), Fingerprint(np.eye(len(TEXTS) + 2, 32, dtype=np.float32)))
    made.captions = ranking.Captions(unit(len(made.table.caption_ids), 32).astype(np.float16), made.table, "")
    return made


QUESTIONS = ["red shoe", "banana", "風船", "a", "nummer 17", "shoe on a hat", "xyzzy", "long", "red -hat", "3f"]


@pytest.mark.parametrize("where", [(), ("price<5",), ("price>3",)])
@pytest.mark.parametrize("rank", ranking.RANKS)
def test_answers_are_the_same(index, where, rank):
    def ask():
        vectors = np.random.default_rng(3).standard_normal((len(QUESTIONS), 32)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        asked = ((text, vector[None], 40, parse_filters(where), rank) for text, vector in zip(QUESTIONS, vectors))
        return [ranking.rank_all(index, [text], vector, vector, *given)[0] for text, vector, *given in asked]

    index.codes = index.captions.codes = index.table.postings = None
    before = ask()
    quicken(index)
    assert index.table.postings is not None
    for slow, quick in zip(before, ask()):
        assert slow.rows.tolist() == quick.rows.tolist()
        for way, entries in slow.lists.items():
            assert [(row, place) for row, (place, _) in entries.items()] == [
                (row, place) for row, (place, _) in quick.lists[way].items()
            ]
            values = [[value for _, value in ranked.lists[way].values()] for ranked in (slow, quick)]
            np.testing.assert_allclose(*values, atol=1e-6)


def test_lists_that_stay_in_memory_are_bounded(index, monkeypatch):
    monkeypatch.setattr("mural_tf.search.postings.KEPT", 100)
    quicken(index)
    wanted = index.table.by_words("red shoe", 10)
    assert index.table.by_words("red shoe", 10)[0].tolist() == wanted[0].tolist()
    assert len(index.table.postings._lists) == 1  # each is longer than all may be
