"""Triplet losses, neighbourhood constraints and the language classifier: numbers by hand, a naive oracle, gradients."""

import math

import numpy as np
import pytest
import tensorflow as tf
from test_contrastive_loss import unit_rows

from mural_tf.losses.mule import (
    caption_neighbourhood,
    distances,
    image_sentence_loss,
    language_loss,
    pair_neighbourhood,
    paired_distances,
    reverse_gradient,
    top_violations,
)
from mural_tf.losses.pairs import Pairs, Rows


def at(*degrees):
    """Unit vectors in the plane."""
    return np.array([[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees], np.float32)


def distance_of(a, b, kind):
    return np.linalg.norm(a.astype(np.float64) - b) if kind == "euclidean" else 1.0 - float(np.dot(a, b))


def naive_top(positive, negatives, margin, top):
    """Mean of the largest violations of one anchor, given its negatives' distances."""
    violations = sorted((max(0.0, margin + positive - negative) for negative in negatives), reverse=True)[:top]
    return sum(violations) / len(violations) if violations else 0.0


def test_distances():
    # 60 degrees apart: cos 1/2, so Euclidean sqrt(2 - 1) = 1 and cosine distance 1/2; opposite: 2 and 2.
    np.testing.assert_allclose(distances(at(0), at(60, 180)), [[1.0, 2.0]], atol=1e-6)
    np.testing.assert_allclose(distances(at(0), at(60, 180), "cosine"), [[0.5, 2.0]], atol=1e-6)
    np.testing.assert_allclose(paired_distances(at(0, 90), at(60, 270)), [1.0, 2.0], atol=1e-6)
    with pytest.raises(ValueError, match="euclidean, cosine"):
        distances(at(0), at(0), "manhattan")


def test_equal_vectors_have_a_finite_gradient():
    x = tf.constant(at(0, 30))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(distances(x, x))
    assert np.isfinite(tape.gradient(loss, x)).all()


def test_top_violations_by_hand():
    # Positive at 1.0, margin 0.1: negatives at 0.6, 1.05, 2.0 are violated by 0.5, 0.05, 0. The one at 0.0 is masked.
    positive, negative = tf.constant([1.0]), tf.constant([[0.6, 1.05, 2.0, 0.0]])
    mask = tf.constant([[True, True, True, False]])
    np.testing.assert_allclose(top_violations(positive, negative, mask, 0.1, 1), [0.5], rtol=1e-5)
    np.testing.assert_allclose(top_violations(positive, negative, mask, 0.1, 2), [0.55 / 2], rtol=1e-5)
    # Ten are asked for and three there are: the mean is over three, the zero included.
    np.testing.assert_allclose(top_violations(positive, negative, mask, 0.1, 10), [0.55 / 3], rtol=1e-5)
    assert top_violations(positive, negative, tf.zeros_like(mask), 0.1, 10).numpy() == [0.0]


def test_image_sentence_loss_by_hand():
    # Two images at 0 and 90 degrees, a sentence each, at 0 and 30. Cosine distances: s0 to v0 0, s0 to v1 1, s1 to v1
    # 1 - cos 60 = 0.5, s1 to v0 1 - cos 30 = 0.134. Margin 0.2.
    # Sentences against images: s0: 0.2 + 0 - 1 < 0 → 0; s1: 0.2 + 0.5 - 0.134 = 0.566.
    # Images against sentences: v0: 0.2 + 0 - 0.134 = 0.066; v1: 0.2 + 0.5 - d(v1, s0) = 0.7 - 1 < 0 → 0.
    loss = image_sentence_loss(
        at(0, 90), at(0, 30), np.array([0, 1]), np.array([7, 8]), np.array([0, 0]), margin=0.2, distance="cosine"
    )
    far = 1.0 - math.cos(math.radians(30))
    np.testing.assert_allclose(loss, (1.5 * (0.7 - far) + (0.2 - far)) / 2, rtol=1e-4)


def naive_image_sentence(images, sentences, owners, ids, languages, margin, kind, top, factor, structure):
    total, present = 0.0, 0
    for s, language in enumerate(languages):
        if language < 0:
            continue
        present += 1
        image = owners[s]
        apart = [distance_of(sentences[s], other, kind) for other in sentences]
        rivals = [t for t in range(len(languages)) if languages[t] == language and ids[owners[t]] != ids[image]]
        positive = distance_of(sentences[s], images[image], kind)
        other_images = [distance_of(sentences[s], v, kind) for v, i in zip(images, ids) if i != ids[image]]
        total += factor * naive_top(positive, other_images, margin, top)
        total += naive_top(positive, [distance_of(images[image], sentences[t], kind) for t in rivals], margin, top)
        mates = [
            t for t in range(len(languages)) if t != s and languages[t] == language and ids[owners[t]] == ids[image]
        ]
        if mates:
            farthest = max(apart[t] for t in mates)
            total += structure * naive_top(farthest, [apart[t] for t in rivals], margin, top)
    return total / present


LANGUAGES = np.array([0, 0, 1, -1, 0, 1, 2, 2, 1, 0, 0, -1, 2, 1, -1])  # five images, three places each
IDS = np.array([3, 4, 5, 3, 6])  # the first and the fourth are one image
OWNERS = np.arange(15) // 3


@pytest.mark.parametrize("kind,top,rows", [("euclidean", 2, None), ("cosine", 10, None), ("euclidean", 3, "parts")])
def test_image_sentence_loss_is_the_naive_one(kind, top, rows):
    images, sentences = unit_rows(0, 5, 4), unit_rows(1, 15, 4)
    settings = dict(margin=0.4, distance=kind, top=top, factors=(1.5, 0.3))
    parts = [(0, 6), (6, 9)] if rows else [None]
    found = sum(
        image_sentence_loss(images, Rows.of(sentences, part), OWNERS, IDS, LANGUAGES, **settings) for part in parts
    )
    expected = naive_image_sentence(images, sentences, OWNERS, IDS, LANGUAGES, 0.4, kind, top, 1.5, 0.3)
    assert expected > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def naive_caption_neighbourhood(sentences, ids, languages, margin, kind, top):
    losses = []
    for s, (own, image) in enumerate(zip(languages, ids)):
        for language in sorted(set(languages) - {own, -1}):
            block = range(s // 3 * 3, s // 3 * 3 + 3)  # the places of this image
            mates = [t for t in block if languages[t] == language]
            if own < 0 or not mates:
                continue
            positive = max(distance_of(sentences[s], sentences[t], kind) for t in mates)
            rivals = [t for t in range(len(languages)) if languages[t] == language and ids[t] != image]
            negatives = [distance_of(sentences[s], sentences[t], kind) for t in rivals]
            losses.append(naive_top(positive, negatives, margin, top))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("kind,top,rows", [("euclidean", 2, None), ("cosine", 10, [(0, 3), (3, 6), (9, 6)])])
def test_caption_neighbourhood_is_the_naive_one(kind, top, rows):
    sentences, ids = unit_rows(2, 15, 4), IDS[OWNERS]
    settings = dict(margin=0.3, distance=kind, top=top)
    found = sum(
        caption_neighbourhood(Rows.of(sentences, part), ids, LANGUAGES, 3, **settings) for part in rows or [None]
    )
    expected = naive_caption_neighbourhood(sentences, ids, LANGUAGES, 0.3, kind, top)
    assert expected > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_caption_neighbourhood_by_hand():
    # Two images with an English (0) and a German (1) sentence each, at 0, 60 and 90, 120 degrees. Cosine distances:
    # pairs 0.5 and 0.134. English 0 to the other German: 1 - cos 120 = 1.5; English 90 to the other 1 - cos 30 = 0.134;
    # German 60 to the other English: 0.134; German 120 to the other English: 1.5. Margin 0.1:
    # 0.6 - 1.5 < 0; 0.1 + 0.134 - 0.134 = 0.1; 0.6 - 0.134 = 0.466; 0.234 - 1.5 < 0.
    loss = caption_neighbourhood(
        at(0, 60, 90, 120), np.array([1, 1, 2, 2]), np.array([0, 1, 0, 1]), 2, margin=0.1, distance="cosine"
    )
    np.testing.assert_allclose(loss, (0.1 + 0.6 - (1 - math.cos(math.radians(30)))) / 4, rtol=1e-4)


def test_one_caption_for_each_image_has_no_neighbours():
    assert caption_neighbourhood(at(0, 60), np.array([1, 2]), np.array([0, 1]), 1).numpy() == 0.0


def test_pair_neighbourhood_looks_across_sides():
    left, right = unit_rows(5, 6, 4), unit_rows(6, 6, 4)
    languages = np.array([0, 1, 0, 1, 0, 0]), np.array([1, 0, 1, 0, 0, 0])
    texts = np.array([1, 2, 3, 4, 5, 6]), np.array([2, 3, 1, 9, 6, 5])  # what stands left stands right elsewhere
    group = np.array([1, 1, 1, 2, 3, 4])
    total = 0.0
    for a, b, side in ((left, right, 0), (right, left, 1)):
        for i in range(6):
            rivals = [
                j for j in range(6)
                if j != i and group[i] != group[j] and texts[side][i] != texts[1 - side][j]
                and languages[1 - side][i] == languages[1 - side][j]
            ]  # fmt: skip
            negatives = [distance_of(a[i], b[j], "euclidean") for j in rivals]
            total += naive_top(distance_of(a[i], b[i], "euclidean"), negatives, 0.5, 2)
    settings = dict(margin=0.5, top=2)
    pairs = [Pairs(left, right, (group, texts), rows) for rows in ((0, 1), (1, 5))]
    parts = [pair_neighbourhood(part, *languages, **settings) for part in pairs]
    np.testing.assert_allclose(sum(parts), total / 6, rtol=1e-5)
    without = pair_neighbourhood(Pairs(left, right, (group,)), *languages, **settings)
    assert abs(float(without) - total / 6) > 0.01


def test_language_loss_by_hand():
    # Logits (0, ln 3): probabilities 1/4 and 3/4. Languages 1 and 0: -ln 3/4 and -ln 1/4; the third row is empty.
    logits = np.log(np.array([[1.0, 3.0]] * 3, np.float32))
    expected = (math.log(4 / 3) + math.log(4)) / 2
    np.testing.assert_allclose(language_loss(logits, np.array([1, 0, -1])), expected, rtol=1e-6)
    parts = [language_loss(Rows.of(logits, rows), np.array([1, 0, -1])) for rows in ((0, 1), (1, 2))]
    np.testing.assert_allclose(sum(parts), expected, rtol=1e-6)


def test_the_reversed_gradient_flips_sign_and_only_there():
    x, kernel = tf.constant([[0.3, -0.2], [0.1, 0.9]]), tf.constant([[0.5, -1.0], [0.2, 0.4]])
    gradients = []
    for pass_on in (tf.identity, reverse_gradient):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            hidden = tf.tanh(x)
            loss = language_loss(tf.matmul(pass_on(hidden), kernel), np.array([0, 1]))
        gradients.append([loss, *tape.gradient(loss, [x, kernel])])
    plain, reversed_ = gradients
    assert plain[0] == reversed_[0] and np.max(np.abs(plain[1])) > 0.01
    np.testing.assert_array_equal(reversed_[1], -plain[1])
    np.testing.assert_array_equal(reversed_[2], plain[2])
