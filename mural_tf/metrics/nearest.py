"""The nearest candidates of each query, exactly; NumPy only."""

from __future__ import annotations

import numpy as np

BLOCK_BYTES = 256 * 2**20  # of float32 scores held at a time


def nearest(queries: np.ndarray, candidates: np.ndarray, k: int, mask=None) -> np.ndarray:
    """Returns int64 [Q, k]: the candidates with the largest dot products, best first; equal ones by their index.

    Args:
      queries: [Q, D], used as float32.
      candidates: [C, D], used as float32.
      k: how many, 1..C.
      mask: function of (begin, end) that returns bool [end - begin, C]: candidates that these queries must not find.

    Raises:
      ValueError: k out of range.
    """
    queries, candidates = np.asarray(queries, np.float32), np.asarray(candidates, np.float32)
    if not 1 <= k <= len(candidates):
        raise ValueError(f"k={k} must be between 1 and the number of candidates, {len(candidates)}.")
    result = np.empty((len(queries), k), np.int64)
    chunk = max(1, BLOCK_BYTES // (4 * len(candidates)))
    for begin in range(0, len(queries), chunk):
        end = min(begin + chunk, len(queries))
        scores = queries[begin:end] @ candidates.T
        if mask is not None:
            scores[mask(begin, end)] = -np.inf
        if k < len(candidates):
            threshold = np.partition(scores, -k, axis=1)[:, -k]
        for i, row in enumerate(scores):
            places = np.flatnonzero(row >= threshold[i]) if k < len(candidates) else np.arange(len(row))
            result[begin + i] = places[np.argsort(-row[places], kind="stable")[:k]]
    return result
