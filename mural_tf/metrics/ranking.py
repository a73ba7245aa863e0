"""Retrieval metrics from embeddings: ranks, recall at K, mean and median rank, mean recall. NumPy only.

Definitions (they differ between papers and tools, so each is spelt out):

- The score of a candidate is the dot product, in float64, of float32 embeddings; for L2-normalised embeddings the
  cosine.
- A query may have any number of positives. Its rank is the rank of its best-scored positive, counted from 1.
- Ties: rank = 1 + #(non-positives scored above it) + 1/2 #(non-positives with the same score), the expected rank if
  tied candidates were shuffled and one positive is tied. Candidates with identical embeddings always tie. A model
  that maps everything to one point thus ranks in the middle of the pool instead of first.
- R@K is the hit rate: the percentage of queries whose rank is <= K. It is not the fraction of positives found.
- Mean recall is the plain mean of R@1, R@5 and R@10 over both directions: six numbers, the directions weighing equally
  however many queries they have ([MURAL] §4, [MULE] §4).

Ranks come from counting how many candidates score above a query's best positive, and how many tie with it. One block of
scores is computed by a float32 matrix product and read twice per direction; nothing is sorted, and the whole score
matrix never exists. A float32 product is off by a rounding error, which depends on the block's shape and the BLAS
library, so it decides only where the difference is larger than that error; the few candidates closer to the best
positive are scored again, in float64. The counts therefore equal the counts of float64 scores, for any block size, BLAS
library and direction.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np

CUTOFFS = (1, 5, 10)
SCORE_BLOCK_BYTES = 256 * 2**20  # of float32 scores held at a time
LARGEST_BLOCK = 255  # rows; more rows are not faster
_FLOAT32_UNIT = 2.0**-24
# The rounding error of a dot product of D float32 terms is below 8 sqrt(D) units with probability above 1 - 1e-13
# (N. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 2019).
_ERROR_FACTOR = 8.0
_PAIRS_AT_ONCE = 8192  # float64 dot products that are computed at a time: 64 MB for D = 512
_UINT8_ROWS = 255  # so many comparisons can be added in uint8, which is several times faster than in int64


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
      chunk: queries scored at a time; by default the number that keeps the scores within 256 MB. No rank depends on it.
      excluded: int array [Q]: one candidate that is not in the query's pool, itself for example; -1: none.

    Returns:
      float64 [Q]; >= 1, halves come from ties.

    Raises:
      ValueError: shapes that do not fit, a query without a positive, an index outside the candidates, NaN or infinity.
    """
    queries = _embeddings(queries, "queries")
    candidates = _embeddings(candidates, "candidates")
    _check_sizes(queries, candidates)
    rows, indices = _flatten_positives(positives, len(queries), len(candidates))
    counts = Counts(queries, candidates, rows, indices, _identities(candidates))
    for begin, scores in _score_blocks(queries, candidates, rows, indices, chunk):
        if excluded is not None:
            block_excluded = excluded[begin : begin + len(scores)]
            excluding_rows = np.flatnonzero(block_excluded >= 0)
            scores[excluding_rows, block_excluded[excluding_rows]] = -np.inf
        counts.add_rows(scores, begin)
    return counts.ranks()


def ranks_both_ways(
    left: np.ndarray, right: np.ndarray, pairs: tuple[np.ndarray, np.ndarray], chunk: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ranks of left -> right and of right -> left from one pass over their scores.

    Args:
      left: [L, D], used as float32; images, say.
      right: [R, D], used as float32; their captions.
      pairs: (left indices, right indices), int arrays [P], of the items that belong together; a pair given twice counts
        once.
      chunk: rows of `left` scored at a time, as in `ranks`.

    Returns:
      float64 [L] and [R]; NaN where an item is in no pair and so has nothing to find.

    Raises:
      ValueError: shapes that do not fit, an index out of range, NaN or infinity.
    """
    left = _embeddings(left, "left embeddings")
    right = _embeddings(right, "right embeddings")
    _check_sizes(left, right)
    rows, columns = _unique_pairs(*pairs, len(left), len(right))
    forward = Counts(left, right, rows, columns, _identities(right))
    order = np.lexsort((rows, columns))
    backward = Counts(right, left, columns[order], rows[order], _identities(left))
    for begin, scores in _score_blocks(left, right, rows, columns, chunk):
        forward.add_rows(scores, begin)
        backward.add_columns(scores, begin)
    return forward.ranks(), backward.ranks()


def _score_blocks(queries: np.ndarray, candidates: np.ndarray, rows: np.ndarray, indices: np.ndarray, chunk):
    """Yields (begin, scores of queries begin, begin + 1, … with all candidates), float32 [B, C], -inf for positives.

    Positives are pairs (rows, indices), int64 [P], sorted by query; `chunk` is the number of queries in a block. The
    next block overwrites the scores.
    """
    chunk = chunk or min(LARGEST_BLOCK, max(1, SCORE_BLOCK_BYTES // (4 * len(candidates))))  # 4 bytes each
    buffer = np.empty((min(chunk, len(queries)), len(candidates)), np.float32)
    starts = np.searchsorted(rows, np.arange(len(queries) + 1))  # where each query's positives begin
    for begin in range(0, len(queries), chunk):
        end = min(begin + chunk, len(queries))
        scores = np.matmul(queries[begin:end], candidates.T, out=buffer[: end - begin])
        positives = slice(starts[begin], starts[end])
        scores[rows[positives] - begin, indices[positives]] = -np.inf
        yield begin, scores


def _check_sizes(queries: np.ndarray, candidates: np.ndarray) -> None:
    """Raises `ValueError` if both do not have the same number of columns."""
    if queries.shape[1] != candidates.shape[1]:
        raise ValueError(f"queries {queries.shape} and candidates {candidates.shape} must have one embedding size.")


def _embeddings(values: np.ndarray, name: str) -> np.ndarray:
    """Returns embeddings as float32 [N, D]; raises `ValueError` for another shape, NaN or infinity."""
    values = np.ascontiguousarray(values, np.float32)
    if values.ndim != 2 or not len(values):
        raise ValueError(f"{name} must be a non-empty matrix [number, D]; got shape {values.shape}.")
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(values)} {name} hold NaN or infinity (the first is row {bad[0]}): "
            "the model that made them has diverged."
        )
    return values


def _flatten_positives(positives, queries: int, candidates: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positives that `ranks` takes as pairs (query, candidate), int64 [P] each, see `_unique_pairs`.

    Raises `ValueError` for a query without a positive, and for positives of another number than `queries`.
    """
    if len(positives) != queries:
        raise ValueError(f"positives must have an entry for each of the {queries} queries; got {len(positives)}.")
    numbers = np.arange(queries)
    if isinstance(positives, np.ndarray) and positives.ndim == 1 and positives.dtype != object:  # one for each query
        return _unique_pairs(numbers, positives, queries, candidates)
    counts = np.array([len(indices) for indices in positives])
    if not counts.all():
        raise ValueError(f"Query {np.flatnonzero(counts == 0)[0]} has no positive; leave such queries out.")
    return _unique_pairs(np.repeat(numbers, counts), np.concatenate(positives), queries, candidates)


def _unique_pairs(rows, columns, queries: int, candidates: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs (row, column), int64 [P] each, sorted and without repetitions.

    Raises `ValueError` for a row that is not below `queries`, or a column that is not below `candidates`.
    """
    columns = _indices(columns, candidates, "candidates")
    rows = _indices(rows, queries, "queries")
    cells = np.unique(rows * candidates + columns)  # numbers of cells in the matrix of scores
    return np.divmod(cells, candidates)


def _indices(values, size: int, name: str) -> np.ndarray:
    """Returns `values` as int64 [P]; raises `ValueError` for an index outside 0 to `size` - 1."""
    values = np.asarray(values, np.int64)
    outside = values[(values < 0) | (values >= size)]
    if len(outside):
        raise ValueError(f"A positive has index {outside[0]}, but there are {size} {name}.")
    return values


def _identities(values: np.ndarray) -> np.ndarray:
    """Returns int64 [N]: for each row the number of the first row that equals it bit for bit, perhaps itself."""
    first_rows = {}  # {hash of a row: its number}
    identities = np.empty(len(values), np.int64)
    for number, row in enumerate(values):
        digest = hashlib.blake2b(row, digest_size=16).digest()
        identities[number] = first_rows.setdefault(digest, number)
    return identities


def dot_products(left: np.ndarray, right: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns the dot products of left[rows[p]] and right[columns[p]], float64 [P]; equal vectors give equal bits.

    Args:
      left, right: float [L, D] and [R, D].
      rows, columns: int [P], numbers of rows of `left` and of `right`.
    """
    products = np.empty(len(rows), np.float64)
    for begin in range(0, len(rows), _PAIRS_AT_ONCE):
        chunk = slice(begin, begin + _PAIRS_AT_ONCE)
        left_rows = left[rows[chunk]].astype(np.float64)
        right_rows = right[columns[chunk]].astype(np.float64)
        products[chunk] = np.einsum("pd,pd->p", left_rows, right_rows)
    return products


def _lengths(vectors: np.ndarray) -> np.ndarray:
    """Returns the Euclidean length of each row of [N, D]: [N]."""
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors))  # np.linalg.norm would copy them all


class Counts:
    """Per query the number of non-positives above its best positive, and the number with the same score.

    Blocks of scores are added in any order; in them the cells of positives, and of candidates that are not in the
    query's pool, must be -inf.

    Args:
      queries, candidates: float32 [Q, D] and [C, D].
      rows, indices: the positives as pairs (query, candidate), int64 [P], sorted by query.
      identity: int64 [C]; candidates with identical embeddings have the same number. They tie without a product.
    """

    def __init__(self, queries, candidates, rows, indices, identity):
        self.queries = queries
        self.candidates = candidates
        self.identity = identity
        self.best = np.full(len(queries), np.inf)  # of a query without a positive: nothing is above it
        self.best_identity = np.full(len(queries), -1)  # no candidate's
        positive_scores = dot_products(queries, candidates, rows, indices)
        order = np.lexsort((positive_scores, rows))  # the best of each query comes last
        is_last = np.diff(rows[order], append=-1) != 0
        last = order[is_last]
        self.best[rows[last]] = positive_scores[last]
        self.best_identity[rows[last]] = identity[indices[last]]
        lengths = _lengths(queries) * _lengths(candidates).max()
        margin = _ERROR_FACTOR * np.sqrt(queries.shape[1]) * _FLOAT32_UNIT * lengths
        # A float32 score below `low` or above `high` is on the same side of `best` in float64, too.
        self.low = np.nextafter((self.best - margin).astype(np.float32), np.float32(-np.inf))
        self.high = np.nextafter((self.best + margin).astype(np.float32), np.float32(np.inf))
        self.above = np.zeros(len(queries), np.int64)
        self.tied = np.zeros(len(queries), np.int64)

    def add_rows(self, scores: np.ndarray, begin: int) -> None:
        """Adds scores [B, C] of queries begin, begin + 1, … with all candidates."""
        near_queries = []  # with `near_candidates`, pairs whose score float32 cannot tell from the best positive's
        near_candidates = []
        for query, row in enumerate(scores, start=begin):  # count_nonzero of one row: far faster than along an axis
            above = np.count_nonzero(row > self.high[query])
            is_not_below = row >= self.low[query]
            self.above[query] += above
            if np.count_nonzero(is_not_below) > above:  # some scores are from low to high; to find them takes longer
                candidates = np.flatnonzero(is_not_below & (row <= self.high[query]))
                near_queries.append(np.full(len(candidates), query))
                near_candidates.append(candidates)
        if near_queries:
            self._decide(np.concatenate(near_queries), np.concatenate(near_candidates))

    def add_columns(self, scores: np.ndarray, begin: int) -> None:
        """Adds scores [B, Q] of candidates begin, begin + 1, … with all queries."""
        for first in range(0, len(scores), _UINT8_ROWS):
            block = scores[first : first + _UINT8_ROWS]
            above = _count_true(block > self.high)
            not_below = _count_true(block >= self.low)
            self.above += above
            # Queries with a score that float32 cannot tell from their best positive's.
            undecided = np.flatnonzero(not_below != above)
            if len(undecided):
                near_scores = block[:, undecided]
                is_near = (near_scores >= self.low[undecided]) & (near_scores <= self.high[undecided])
                rows, columns = np.nonzero(is_near)
                self._decide(undecided[columns], begin + first + rows)

    def ranks(self) -> np.ndarray:
        """Returns float64 [Q]: 1 + above + tied / 2; NaN for queries without a positive."""
        return np.where(np.isfinite(self.best), 1.0 + self.above + 0.5 * self.tied, np.nan)

    def _decide(self, queries: np.ndarray, candidates: np.ndarray) -> None:
        """Adds pairs (query, candidate), int64 [P] each, to `above` and `tied` by their float64 scores."""
        is_identical = self.identity[candidates] == self.best_identity[queries]
        self.tied += self._count(queries[is_identical])
        other_queries = queries[~is_identical]
        scores = self._exact_scores(other_queries, candidates[~is_identical])
        best = self.best[other_queries]
        self.above += self._count(other_queries[scores > best])
        self.tied += self._count(other_queries[scores == best])

    def _count(self, queries: np.ndarray) -> np.ndarray:
        """Returns int64 [Q]: how often each query is in `queries`."""
        return np.bincount(queries, minlength=len(self.queries))

    def _exact_scores(self, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Returns the scores of P pairs, float64 [P], pair by pair if they are few, else by products of matrices.

        They are many for a model that maps everything to nearly one point, as all models do before training.
        """
        rows, row_of = _renumber(queries, len(self.queries))
        columns, column_of = _renumber(candidates, len(self.candidates))
        if 8 * len(queries) < len(rows) * len(columns):  # less than an eighth of a matrix: its product would be slower
            return dot_products(self.queries, self.candidates, queries, candidates)
        pair_scores = np.empty(len(queries), np.float64)
        left = self.queries[rows].astype(np.float64)
        pair_columns = column_of[candidates]
        for begin in range(0, len(columns), _PAIRS_AT_ONCE):
            end = begin + _PAIRS_AT_ONCE
            scores = left @ self.candidates[columns[begin:end]].astype(np.float64).T
            inside = np.flatnonzero((pair_columns >= begin) & (pair_columns < end))
            pair_scores[inside] = scores[row_of[queries[inside]], pair_columns[inside] - begin]
        return pair_scores


def _count_true(mask: np.ndarray) -> np.ndarray:
    """Returns how many rows are true in each column of bool [B, Q], B at most `_UINT8_ROWS`: uint8 [Q]."""
    return mask.view(np.uint8).sum(axis=0, dtype=np.uint8)  # faster than a sum of booleans


def _renumber(values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the different values, increasing, and int64 [size]: at each of these values its place among them.

    `values` are integers from 0 to `size` - 1: of [5, 2, 5] it returns [2, 5], with 0 at 2 and 1 at 5.
    """
    occurs = np.zeros(size, bool)
    occurs[values] = True
    return np.flatnonzero(occurs), np.cumsum(occurs) - 1


def recall_at(query_ranks: np.ndarray, k: int) -> float:
    """Returns R@K in percent, 0..100: the share of `query_ranks` [Q] that are <= k."""
    return 100.0 * float(np.mean(np.asarray(query_ranks) <= k))


def mean_recall(*query_ranks: np.ndarray) -> float:
    """Returns the mean in percent of R@1, R@5 and R@10 over one or both directions, each given by its ranks [Q]."""
    recalls = [recall_at(ranks, k) for ranks, k in itertools.product(query_ranks, CUTOFFS)]
    return float(np.mean(recalls))


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
