"""Procrustes alignment: rotations that are known are found, for two languages and for more."""

import numpy as np
import pytest

from mural_tf.evaluation.globetrotter import align, mutual_neighbours, procrustes


def unit_rows(seed, *shape):
    x = np.random.default_rng(seed).normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def rotation(seed, size):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def test_a_quarter_turn_derived_by_hand():
    # (1, 0) -> (0, 1) and (0, 1) -> (-1, 0): the turn by 90 degrees, for row vectors.
    found = procrustes(np.eye(2), np.array([[0.0, 1.0], [-1.0, 0.0]]))
    np.testing.assert_allclose(found, [[0, 1], [-1, 0]], atol=1e-12)


def test_two_languages():
    source, turn = unit_rows(0, 50, 8), rotation(1, 8)
    found = procrustes(source, source @ turn + 1e-3 * unit_rows(2, 50, 8))
    np.testing.assert_allclose(found @ found.T, np.eye(8), atol=1e-10)
    assert np.abs(found - turn).max() < 1e-2
    with pytest.raises(ValueError, match="one shape"):
        procrustes(source, source[:5])


def test_mutual_neighbours_equal_the_loop():
    one, other = unit_rows(3, 12, 4), unit_rows(4, 9, 4)
    similarity = one @ other.T
    expected = {
        (i, j)
        for i in range(12)
        for j in range(9)
        if j in np.argsort(-similarity[i])[:3] and i in np.argsort(-similarity[:, j])[:3]
    }
    found = mutual_neighbours(one, other, 3)
    assert {tuple(pair) for pair in found.tolist()} == expected and len(found) == len(expected) > 0
    assert len(mutual_neighbours(one, other, 100)) == 12 * 9


def test_embeddings_that_nearly_agree_are_refined():
    words = unit_rows(7, 300, 16)

    def nearly(seed):  # a turn small enough that neighbours are mostly right
        skew = np.random.default_rng(seed).normal(size=(16, 16)) * 0.08
        return np.linalg.qr(np.eye(16) + skew - skew.T)[0] * np.sign(
            np.diag(np.linalg.qr(np.eye(16) + skew - skew.T)[1])
        )

    turned = {name: words @ nearly(seed) for seed, name in enumerate(("en", "de", "fr"))}
    aligned = align(turned, neighbours=1)

    def distance(found):
        return np.mean(np.linalg.norm(found["de"] - found["fr"], axis=1))

    assert distance(aligned) < 0.05 * distance(turned)
    for name in turned:  # rotations keep all angles
        np.testing.assert_allclose(aligned[name] @ aligned[name].T, words @ words.T, atol=1e-9)
