"""Spearman's rank correlation, and its bootstrap over queries as Crisscrossed Captions reports it. NumPy only.

Crisscrossed Captions (Parekh et al., 2021, §3): each draw samples half of the queries and for each of them one of its
rated items; the correlation of a draw is Spearman's ρ between human and model scores; the mean and the standard
deviation over 1,000 draws are reported.
"""

from __future__ import annotations

import numpy as np


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Returns float64 [N]: ranks from 1 in increasing order; equal values share the mean of their ranks."""
    return _ranks_by_counting(_order_numbers(values))


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

    Args:
      queries: int [N], the query of each rated item; an item that is rated for two queries is given twice.
      human: ratings of people, [N].
      model: scores of a model, [N]; larger is closer.
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
    order = np.argsort(queries, kind="stable")  # the items of a query in succession
    _, starts, lengths = np.unique(queries[order], return_index=True, return_counts=True)
    size = int(len(starts) * fraction)
    if size < 2:
        raise ValueError(f"A draw of {fraction} of {len(starts)} queries has {size} items; a correlation needs two.")
    # All scores are numbered once in order; ranks within a draw then come from counting, without sorting again.
    human_numbers = _order_numbers(human[order])
    model_numbers = _order_numbers(model[order])
    random = np.random.default_rng(seed)
    correlations = np.empty(draws, np.float64)
    for draw in range(draws):
        chosen = random.choice(len(starts), size, replace=replacement)
        items = starts[chosen] + (random.random(size) * lengths[chosen]).astype(np.int64)  # one item per query
        human_ranks = _ranks_by_counting(human_numbers[items])
        model_ranks = _ranks_by_counting(model_numbers[items])
        correlations[draw] = _pearson(human_ranks, model_ranks)
    return correlations


def _order_numbers(scores: np.ndarray) -> np.ndarray:
    """Returns int [N]: the place of each score among the different scores, from 0 in increasing order."""
    _, numbers = np.unique(scores, return_inverse=True)
    return numbers.reshape(-1)  # NumPy 2.0 gives them the shape of `scores`


def _ranks_by_counting(numbers: np.ndarray) -> np.ndarray:
    """Returns the average ranks of small integers [n]: float64 [n]."""
    counts = np.bincount(numbers)
    last_ranks = np.cumsum(counts)  # of each number: equal numbers have the ranks up to this, and share their mean
    return last_ranks[numbers] - (counts[numbers] - 1) / 2


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Returns Pearson's r of x [N] and y [N]; NaN if either is constant."""
    x = x - x.mean()
    y = y - y.mean()
    length = np.sqrt((x @ x) * (y @ y))
    if length > 0:
        return float(x @ y / length)
    return float("nan")
