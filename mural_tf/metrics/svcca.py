"""SVCCA (Raghu et al., 2017): how alike two representations of the same sentences are, whatever their rotation.

Both are centred and cut to the directions that explain most of their variance; the similarity is the mean of the
canonical correlations of what is left. MURAL §5 compares languages so. NumPy only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def basis(embeddings: np.ndarray, variance: float = 0.99) -> np.ndarray:
    """Returns [N, K]: an orthonormal basis of the leading directions of centred embeddings [N, D].

    K is the smallest number of singular directions whose squared singular values are at least `variance` of all.

    Raises:
      ValueError: variance outside (0, 1], embeddings that are all equal, or fewer than two rows a direction: then any
        two languages would look alike.
    """
    if not 0 < variance <= 1:
        raise ValueError(f"variance={variance} must be in (0, 1].")
    centred = np.asarray(embeddings, np.float64)
    centred = centred - centred.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    if values[0] <= 1e-12 * max(1.0, np.abs(embeddings).max()):
        raise ValueError("All embeddings are equal: there is nothing to compare.")
    explained = np.cumsum(values**2) / np.sum(values**2)
    kept = min(int(np.searchsorted(explained, variance - 1e-12)) + 1, int(np.count_nonzero(values > 1e-10 * values[0])))
    if len(centred) < 2 * kept:
        raise ValueError(
            f"{len(centred)} sentences are too few for the {kept} directions that explain {variance:.0%} of their "
            f"variance: give at least {2 * kept}, or a smaller variance."
        )
    return left[:, :kept]


def _similarity(a: np.ndarray, b: np.ndarray) -> float:
    """The mean canonical correlation of two orthonormal bases: the singular values of their product."""
    return float(np.clip(np.linalg.svd(a.T @ b, compute_uv=False), 0.0, 1.0).mean())


def svcca_matrix(embeddings: Sequence[np.ndarray], variance: float = 0.99) -> np.ndarray:
    """Returns float64 [L, L]: the similarity of every two representations [N, D] of the same N sentences.

    All must be of the same sentences: correlations found in fewer sentences are larger, so that languages with the same
    gaps would look alike.
    """
    if len({len(rows) for rows in embeddings}) > 1:
        raise ValueError(f"Row i of all must be the same sentence; got {[len(rows) for rows in embeddings]} rows.")
    bases = [basis(rows, variance) for rows in embeddings]
    matrix = np.eye(len(bases))
    for i, j in itertools.combinations(range(len(bases)), 2):
        matrix[i, j] = matrix[j, i] = _similarity(bases[i], bases[j])
    return matrix
