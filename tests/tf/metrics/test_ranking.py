"""Ranking metrics against hand-derived numbers and a naive sort."""

import numpy as np
import pytest

from mural_tf.metrics import ranking


def test_ranks_by_hand():
    # Embeddings on the axes, so a score is a coordinate of the query. Scores of query 0: 3, 2, 2, 1.
    candidates = np.eye(4, dtype=np.float32)
    queries = np.array([[3, 2, 2, 1]] * 5, np.float32)
    positives = [[0], [3], [1], [1, 2], [3, 1]]
    # 0: nothing above: 1. 3: three above: 4. 1: one above, one tied non-positive: 1 + 1 + 1/2.
    # {1, 2}: one above, the tie is a positive itself: 2. {3, 1}: the better is 1, as the third: 2.5.
    np.testing.assert_array_equal(ranking.ranks(queries, candidates, positives), [1, 4, 2.5, 2, 2.5])


def test_best_positive_is_above_other_positives():
    # Scores 3, 2, 1; positives 1 and 2: only candidate 0 is above the best of them, positive 2 does not push it down.
    result = ranking.ranks(np.array([[3, 2, 1]]), np.eye(3), [[2, 1]])
    np.testing.assert_array_equal(result, [2])


def test_blocks_of_any_number_of_candidates_count_alike():
    """More than a byte can count of them; ties are decided by the candidate's own place."""
    random = np.random.default_rng(4)
    queries, candidates = (random.integers(-2, 3, (count, 4)).astype(np.float32) for count in (9, 700))
    positives = random.integers(0, 700, 9)
    found = ranking.Counts(queries, candidates, np.arange(9), positives, np.arange(700))
    scores = candidates @ queries.T
    scores[positives, np.arange(9)] = -np.inf
    for begin, end in ((0, 100), (100, 700)):
        found.add_columns(scores[begin:end], begin)
    np.testing.assert_array_equal(found.ranks(), ranking.ranks(queries, candidates, positives))


@pytest.mark.parametrize("size", [64, 300, 512])
def test_identical_candidates_tie_wherever_they_are(size):
    # A collapsed model: every rank is the middle of the pool, 1 + (C - 1) / 2, although BLAS rounds columns unequally.
    random = np.random.default_rng(2)
    candidates = np.repeat(random.standard_normal((1, size)).astype(np.float32), 1003, axis=0)
    queries = random.standard_normal((20, size)).astype(np.float32)
    result = ranking.ranks(queries, candidates, np.arange(20) * 50)
    np.testing.assert_array_equal(result, np.full(20, 502.0))


def test_forms_of_positives_agree():
    random = np.random.default_rng(3)
    queries, candidates = random.standard_normal((9, 8)), random.standard_normal((9, 8))
    order = random.permutation(9)
    expected = ranking.ranks(queries, candidates, order)
    np.testing.assert_array_equal(ranking.ranks(queries, candidates, [[i] for i in order]), expected)
    np.testing.assert_array_equal(ranking.ranks(queries, candidates, [np.array([i, i]) for i in order]), expected)
    np.testing.assert_array_equal(ranking.ranks(queries, candidates, [(i,) for i in order], chunk=2), expected)


def test_recalls_by_hand():
    # Ranks 1, 1.5, 5, 10, 11: 1 of 5 is <= 1 (a half rank above 1 is not a hit), 3 are <= 5, 4 are <= 10.
    image_to_text = np.array([1, 1.5, 5, 10, 11])
    # Ranks 2, 3: none is <= 1, both are <= 5 and <= 10.
    text_to_image = np.array([2, 3])
    metrics = ranking.summarize(image_to_text, text_to_image)
    expected = {
        "image_to_text/recall@1": 20,
        "image_to_text/recall@5": 60,
        "image_to_text/recall@10": 80,
        "image_to_text/mean_rank": 28.5 / 5,
        "image_to_text/median_rank": 5,
        "text_to_image/recall@1": 0,
        "text_to_image/recall@5": 100,
        "text_to_image/recall@10": 100,
        "text_to_image/mean_rank": 2.5,
        "text_to_image/median_rank": 2.5,
        "mean_recall": (20 + 60 + 80 + 0 + 100 + 100) / 6,
    }
    assert metrics.keys() == expected.keys()
    for key, value in expected.items():
        assert metrics[key] == pytest.approx(value, abs=1e-9), key


ONES = np.ones((2, 3))


@pytest.mark.parametrize("queries, candidates, positives, message", [
    (ONES, np.ones((2, 4)), [[0], [1]], "one embedding size"), (ONES, ONES, np.array([0]), "each of the 2 queries"),
    (ONES, ONES, [[0], []], "Query 1 has no positive"), (ONES, ONES, [[0], [2]], "index 2"),
    (ONES, ONES, [[0], [-1]], "index -1"), (np.ones((0, 3)), ONES, np.zeros(0, int), "non-empty"),
    (np.array([[1, 2], [np.nan, 0]]), np.ones((2, 2)), [[0], [1]], "1 of 2 queries hold NaN.*row 1"),
    (np.ones((1, 2)), np.array([[1, np.inf]]), [[0]], "1 of 1 candidates hold NaN"),
])  # fmt: skip
def test_bad_input_is_named(queries, candidates, positives, message):
    with pytest.raises(ValueError, match=message):
        ranking.ranks(queries, candidates, positives)
