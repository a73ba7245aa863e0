"""Time of Crisscrossed Captions' three correlations, 1,000 bootstrap draws each, at the size of the test split.

    python benchmarks/correlation.py

Scores are random; the numbers of items and ratings are those of the published files. Beside it the same draws with
`scipy.stats.spearmanr`, of which a few are timed and checked to be equal.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from mural_tf.metrics.correlation import bootstrap_spearman

# (queries, ratings, ends of a rating that are queries): STS over captions, SIS and SITS over images.
SIZES = {"sts": (25_000, 44_045, 2), "sis": (5_000, 46_719, 2), "sits": (5_000, 44_833, 1)}


def make_ratings(queries: int, ratings: int, ends: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns query numbers, human scores 0..5 in steps of 0.2 and model scores, each rating once for each end."""
    random = np.random.default_rng(0)
    human = random.integers(0, 26, ratings) / 5
    model = human / 5 + random.standard_normal(ratings)
    return random.integers(0, queries, ratings * ends), np.tile(human, ends), np.tile(model, ends)


def scipy_draws(queries, human, model, draws: int) -> list[float]:
    """The first draws in the straightforward way, with the same random numbers."""
    from scipy.stats import spearmanr

    order = np.argsort(queries, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(queries[order])) + 1)
    random, values = np.random.default_rng(0), []
    for _ in range(draws):
        chosen = random.choice(len(groups), len(groups) // 2, replace=False)
        places = random.random(len(chosen))
        items = [groups[q][int(place * len(groups[q]))] for q, place in zip(chosen, places)]
        values.append(spearmanr(human[items], model[items]).statistic)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--scipy_draws", type=int, default=10)
    arguments = parser.parse_args()
    print(f"{'':5}  seconds  with scipy, seconds (extrapolated)  largest difference of a draw")
    total = 0.0
    for name, size in SIZES.items():
        data = make_ratings(*size)
        start = time.perf_counter()
        drawn = bootstrap_spearman(*data, draws=arguments.draws)
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        expected = scipy_draws(*data, arguments.scipy_draws)
        slow = (time.perf_counter() - start) * arguments.draws / arguments.scipy_draws
        difference = np.abs(drawn[: len(expected)] - expected).max()
        total += seconds
        print(f"{name:5}  {seconds:7.2f}  {slow:34.1f}  {difference:29.1e}")
    print(f"{'all':5}  {total:7.2f}")


if __name__ == "__main__":
    main()
