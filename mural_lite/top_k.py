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
    """Returns the `k` best rows of every query.

    Args:
      queries: float [Q, D], used as float32.
      rows: float32 or float16 [N, D], N >= 1, a memory-mapped file too; products are taken in float32.
      k: how many; at most N are returned.
      mask: function of (begin, end) that returns bool [end - begin, N]: the rows that these queries must not find;
        each query must be left at least k rows.

    Returns:
      float32 scores [Q, min(k, N)], falling, and int64 rows [Q, min(k, N)]. Rows with the same score keep their order.
      (BLAS may round equal products in different places of a block differently by 1e-7.)

    Raises:
      ValueError: shapes that do not fit, k below 1, queries that are not finite.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or rows.ndim != 2 or queries.shape[1] != rows.shape[1] or not len(rows):
        raise ValueError(f"Expected queries [Q, D] and rows [N, D] with N >= 1; got {queries.shape} and {rows.shape}.")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    if not np.isfinite(queries).all():
        raise ValueError("The queries hold NaN or infinity.")
    k = min(k, len(rows))
    parts = []
    for begin in range(0, max(1, len(queries)), QUERIES):
        block = queries[begin : begin + QUERIES]
        hidden = None
        if mask:
            hidden = mask(begin, begin + len(block))
        parts.append(_top_k(block, np.asarray(rows), k, hidden))
    return tuple(np.concatenate(part) for part in zip(*parts))


def _top_k(queries: np.ndarray, rows: np.ndarray, k: int, hidden: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the k best scores and rows of one block of queries: [Q, D] and [N, D] -> float32 and int64 [Q, k].

    `hidden`: bool [Q, N], the rows that are left out. Ranks without a row have the score -inf and the row N.
    """
    best_scores = np.full((len(queries), k), -np.inf, np.float32)
    best_rows = np.full((len(queries), k), len(rows), np.int64)
    buffer = np.empty((len(queries), BLOCK), np.float32)
    for begin in range(0, len(rows), BLOCK):
        count = min(BLOCK, len(rows) - begin)
        scores = buffer  # [Q, B]
        if count < BLOCK:
            scores = np.empty((len(queries), count), np.float32)
        _write_scores(queries, rows[begin : begin + count], scores)
        if hidden is not None:
            scores[hidden[:, begin : begin + BLOCK]] = -np.inf
        entering = scores > best_scores[:, -1:]  # a later row with the same score as the k-th stays out
        if np.count_nonzero(entering) > 4 * best_rows.size and count > k:
            # The first block, or rows sorted by similarity: sort the k best of the block instead of all.
            kth_best = np.partition(scores, count - k, axis=1)[:, count - k, None]
            entering &= scores >= kth_best
        flat = np.flatnonzero(entering)
        if len(flat):
            owners, columns = np.divmod(flat, count)
            entered = scores[owners, columns]
            best_scores, best_rows = _merge(best_scores, best_rows, owners, entered, begin + columns)
    return best_scores, best_rows


def _write_scores(queries: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
    """Writes the products of [Q, D] and [B, D] into `scores`, [Q, B]; for few queries in parts that caches hold."""
    at_a_time = BLOCK
    if len(queries) <= FEW:
        at_a_time = max(1, NUMBERS // rows.shape[1])
    for first in range(0, len(rows), at_a_time):
        part = rows[first : first + at_a_time]
        np.matmul(queries, as_float32(part).T, out=scores[:, first : first + len(part)])


def as_float32(values: np.ndarray) -> np.ndarray:
    """Returns finite float16 or float32 values as float32; it converts float16 several times faster than `astype`.

    A float16's exponent and mantissa, moved to a float32's places, are its value times 2^-112, subnormals too.
    """
    if values.dtype != np.float16:
        return np.asarray(values, np.float32)
    bits = np.ascontiguousarray(values).view(np.int16).astype(np.int32)  # the sign fills the upper half
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(~0x70000000), out=bits)  # only the uppermost of the sign's copies stays
    scaled = bits.view(np.float32)
    return np.multiply(scaled, np.float32(2.0**112), out=scaled)


def _merge(best_scores, best_rows, owners, scores, rows) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best scores and rows, [Q, k] each, among the previous best and new (query, score, row) triples."""
    queries, k = best_scores.shape
    owners = np.concatenate([np.repeat(np.arange(queries), k), owners])
    scores = np.concatenate([best_scores.ravel(), scores])
    rows = np.concatenate([best_rows.ravel(), rows])
    order = np.lexsort((rows, -scores, owners))
    starts = np.searchsorted(owners[order], np.arange(queries))
    best = order[starts[:, None] + np.arange(k)]  # [Q, k]; every query has at least its k previous candidates
    return scores[best], rows[best]
