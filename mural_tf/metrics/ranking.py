"""Retrieval metrics from embeddings: ranks, recall at K, mean and median rank, mean recall. NumPy only.

Definitions (they differ between papers and tools, so each is spelt out):

- The score of a candidate is the dot product, in float64, of float32 embeddings; for L2-normalised ones the cosine.
- A query may have any number of positives. Its rank is that of its best-scored positive, counted from 1.
- Ties: rank = 1 + #(non-positives scored above it) + 1/2 #(non-positives with the same score), the expected rank if
  tied candidates were shuffled and one positive is tied. Candidates with identical embeddings always tie. A model
  that maps everything to one point thus ranks in the middle of the pool instead of first.
- R@K is the hit rate: the percentage of queries whose rank is <= K. It is not the fraction of positives found.
- Mean recall is the plain mean of R@1, R@5 and R@10 over both directions: six numbers, the directions weighing equally
  however many queries they have (MURAL, Jain et al. 2021, §4; MULE, Kim et al. 2020, §4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from mural_tf.metrics.counting import Counts

CUTOFFS = (1, 5, 10)
SCORE_BLOCK_BYTES = 256 * 2**20  # of float32 scores held at a time
LARGEST_BLOCK = 255  # rows; more are no faster


def ranks(
    queries: np.ndarray,
    candidates: np.ndarray,
    positives: np.ndarray | Sequence[Sequence[int]],
    chunk: int | None = None,
    excluded: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the rank of every query's best positive, by the definitions above.

    Args:
      queries: [Q, D], used as float32.
      candidates: [C, D], used as float32.
      positives: for each query the indices of its positives among the candidates: an int array [Q] (one each), or a
        sequence of Q non-empty int sequences of any lengths; an index given twice counts once.
      chunk: queries scored at a time; by default as many as keep the scores within 256 MB. No rank depends on it.
      excluded: int array [Q]: one candidate that is not in the query's pool, itself for example; -1: none.

    Returns:
      float64 [Q]; >= 1, halves come from ties.

    Raises:
      ValueError: shapes that do not fit, a query without a positive, an index outside the candidates, NaN or infinity.
    """
    queries, candidates = _embeddings(queries, "queries"), _embeddings(candidates, "candidates")
    _check_sizes(queries, candidates)
    rows, indices = _flatten_positives(positives, len(queries), len(candidates))
    counts = Counts(queries, candidates, rows, indices, _identities(candidates))
    starts = np.searchsorted(rows, np.arange(len(queries) + 1))
    for begin, end, scores in _score_blocks(queries, candidates, chunk):
        bounds = slice(starts[begin], starts[end])
        scores[rows[bounds] - begin, indices[bounds]] = -np.inf
        if excluded is not None:
            out = np.flatnonzero(excluded[begin:end] >= 0)
            scores[out, excluded[begin:end][out]] = -np.inf
        counts.add_rows(scores, begin)
    return counts.ranks()


def ranks_both_ways(
    left: np.ndarray, right: np.ndarray, pairs: tuple[np.ndarray, np.ndarray], chunk: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ranks of left -> right and of right -> left from one pass over their scores.

    Args:
      left: [L, D], used as float32; images, say.
      right: [R, D], used as float32; their captions.
      pairs: which belong together: int arrays [P] of left and of right indices; a pair given twice counts once.
      chunk: rows of `left` scored at a time, as in `ranks`.

    Returns:
      float64 [L] and [R]; NaN where an item is in no pair and so has nothing to find.

    Raises:
      ValueError: shapes that do not fit, an index out of range, NaN or infinity.
    """
    left, right = _embeddings(left, "left embeddings"), _embeddings(right, "right embeddings")
    _check_sizes(left, right)
    rows, columns = _unique_pairs(*pairs, len(left), len(right))
    forward = Counts(left, right, rows, columns, _identities(right))
    order = np.lexsort((rows, columns))
    backward = Counts(right, left, columns[order], rows[order], _identities(left))
    starts = np.searchsorted(rows, np.arange(len(left) + 1))
    for begin, end, scores in _score_blocks(left, right, chunk):
        bounds = slice(starts[begin], starts[end])
        scores[rows[bounds] - begin, columns[bounds]] = -np.inf
        forward.add_rows(scores, begin)
        backward.add_columns(scores, begin)
    return forward.ranks(), backward.ranks()


def _score_blocks(queries: np.ndarray, candidates: np.ndarray, chunk: int | None):
    """Yields (begin, end, float32 scores [end - begin, C]) over all queries; the scores are overwritten by the next."""
    chunk = chunk or min(LARGEST_BLOCK, max(1, SCORE_BLOCK_BYTES // (4 * len(candidates))))
    buffer = np.empty((min(chunk, len(queries)), len(candidates)), np.float32)
    for begin in range(0, len(queries), chunk):
        end = min(begin + chunk, len(queries))
        yield begin, end, np.matmul(queries[begin:end], candidates.T, out=buffer[: end - begin])


def _check_sizes(queries: np.ndarray, candidates: np.ndarray) -> None:
    if queries.shape[1] != candidates.shape[1]:
        raise ValueError(f"queries {queries.shape} and candidates {candidates.shape} must have one embedding size.")


def _embeddings(values: np.ndarray, name: str) -> np.ndarray:
    values = np.ascontiguousarray(values, np.float32)
    if values.ndim != 2 or not len(values):
        raise ValueError(f"{name} must be a non-empty matrix [number, D]; got shape {values.shape}.")
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise ValueError(
            f"{len(bad)} of {len(values)} {name} hold NaN or infinity (the first is row {bad[0]}): "
            "the model that made them has diverged."
        )
    return values


def _flatten_positives(positives, queries: int, candidates: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positives as pairs (query, candidate), int64 [P] each, sorted and without repetitions."""
    if len(positives) != queries:
        raise ValueError(f"positives must have an entry for each of the {queries} queries; got {len(positives)}.")
    if isinstance(positives, np.ndarray) and positives.ndim == 1 and positives.dtype != object:
        lengths, indices = np.ones(queries, np.int64), positives.astype(np.int64)
    else:
        lengths = np.array([len(p) for p in positives], np.int64)
        if not lengths.all():
            raise ValueError(f"Query {np.flatnonzero(lengths == 0)[0]} has no positive; leave such queries out.")
        indices = np.concatenate([np.asarray(p, np.int64) for p in positives])
    return _unique_pairs(np.repeat(np.arange(queries), lengths), indices, queries, candidates)


def _unique_pairs(rows, indices, queries: int, candidates: int) -> tuple[np.ndarray, np.ndarray]:
    rows, indices = np.asarray(rows, np.int64), np.asarray(indices, np.int64)
    for values, size, name in ((indices, candidates, "candidates"), (rows, queries, "queries")):
        if len(values) and (values.min() < 0 or values.max() >= size):
            bad = values[(values < 0) | (values >= size)][0]
            raise ValueError(f"A positive has index {bad}, but there are {size} {name}.")
    return np.divmod(np.unique(rows * candidates + indices), candidates)


def _identities(values: np.ndarray) -> np.ndarray:
    """Returns int64 [N]: for each row the first row that is the same, bit for bit (its own index if none before it)."""
    first: dict[bytes, int] = {}
    hashes = (hashlib.blake2b(row, digest_size=16).digest() for row in values)
    return np.array([first.setdefault(digest, i) for i, digest in enumerate(hashes)])


def recall_at(query_ranks: np.ndarray, k: int) -> float:
    """Returns R@K in percent, 0..100: the share of `query_ranks` [Q] that are <= k."""
    return 100.0 * float(np.mean(np.asarray(query_ranks) <= k))


def mean_recall(image_to_text_ranks: np.ndarray, text_to_image_ranks: np.ndarray) -> float:
    """Returns the mean in percent of R@1, R@5 and R@10 over the two directions."""
    return float(np.mean([recall_at(r, k) for r in (image_to_text_ranks, text_to_image_ranks) for k in CUTOFFS]))


def summarize(image_to_text_ranks: np.ndarray, text_to_image_ranks: np.ndarray) -> dict[str, float]:
    """Returns every metric of one pool: recalls in percent, ranks counted from 1.

    Keys: `<direction>/recall@1`, `@5`, `@10`, `<direction>/mean_rank`, `<direction>/median_rank` with the directions
    `image_to_text` and `text_to_image`, and `mean_recall`.
    """
    metrics = {}
    for direction, values in (("image_to_text", image_to_text_ranks), ("text_to_image", text_to_image_ranks)):
        for k in CUTOFFS:
            metrics[f"{direction}/recall@{k}"] = recall_at(values, k)
        metrics[f"{direction}/mean_rank"] = float(np.mean(values))
        metrics[f"{direction}/median_rank"] = float(np.median(values))
    metrics["mean_recall"] = mean_recall(image_to_text_ranks, text_to_image_ranks)
    return metrics
