"""Aligning clouds of vectors by rotation: mutual neighbours as anchors, orthogonal Procrustes. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mutual_neighbours(a: np.ndarray, b: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns int [P] indices into a and b: the pairs where each is among the other's k nearest, with ties.

    a: [N, D]; b: [M, D]; used as float32; k is cut to N and M.
    """
    scores = np.asarray(a, np.float32) @ np.asarray(b, np.float32).T  # [N, M]
    of_a, of_b = min(k, len(b)), min(k, len(a))
    row_bound = np.partition(scores, -of_a, axis=1)[:, -of_a]
    column_bound = np.partition(scores, -of_b, axis=0)[-of_b]
    return np.nonzero((scores >= row_bound[:, None]) & (scores >= column_bound))


def procrustes(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the orthogonal [D, D] matrix R with the smallest |source R - target| (Schönemann, 1966).

    source, target: [P, D], row i of one belongs to row i of the other.
    """
    left, _, right = np.linalg.svd(source.T @ target)
    return left @ right


def align_all(clouds: Sequence[np.ndarray], k: int = 5, sweeps: int = 2) -> list[np.ndarray]:
    """Rotates several clouds of unit vectors [N_l, D] onto each other, with mutual k-neighbours as anchors.

    Each sweep visits every cloud and solves Procrustes against its anchors in all others as they then are: the
    multi-pairwise extension of Taitelbaum et al. (2019). A cloud without anchors stays as it is.
    """
    clouds = [np.asarray(cloud, np.float64) for cloud in clouds]
    for _ in range(sweeps):
        for index, cloud in enumerate(clouds):
            anchors = [
                (cloud[i], other[j])
                for number, other in enumerate(clouds)
                if number != index
                for i, j in [mutual_neighbours(cloud, other, k)]
            ]
            source, target = (np.concatenate(side) for side in zip(*anchors))
            if len(source):
                clouds[index] = cloud @ procrustes(source, target)
    return clouds
