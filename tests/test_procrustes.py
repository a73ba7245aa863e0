"""Procrustes alignment: rotations that are known are found, for two languages and for more."""

import numpy as np
import pytest

from mural_tf.metrics.procrustes import align, align_anchors, mutual_neighbours, procrustes


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


def test_several_languages_meet():
    words = unit_rows(5, 60, 6)
    turns = {name: rotation(seed, 6) for seed, name in enumerate(("en", "de", "fr", "cs"), start=10)}
    turned = {name: words @ turn for name, turn in turns.items()}
    names = list(turned)
    # Anchors only between neighbours in the list: en and cs have none and must still meet.
    anchors = {(one, other): (turned[one], turned[other]) for one, other in zip(names, names[1:])}
    maps = align_anchors(anchors)
    np.testing.assert_allclose(maps["en"], np.eye(6))
    for name in names:
        np.testing.assert_allclose(turned[name] @ maps[name], turned["en"], atol=1e-8)


def test_sweeps_never_raise_the_sum():
    names, words = ("a", "b", "c"), unit_rows(6, 40, 5)
    noisy = {name: words @ rotation(seed, 5) + 0.4 * unit_rows(seed, 40, 5) for seed, name in enumerate(names, 20)}
    pairs = [("a", "b"), ("b", "c"), ("a", "c")]
    anchors = {(one, other): (noisy[one], noisy[other]) for one, other in pairs}
    sums = []
    for sweeps in range(1, 6):
        maps = align_anchors(anchors, sweeps, tolerance=0.0)
        sums.append(sum(np.sum((noisy[m] @ maps[m] - noisy[n] @ maps[n]) ** 2) for m, n in pairs))
    assert all(later <= earlier + 1e-9 for earlier, later in zip(sums, sums[1:])) and sums[-1] < sums[0]


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


def test_languages_without_anchors_stay():
    maps = align_anchors({("a", "b"): (np.zeros((0, 3)), np.zeros((0, 3)))})
    np.testing.assert_array_equal(maps["b"], np.eye(3))
