"""Orthogonal Procrustes alignment of the embeddings of several languages. NumPy only.

Words that are each other's neighbours across two languages are anchors, and an orthogonal map for each language brings
the anchors together, as [Globetrotter] (§3.4) refines word translation:

    minimise  sum_{l < m} || A_lm W_l - A_ml W_m ||²,    A_lm: rows of language l's words in its anchors with m

Two languages have the closed solution of Schönemann (1966); more are aligned by sweeps, one map at a time given the
others (Taitelbaum et al., 2019).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mural_tf.metrics.top_k import top_k

NEIGHBOURS = 5  # [Globetrotter]


def procrustes(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the orthogonal W, float64 [D, D], that minimises || source W - target ||; both are float [A, D].

    Raises `ValueError` for arrays of different shapes.
    """
    if source.shape != target.shape or source.ndim != 2:
        raise ValueError(f"Expected two arrays of one shape [A, D], got {source.shape} and {target.shape}.")
    left, _, right = np.linalg.svd(source.astype(np.float64).T @ target.astype(np.float64))
    return left @ right


def mutual_neighbours(one: np.ndarray, other: np.ndarray, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """Returns pairs (i, j), int64 [A, 2], such that each is among the other's nearest, by the dot product.

    Args:
      one, other: float [N, D] and [M, D], L2-normalised for cosines.
      neighbours: k, at least 1; of equal neighbours the first ones count.
    """
    nearest, back = top_k(one, other, neighbours)[1], top_k(other, one, neighbours)[1]  # [N, k] and [M, k]
    i = np.repeat(np.arange(len(one)), nearest.shape[1])
    j = nearest.reshape(-1)
    mutual = (back[j] == i[:, None]).any(axis=1)
    return np.stack([i[mutual], j[mutual]], axis=1)


def align(embeddings: Mapping[str, np.ndarray], neighbours: int = NEIGHBOURS, sweeps: int = 2) -> dict[str, np.ndarray]:
    """Returns {language: the embeddings times its orthogonal map}, float64 [N_l, D] each.

    Each sweep visits every language, finds its anchors in all others as they then are, and solves Procrustes against
    them. There is always an anchor: the two words of largest product.

    Args:
      embeddings: {language: float [N_l, D]}, N_l >= 1, L2-normalised, of two or more languages.
      neighbours: as in `mutual_neighbours`.
      sweeps: over all languages.
    """
    aligned = {language: np.asarray(values, np.float64) for language, values in embeddings.items()}
    for _ in range(sweeps):
        for language, words in aligned.items():
            others = [other for name, other in aligned.items() if name != language]
            anchors = [mutual_neighbours(words, other, neighbours) for other in others]
            source = np.concatenate([words[pairs[:, 0]] for pairs in anchors])
            target = np.concatenate([other[pairs[:, 1]] for other, pairs in zip(others, anchors)])
            aligned[language] = words @ procrustes(source, target)
    return aligned
