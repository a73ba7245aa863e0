"""Exact search: the rows of a matrix with the largest dot product with each query, block by block.

Scores of a block are compared with the k-th best score so far, so that only the few that can still enter the result
are sorted; the matrix product remains the whole cost. Memory beyond the matrix is one block of scores.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

BLOCK = 4096  # rows scored at a time: the scores of 64 queries, 1 MB, stay in the cache
QUERIES = 256  # queries scored at a time
FEW = 8  # queries; for at most so many, rows of NUMBERS numbers are scored at a time, which stay in the cache
NUMBERS = 2**17  # float32


def top_k(
    queries: np.ndarray, rows: np.ndarray, k: int, mask: Callable[[int, int], np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the dot products of the `k` best rows of every query, and the rows' numbers.

    Args:
      queries: float [Q, D], used as float32.
      rows: float32 or float16 [N, D], N >= 1, a memory-mapped file too; products are taken in float32.
      k: how many; at most N are returned.
      mask: function of (begin, end) that returns bool [end - begin, N]: the rows that the queries from `begin` to `end`
        must not find; each query must be left at least k rows.

    Returns:
      float32 scores [Q, min(k, N)], falling, and int64 rows [Q, min(k, N)]. Rows with the same score keep their order.
      (BLAS may round equal products in different places of a block differently by 1e-7.)

    Raises `ValueError` for shapes that do not fit, k below 1, or queries that are not finite.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or rows.ndim != 2 or queries.shape[1] != rows.shape[1] or not len(rows):
        raise ValueError(f"Expected queries [Q, D] and rows [N, D] with N >= 1; got {queries.shape} and {rows.shape}.")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    if not np.isfinite(queries).all():
        raise ValueError("The queries hold NaN or infinity.")
    k = min(k, len(rows))
    results = []
    for begin in range(0, max(1, len(queries)), QUERIES):
        block = queries[begin : begin + QUERIES]
        hidden = None
        if mask:
            hidden = mask(begin, begin + len(block))
        results.append(_top_k(block, np.asarray(rows), k, hidden))
    scores, best_rows = zip(*results)
    return np.concatenate(scores), np.concatenate(best_rows)


def _top_k(queries: np.ndarray, rows: np.ndarray, k: int, hidden: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the k best scores, float32 [Q, k], and rows, int64 [Q, k], of one block of queries.

    `hidden`: bool [Q, N], the rows that are left out. Ranks without a row have the score -inf and the row N.
    """
    best_scores = np.full((len(queries), k), -np.inf, np.float32)
    best_rows = np.full((len(queries), k), len(rows), np.int64)
    buffer = np.empty((len(queries), BLOCK), np.float32)
    for begin in range(0, len(rows), BLOCK):
        count = min(BLOCK, len(rows) - begin)
        scores = buffer  # [Q, B]
        if count < BLOCK:  # the last block: a part of the buffer would not be contiguous
            scores = np.empty((len(queries), count), np.float32)
        _write_scores(queries, rows[begin : begin + count], scores)
        if hidden is not None:
            scores[hidden[:, begin : begin + BLOCK]] = -np.inf
        is_better = scores > best_scores[:, -1:]  # a later row with the same score as the k-th stays out
        if np.count_nonzero(is_better) > 4 * best_rows.size and count > k:
            # The first block, or rows sorted by similarity: only the k best of the block are sorted.
            kth_best = np.partition(scores, count - k, axis=1)[:, count - k, None]
            is_better &= scores >= kth_best
        query_numbers, columns = np.divmod(np.flatnonzero(is_better), count)  # 20 times as fast as `np.nonzero`
        if len(columns):
            better_scores = scores[query_numbers, columns]
            best_scores, best_rows = _merge(best_scores, best_rows, query_numbers, better_scores, begin + columns)
    return best_scores, best_rows


def _write_scores(queries: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
    """Writes the dot products of queries, [Q, D], and rows, [B, D], into `scores`, float32 [Q, B]."""
    rows_at_a_time = BLOCK
    if len(queries) <= FEW:
        rows_at_a_time = max(1, NUMBERS // rows.shape[1])  # so that converted rows stay in the cache
    for begin in range(0, len(rows), rows_at_a_time):
        part = rows[begin : begin + rows_at_a_time]
        np.matmul(queries, as_float32(part).T, out=scores[:, begin : begin + len(part)])


def as_float32(values: np.ndarray) -> np.ndarray:
    """Returns finite float16 or float32 values as float32; it converts float16 several times faster than `astype`.

    Moved by 13 bits, a float16's exponent and mantissa are a float32's. Since the exponents' biases, 15 and 127, differ
    by 112, the value is 2^-112 times as large, also for subnormal numbers.
    """
    if values.dtype != np.float16:
        return np.asarray(values, np.float32)
    bits = np.ascontiguousarray(values).view(np.int16).astype(np.int32)  # the sign fills the upper half
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(~0x70000000), out=bits)  # of the sign's copies only the uppermost bit stays
    scaled = bits.view(np.float32)
    return np.multiply(scaled, np.float32(2.0**112), out=scaled)


def _merge(
    best_scores: np.ndarray, best_rows: np.ndarray, queries: np.ndarray, scores: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best scores and rows, [Q, k] each, among the best so far and C candidates.

    `queries`, `scores`, `rows`: the query, the score and the row of each candidate, [C].
    """
    query_count, k = best_scores.shape
    queries = np.concatenate([np.repeat(np.arange(query_count), k), queries])
    scores = np.concatenate([best_scores.ravel(), scores])
    rows = np.concatenate([best_rows.ravel(), rows])
    order = np.lexsort((rows, -scores, queries))  # by query, then the largest scores first, then by row
    starts = np.searchsorted(queries[order], np.arange(query_count))
    best = order[starts[:, None] + np.arange(k)]  # [Q, k]; every query has at least its k candidates from before
    return scores[best], rows[best]
