"""Spearman's rank correlation, and its bootstrap over queries as Crisscrossed Captions reports it. NumPy only.

Crisscrossed Captions (Parekh et al., 2021, §3): each draw samples half of the queries and for each of them one of its
rated items; the correlation of a draw is Spearman's ρ between human and model scores; the mean and the standard
deviation over 1,000 draws are reported.
"""

from __future__ import annotations

import numpy as np


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Returns float64 [N]: ranks from 1 in increasing order; equal values share the mean of their ranks."""
    return _counted_ranks(_numbered(values))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Returns Spearman's ρ of x [N] and y [N], ties by average ranks; NaN if either is constant.

    Raises `ValueError` for lists of different lengths or of less than two numbers.
    """
    x = np.asarray(x, np.float64)
    y = np.asarray(y, np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise ValueError(f"x and y must be two lists of one length, at least 2; got {x.shape} and {y.shape}.")
    return _pearson(average_ranks(x), average_ranks(y))


def bootstrap_spearman(
    queries: np.ndarray,
    human: np.ndarray,
    model: np.ndarray,
    draws: int = 1000,
    fraction: float = 0.5,
    replacement: bool = False,
    seed: int = 0,
) -> np.ndarray:
    """Returns Spearman's ρ of each draw, float64 [draws], by the protocol above.

    Ranks within a draw come from counting: all scores are numbered once in order, and a draw's ranks are running
    sums of how often each number was drawn, so that nothing is sorted again.

    Args:
      queries: int [N], which query each rated item belongs to; an item rated for two queries is given twice.
      human: [N] ratings.
      model: [N] scores, larger is closer.
      draws: how many draws.
      fraction: share of the queries in a draw.
      replacement: whether a query may come several times in one draw.
      seed: seed of the random numbers.

    Raises:
      ValueError: lists of different lengths, scores that are not finite, or fewer than two queries in a draw.
    """
    queries = np.asarray(queries)
    human = np.asarray(human, np.float64)
    model = np.asarray(model, np.float64)
    if not len(queries) == len(human) == len(model):
        raise ValueError(f"{len(queries)} queries, {len(human)} ratings and {len(model)} scores must be equally many.")
    if not (np.isfinite(human).all() and np.isfinite(model).all()):
        raise ValueError("Ratings and scores must be finite.")
    order = np.argsort(queries, kind="stable")
    starts = np.flatnonzero(np.diff(queries[order], prepend=queries.min() - 1))
    lengths = np.diff(np.append(starts, len(queries)))
    size = int(len(starts) * fraction)
    if size < 2:
        raise ValueError(f"A draw of {fraction} of {len(starts)} queries has {size} items; a correlation needs two.")
    human_codes = _numbered(human[order])
    model_codes = _numbered(model[order])
    random = np.random.default_rng(seed)
    result = np.empty(draws, np.float64)
    for draw in range(draws):
        chosen = random.choice(len(starts), size, replace=replacement)
        items = starts[chosen] + (random.random(size) * lengths[chosen]).astype(np.int64)
        result[draw] = _pearson(_counted_ranks(human_codes[items]), _counted_ranks(model_codes[items]))
    return result


def _numbered(scores: np.ndarray) -> np.ndarray:
    """Returns int [N]: the number of each score among the different scores, in increasing order."""
    _, numbers = np.unique(scores, return_inverse=True)
    return numbers.reshape(-1)


def _counted_ranks(codes: np.ndarray) -> np.ndarray:
    """Returns the average ranks of `codes` [n], which are small integers: float64 [n]."""
    counts = np.bincount(codes)
    return np.cumsum(counts)[codes] - (counts[codes] - 1) / 2


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Returns Pearson's r of x [N] and y [N]; NaN if either is constant."""
    x = x - x.mean()
    y = y - y.mean()
    length = np.sqrt((x @ x) * (y @ y))
    if length > 0:
        return float(x @ y / length)
    return float("nan")
