"""Procrustes alignment of word embeddings of two or more languages, Globetrotter's refinement ([P] §3.4).

An orthogonal map W_l for each language brings the anchors, words that are each other's neighbours, together:

    minimise  sum_{l < m} || A_lm W_l - A_ml W_m ||²,    A_lm: rows of language l's words in its anchors with m

Two languages have the closed solution of Schönemann (1966); more are aligned by sweeps, one map at a time given the
others (Taitelbaum et al., 2019), which never raises the sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

NEIGHBOURS = 5  # [P]
ROWS = 1024  # of a similarity matrix held at once


def procrustes(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the orthogonal W, float64 [D, D], that minimises || source W - target ||; both are float [A, D]."""
    if source.shape != target.shape or source.ndim != 2:
        raise ValueError(f"Expected two arrays of one shape [A, D], got {source.shape} and {target.shape}.")
    return _nearest_rotation(source.astype(np.float64).T @ target.astype(np.float64))


def mutual_neighbours(one: np.ndarray, other: np.ndarray, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """Returns pairs (i, j), int64 [A, 2], such that each is among the other's nearest, by the dot product.

    Args:
      one, other: float [N, D] and [M, D], L2-normalised for cosines.
      neighbours: k, at least 1; of equal neighbours the first ones count.
    """
    nearest = _nearest(one, other, neighbours)  # [N, k]
    back = _nearest(other, one, neighbours)  # [M, k]
    i = np.repeat(np.arange(len(one)), nearest.shape[1])
    j = nearest.reshape(-1)
    mutual = (back[j] == i[:, None]).any(axis=1)
    return np.stack([i[mutual], j[mutual]], axis=1)


def align(
    embeddings: Mapping[str, np.ndarray], neighbours: int = NEIGHBOURS, sweeps: int = 20, tolerance: float = 1e-6
) -> dict[str, np.ndarray]:
    """Returns {language: the embeddings times its orthogonal map}, float64 [N_l, D] each.

    Args:
      embeddings: {language: float [N_l, D]}, L2-normalised, of two or more languages.
      neighbours: as in `mutual_neighbours`.
      sweeps: at most, over all languages.
      tolerance: the share by which a sweep must lower the sum, or it is the last.
    """
    embeddings = {language: values.astype(np.float64) for language, values in embeddings.items()}
    anchors = {}
    for one, other in itertools.combinations(embeddings, 2):
        pairs = mutual_neighbours(embeddings[one], embeddings[other], neighbours)
        anchors[one, other] = embeddings[one][pairs[:, 0]], embeddings[other][pairs[:, 1]]
    maps = align_anchors(anchors, sweeps, tolerance)
    return {language: values @ maps.get(language, np.eye(values.shape[1])) for language, values in embeddings.items()}


def align_anchors(
    anchors: Mapping[tuple[str, str], tuple[np.ndarray, np.ndarray]], sweeps: int = 20, tolerance: float = 1e-6
) -> dict[str, np.ndarray]:
    """Returns {language: W_l, float64 [D, D]} for known anchors {(l, m): (A_lm, A_ml)}, float [A, D] each.

    The first language's map is the identity, as only the maps relative to each other count.
    """
    languages = list(dict.fromkeys(itertools.chain.from_iterable(anchors)))
    products = {}  # A_lmᵀ A_ml, all that the anchors matter for
    for (one, other), (a, b) in anchors.items():
        products[one, other] = a.astype(np.float64).T @ b.astype(np.float64)
        products[other, one] = products[one, other].T
    size = next(iter(products.values())).shape[0]
    maps = {languages[0]: np.eye(size)}
    before = -np.inf
    for _ in range(sweeps):
        for language in languages[1:]:  # in the first sweep, towards the languages that have a map already
            wanted = sum(products[language, other] @ maps[other] for other in maps if (language, other) in products)
            if np.any(wanted):
                maps[language] = _nearest_rotation(wanted)
            else:
                maps.setdefault(language, np.eye(size))
        # The sum is a constant less twice this.
        agreement = sum(np.trace(maps[m].T @ products[m, n] @ maps[n]) for m, n in anchors)
        if agreement <= before + tolerance * abs(before):
            break
        before = agreement
    return maps


def _nearest_rotation(matrix: np.ndarray) -> np.ndarray:
    left, _, right = np.linalg.svd(matrix)
    return left @ right


def _nearest(queries: np.ndarray, candidates: np.ndarray, count: int) -> np.ndarray:
    """int64 [N, min(count, M)]: the candidates of largest dot product."""
    count = min(count, len(candidates))
    blocks = [np.zeros((0, count), np.int64)]
    for begin in range(0, len(queries), ROWS):
        similarity = queries[begin : begin + ROWS] @ candidates.T
        blocks.append(np.argsort(-similarity, axis=1, kind="stable")[:, :count])
    return np.concatenate(blocks)
