"""Exact search against a full sort, in blocks, with masks and in half precision."""

import numpy as np
import pytest

from mural_lite import top_k


@pytest.mark.parametrize("count, k, order", [
    (1, 1, "ties"), (50, 7, "ties"), (9000, 10, "rising"), (9000, 10, "ties"), (9000, 5000, "random"), (30, 99, "ties")
])  # fmt: skip
def test_top_k_equals_a_full_sort(count, k, order, monkeypatch):
    random = np.random.default_rng(0)
    # Small integers: every product is exact, so that ties are ties.
    rows = random.integers(-2 if order == "ties" else -30, 3 if order == "ties" else 31, (count, 3)).astype(np.float32)
    queries = random.integers(-2, 3, (5, 3)).astype(np.float32)
    if order == "rising":
        rows = rows[np.argsort(rows @ queries[0], kind="stable")]
    monkeypatch.setattr(top_k, "QUERIES", 2)
    scores, found = top_k.top_k(queries, rows, k)
    assert scores.shape == found.shape == (5, min(k, count)) and found.dtype == np.int64
    expected = np.argsort(-(queries @ rows.T), axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(queries @ rows.T, expected, 1))


def test_top_k_leaves_out_masked_rows(monkeypatch):
    monkeypatch.setattr(top_k, "QUERIES", 5)
    monkeypatch.setattr(top_k, "BLOCK", 8)
    random = np.random.default_rng(0)
    queries, rows = random.integers(-2, 3, (23, 4)), random.integers(-2, 3, (37, 4))
    scores = (queries @ rows.T).astype(float)
    scores[np.arange(23), np.arange(23)] = -np.inf
    own = lambda begin, end: np.arange(begin, end)[:, None] == np.arange(37)  # noqa: E731
    for k in (1, 6, 36):
        expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(top_k.top_k(queries, rows, k, own)[1], expected)


def test_half_precision_rows_are_multiplied_in_single(tmp_path):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)].reshape(-1, 2)[:, ::-1]  # not contiguous
    converted = top_k.as_float32(every)
    assert converted.dtype == np.float32
    np.testing.assert_array_equal(converted.view(np.int32), every.astype(np.float32).view(np.int32))  # -0 too
    rows = np.random.default_rng(0).standard_normal((5000, 40)).astype(np.float16)
    np.save(tmp_path / "rows.npy", rows)
    queries = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    scores, found = top_k.top_k(queries, np.load(tmp_path / "rows.npy", mmap_mode="r"), 4)
    full = queries @ rows.astype(np.float32).T
    np.testing.assert_array_equal(found, np.argsort(-full, axis=1)[:, :4])
    assert np.abs(scores - -np.sort(-full, axis=1)[:, :4]).max() < 1e-4


@pytest.mark.parametrize("queries, k, message", [
    (np.ones((2, 4)), 1, "Expected queries"), (np.ones(3), 1, "Expected queries"), (np.ones((2, 3)), 0, "at least 1"),
    (np.full((1, 3), np.nan), 1, "NaN"),
])  # fmt: skip
def test_unusable_vectors_are_named(queries, k, message):
    with pytest.raises(ValueError, match=message):
        top_k.top_k(queries, np.ones((5, 3), np.float32), k)
