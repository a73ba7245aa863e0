"""Ranks by counting: how many candidates score above a query's best positive, and how many tie with it.

One block of scores is computed by a float32 matrix product and read twice per direction; nothing is sorted, and the
whole score matrix never exists. A float32 product is off by a rounding error, which depends on the block's shape and
the BLAS library, so it only decides where the difference is larger than that error; the few candidates closer to the
best positive are scored again, in float64. The counts are therefore those of float64 scores, whatever the block size,
the BLAS library and the direction.
"""

from __future__ import annotations

import numpy as np

_FLOAT32_UNIT = 2.0**-24
# The rounding error of a dot product of D float32 terms is below 8 sqrt(D) units with probability above 1 - 1e-13
# (N. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 2019).
_ERROR_FACTOR = 8.0
_PAIRS_AT_ONCE = 8192  # float64 dot products computed at a time: 64 MB for D = 512
_UINT8_ROWS = 255  # so many comparisons can be added in uint8, which is several times faster than in int64

_NONE = np.zeros(0, np.int64)


def dot_products(left: np.ndarray, right: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns float64 [P]: left[rows[p]] . right[columns[p]] for each pair; equal vectors give equal bits."""
    result = np.empty(len(rows), np.float64)
    for begin in range(0, len(rows), _PAIRS_AT_ONCE):
        chunk = slice(begin, begin + _PAIRS_AT_ONCE)
        a, b = left[rows[chunk]].astype(np.float64), right[columns[chunk]].astype(np.float64)
        result[chunk] = np.einsum("pd,pd->p", a, b)
    return result


def _lengths(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors))  # np.linalg.norm would copy them all


class Counts:
    """Per query the number of non-positives above its best positive, and of those with the same score.

    Blocks of scores are added in any order; in them the cells of positives, and of candidates that are not in the
    query's pool, must be -inf.

    Args:
      queries, candidates: float32 [Q, D] and [C, D].
      rows, indices: the positives as pairs (query, candidate), int64 [P], sorted by query.
      identity: int64 [C]; candidates with identical embeddings have the same number. They tie without a product.
    """

    def __init__(self, queries, candidates, rows, indices, identity):
        self.queries, self.candidates, self.identity = queries, candidates, identity
        self.best = np.full(len(queries), np.inf)  # of a query without a positive: nothing is above it
        self.best_identity = np.full(len(queries), -1)
        positive_scores = dot_products(queries, candidates, rows, indices)
        order = np.lexsort((positive_scores, rows))  # the best of each query comes last
        last = order[np.flatnonzero(np.diff(rows[order], append=-1))] if len(order) else order
        self.best[rows[last]] = positive_scores[last]
        self.best_identity[rows[last]] = identity[indices[last]]
        lengths = _lengths(queries) * _lengths(candidates).max()
        margin = _ERROR_FACTOR * np.sqrt(queries.shape[1]) * _FLOAT32_UNIT * lengths
        self.low = np.nextafter((self.best - margin).astype(np.float32), np.float32(-np.inf))
        self.high = np.nextafter((self.best + margin).astype(np.float32), np.float32(np.inf))
        self.above = np.zeros(len(queries), np.int64)
        self.tied = np.zeros(len(queries), np.int64)

    def add_rows(self, scores: np.ndarray, begin: int) -> None:
        """Adds scores [B, C] of queries begin, begin + 1, … with all candidates."""
        near: list[np.ndarray] = []
        for query, row in enumerate(scores, start=begin):  # count_nonzero of one row: far faster than along an axis
            above = np.count_nonzero(row > self.high[query])
            self.above[query] += above
            some = np.count_nonzero(row >= self.low[query]) > above
            near.append(np.flatnonzero((row >= self.low[query]) & (row <= self.high[query])) if some else _NONE)
        queries = np.repeat(np.arange(begin, begin + len(scores)), [len(found) for found in near])
        self._decide(queries, np.concatenate(near))

    def add_columns(self, scores: np.ndarray, begin: int) -> None:
        """Adds scores [B, Q] of candidates begin, begin + 1, … with all queries."""
        for first in range(0, len(scores), _UINT8_ROWS):
            block = scores[first : first + _UINT8_ROWS]
            above = (block > self.high).view(np.uint8).sum(axis=0, dtype=np.uint8)
            possible = (block >= self.low).view(np.uint8).sum(axis=0, dtype=np.uint8)
            self.above += above
            columns = np.flatnonzero(possible != above)
            if len(columns):
                near = block[:, columns]
                rows, places = np.nonzero((near >= self.low[columns]) & (near <= self.high[columns]))
                self._decide(columns[places], begin + first + rows)

    def ranks(self) -> np.ndarray:
        """Returns float64 [Q]: 1 + above + tied / 2; NaN for queries without a positive."""
        return np.where(np.isfinite(self.best), 1.0 + self.above + 0.5 * self.tied, np.nan)

    def _decide(self, queries: np.ndarray, candidates: np.ndarray) -> None:
        """Scores pairs that float32 cannot tell from a tie in float64."""
        if not len(queries):
            return
        same = self.identity[candidates] == self.best_identity[queries]
        self.tied += self._count(queries[same])
        queries, candidates = queries[~same], candidates[~same]
        scores, best = self._exact(queries, candidates), self.best[queries]
        self.above += self._count(queries[scores > best])
        self.tied += self._count(queries[scores == best])

    def _count(self, queries: np.ndarray) -> np.ndarray:
        return np.bincount(queries, minlength=len(self.queries))

    def _exact(self, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Float64 scores of pairs: one by one where they are few, by a matrix product where most of a block is meant.

        The latter is what a model needs that maps everything to nearly one point, as all do before training.
        """
        rows, row_of = _renumber(queries, len(self.queries))
        columns, column_of = _renumber(candidates, len(self.candidates))
        if 8 * len(queries) < len(rows) * len(columns):
            return dot_products(self.queries, self.candidates, queries, candidates)
        result = np.empty(len(queries), np.float64)
        left = self.queries[rows].astype(np.float64)
        place = column_of[candidates]
        for begin in range(0, len(columns), _PAIRS_AT_ONCE):
            scores = left @ self.candidates[columns[begin : begin + _PAIRS_AT_ONCE]].astype(np.float64).T
            inside = np.flatnonzero((place >= begin) & (place < begin + _PAIRS_AT_ONCE))
            result[inside] = scores[row_of[queries[inside]], place[inside] - begin]
        return result


def _renumber(values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the different values, increasing, and int64 [size]: where each of them is in that list."""
    seen = np.zeros(size, bool)
    seen[values] = True
    return np.flatnonzero(seen), np.cumsum(seen) - 1
