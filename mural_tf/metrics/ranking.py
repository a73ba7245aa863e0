"""Retrieval metrics from embeddings: ranks, recall at K, mean and median rank, mean recall. NumPy only.

Definitions (they differ between papers and tools, so each is spelt out):

- The score of a candidate is the dot product in float32; for L2-normalised embeddings this is the cosine.
- A query may have any number of positives. Its rank is that of its best-scored positive, counted from 1.
- Ties: rank = 1 + #(candidates scored above it) + 1/2 #(non-positives with the same score), the expected rank if tied
  candidates were shuffled and one positive is tied. Candidates with identical embeddings always tie. A model that
  maps everything to one point thus ranks in the middle of the pool instead of first.
- R@K is the hit rate: the percentage of queries whose rank is <= K. It is not the fraction of positives found.
- Mean recall is the plain mean of R@1, R@5 and R@10 over both directions: six numbers, the directions weighing equally
  however many queries they have (MURAL, Jain et al. 2021, §4; MULE, Kim et al. 2020, §4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

CUTOFFS = (1, 5, 10)
SCORE_BLOCK_BYTES = 128 * 2**20  # of float32 scores held at a time


def ranks(
    queries: np.ndarray,
    candidates: np.ndarray,
    positives: np.ndarray | Sequence[Sequence[int]],
    chunk: int | None = None,
) -> np.ndarray:
    """Returns the rank of every query's best positive, by the definitions above.

    Args:
      queries: [Q, D], used as float32.
      candidates: [C, D], used as float32.
      positives: for each query the indices of its positives among the candidates: an int array [Q] (one each), or a
        sequence of Q non-empty int sequences of any lengths; an index given twice counts once.
      chunk: queries scored at a time; by default as many as keep the scores within 128 MB, so that 100,000 x 100,000
        needs little more memory than its embeddings. Where two different embeddings score within float32 rounding
        (about 1e-7) of each other, their order may depend on it, as on the BLAS library.

    Returns:
      float64 [Q]; >= 1, halves come from ties.

    Raises:
      ValueError: shapes that do not fit, a query without a positive, an index outside the candidates, NaN or infinity.
    """
    queries, candidates = _embeddings(queries, "queries"), _embeddings(candidates, "candidates")
    if queries.shape[1] != candidates.shape[1]:
        raise ValueError(f"queries {queries.shape} and candidates {candidates.shape} must have one embedding size.")
    indices, starts = _flatten_positives(positives, len(queries), len(candidates))
    duplicates, originals = _identical_rows(candidates)
    chunk = chunk or max(1, SCORE_BLOCK_BYTES // (4 * max(1, len(candidates))))

    result = np.empty(len(queries), np.float64)
    for begin in range(0, len(queries), chunk):
        end = min(begin + chunk, len(queries))
        scores = queries[begin:end] @ candidates.T  # [chunk, C]
        # BLAS may round the same dot product differently in different columns; identical candidates must tie.
        scores[:, duplicates] = scores[:, originals]
        bounds = starts[begin : end + 1]
        result[begin:end] = _ranks_of_block(scores, indices[bounds[0] : bounds[-1]], bounds - bounds[0])
    return result


def _ranks_of_block(scores: np.ndarray, indices: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Ranks of one block of scores [B, C]; the positives of row i are indices[starts[i]:starts[i + 1]].

    Positives and candidates are compared within one matrix, so that equal means equal. Counting takes two passes over
    the scores; sorting would take many.
    """
    rows = np.repeat(np.arange(len(scores)), np.diff(starts))
    positive_scores = scores[rows, indices]
    best = np.maximum.reduceat(positive_scores, starts[:-1])  # [B]
    tied_positives = np.add.reduceat((positive_scores == best[rows]).astype(np.int64), starts[:-1])

    above = np.empty(len(scores), np.int64)
    at_least = np.empty(len(scores), np.int64)
    for i, row in enumerate(scores):  # count_nonzero of one contiguous row is far faster than a sum along an axis
        above[i] = np.count_nonzero(row > best[i])
        at_least[i] = np.count_nonzero(row >= best[i])
    return 1.0 + above + 0.5 * (at_least - above - tied_positives)


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
    """Returns (indices [P], starts [Q + 1]), without repetitions: query i has indices[starts[i]:starts[i + 1]]."""
    if len(positives) != queries:
        raise ValueError(f"positives must have an entry for each of the {queries} queries; got {len(positives)}.")
    if isinstance(positives, np.ndarray) and positives.ndim == 1 and positives.dtype != object:
        lengths, indices = np.ones(queries, np.int64), positives.astype(np.int64)
    else:
        lengths = np.array([len(p) for p in positives], np.int64)
        if not lengths.all():
            raise ValueError(f"Query {np.flatnonzero(lengths == 0)[0]} has no positive; leave such queries out.")
        indices = np.concatenate([np.asarray(p, np.int64) for p in positives])
    if indices.min() < 0 or indices.max() >= candidates:
        bad = indices[(indices < 0) | (indices >= candidates)][0]
        raise ValueError(f"A positive has index {bad}, but there are {candidates} candidates.")
    rows = np.repeat(np.arange(queries), lengths)
    rows, indices = np.divmod(np.unique(rows * candidates + indices), candidates)
    return indices, np.searchsorted(rows, np.arange(queries + 1))


def _identical_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (duplicates, originals): row duplicates[i] repeats the earlier row originals[i], bit for bit."""
    first: dict[bytes, int] = {}
    original = np.array(
        [first.setdefault(hashlib.blake2b(row, digest_size=16).digest(), i) for i, row in enumerate(values)]
    )
    duplicates = np.flatnonzero(original != np.arange(len(values)))
    return duplicates, original[duplicates]


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
