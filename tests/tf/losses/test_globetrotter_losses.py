"""NT-Xent, the transitive loss and the cloze loss against numbers derived by hand and loops in NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf
from test_contrastive_loss import unit_rows

from mural_tf.losses.globetrotter import cloze_loss, cloze_sums, nt_xent, transitive_loss, transitive_weights
from mural_tf.losses.pairs import Pairs, Rows


def alike_rows(seed, count, size):
    """Unit rows whose cosines are mostly above 0, as those of image embeddings are."""
    x = unit_rows(seed, count, size) + 1.5 * unit_rows(seed + 1, 1, size)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def nt_xent_loop(first, second, temperature, ids=None):
    views, owners = np.concatenate([first, second]).astype(np.float64), [*range(len(first))] * 2
    losses = []
    for a in range(len(views)):
        total = positive = 0.0
        for b in range(len(views)):
            if a == b or (ids is not None and owners[a] != owners[b] and ids[owners[a]] == ids[owners[b]]):
                continue
            term = math.exp(views[a] @ views[b] / temperature)
            total += term
            positive += term if owners[a] == owners[b] else 0.0
        losses.append(-math.log(positive / total))
    return np.mean(losses)


def test_nt_xent_derived_by_hand():
    # Two orthogonal images, both views alike, τ = 1/2: an anchor sees its other view at e^2 and two views of the other
    # image at e^0: log(e^2 + 2) - 2.
    np.testing.assert_allclose(nt_xent(Pairs(tf.eye(2), tf.eye(2)), 0.5), math.log(math.exp(2) + 2) - 2, atol=1e-6)


@pytest.mark.parametrize("ids", [None, [1, 2, 1, 4, 5, 2]])
def test_nt_xent_equals_the_loop(ids):
    first, second = unit_rows(0, 6, 5), unit_rows(1, 6, 5)
    same = () if ids is None else (tf.constant(ids),)
    found = nt_xent(Pairs(first, second, same), 0.3)
    np.testing.assert_allclose(found, nt_xent_loop(first, second, 0.3, ids), atol=1e-5)
    parts = [nt_xent(Pairs(first, second, same, r), 0.3) for r in ((0, 2), (2, 4))]
    np.testing.assert_allclose(sum(parts), found, atol=1e-6)


def test_nt_xent_knows_a_text_on_either_side():
    """Of pairs of texts with ids of their own, those of one id are not compared, wherever they stand."""
    first, second = unit_rows(0, 4, 5), unit_rows(1, 4, 5)
    left, right = [1, 2, 3, 1], [4, 1, 3, 6]
    views, ids, losses = np.concatenate([first, second]).astype(np.float64), left + right, []
    for a in range(8):
        partner = (a + 4) % 8
        others = [b for b in range(8) if b != a and (b == partner or ids[a] != ids[b])]
        terms = {b: math.exp(views[a] @ views[b] / 0.3) for b in others}
        losses.append(-math.log(terms[partner] / sum(terms.values())))
    found = nt_xent(Pairs(first, second, ((tf.constant(left), tf.constant(right)),)), 0.3)
    np.testing.assert_allclose(found, np.mean(losses), atol=1e-5)


def weights_loop(images, captions, definition, margin):
    count = len(images)
    images, captions = images.astype(np.float64), captions.astype(np.float64)
    alpha = np.zeros((count, count))
    if definition == "paper":
        for i in range(count):
            for j in range(count):
                cosines = images[i] @ captions[i], images[i] @ images[j], images[j] @ captions[j]
                alpha[i, j] = np.cbrt(np.prod([(1 + c) / 2 for c in cosines]))
    else:
        product = np.array(
            [[(images[i] @ captions[i]) * (images[j] @ captions[j]) for j in range(count)] for i in range(count)]
        )
        product = (product - product.min()) / (product.max() - product.min()) * 0.5 + 0.75
        for i in range(count):
            for j in range(count):
                alpha[i, j] = product[i, j] * (images[i] @ images[j])
        alpha /= max(alpha[i, j] for i in range(count) for j in range(count) if i != j)
    alpha = np.maximum(0.0, alpha - margin) / (1 - margin)
    np.fill_diagonal(alpha, 0.0)
    return alpha


def loss_loop(sentences, alpha, temperature):
    sentences, total, count = sentences.astype(np.float64), 0.0, len(sentences)
    for i in range(count):
        others = sum(math.exp(sentences[i] @ sentences[k] / temperature) for k in range(count) if k != i)
        for j in range(count):
            if i != j:
                total -= alpha[i, j] * (sentences[i] @ sentences[j] / temperature - math.log(others))
    return total, sum(alpha[i, j] for i in range(count) for j in range(count) if i != j)


def test_alpha_derived_by_hand():
    # Two orthogonal images, each with a caption that fits it: cosines 1, 0, 1 map to 1, 1/2, 1; the cube root of 1/2
    # less 0.4, over 0.6. The code's definition sees no similarity above 0 at all.
    found = transitive_weights(tf.eye(2), tf.eye(2), "paper").numpy()
    np.testing.assert_allclose(found, (0.5 ** (1 / 3) - 0.4) / 0.6 * (1 - np.eye(2)), atol=1e-6)
    assert not transitive_weights(tf.eye(2), tf.eye(2), "code").numpy().any()
    # Cosine 1/2 between three images in a row of similarity 1/2, 1/2 and -1/2 (angles 0, 60 and 120 degrees), captions
    # that fit: the largest becomes 1, and the third pair is below the margin.
    angles = np.deg2rad([0.0, 60.0, 120.0])
    images = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    expected = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    np.testing.assert_allclose(transitive_weights(images, images, "code"), expected, atol=1e-5)


@pytest.mark.parametrize("definition", ["code", "paper"])
def test_alpha_equals_the_loop_and_is_symmetric(definition):
    images, captions = alike_rows(2, 8, 6), alike_rows(4, 8, 6)
    found = transitive_weights(images, captions, definition, 0.4).numpy()
    np.testing.assert_allclose(found, weights_loop(images, captions, definition, 0.4), atol=1e-5)
    np.testing.assert_allclose(found, found.T, atol=1e-6)
    assert found.min() == 0.0 and 0.1 < found.max() <= 1.0 + 1e-6 and not np.diag(found).any()


def test_images_that_are_all_unlike_have_no_positives():
    # Three images at 120 degrees: every cosine is -1/2. Dividing by the largest would turn the signs around.
    angles = np.deg2rad([0.0, 120.0, 240.0])
    images = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    alpha = transitive_weights(images, images, "code")
    assert not alpha.numpy().any()
    sentences = tf.Variable(unit_rows(6, 3, 4))
    with tf.GradientTape() as tape:
        loss = transitive_loss(sentences, alpha, 0.1)
    assert float(loss) == 0.0 and not np.any(tape.gradient(loss, sentences))


def test_transitive_loss_equals_the_loop():
    sentences, alpha = unit_rows(7, 9, 5), weights_loop(alike_rows(8, 9, 5), alike_rows(10, 9, 5), "code", 0.4)
    total, weight = loss_loop(sentences, alpha, 0.2)
    np.testing.assert_allclose(transitive_loss(sentences, alpha, 0.2), total / weight, rtol=1e-5)
    np.testing.assert_allclose(transitive_loss(sentences, alpha, 0.2, divided=False), total / 9, rtol=1e-5)
    parts = [transitive_loss(Rows.of(sentences, rows), alpha, 0.2) for rows in ((0, 4), (4, 5))]
    np.testing.assert_allclose(sum(parts), total / weight, rtol=1e-5)


def test_known_pairs_make_it_nt_xent():
    first, second = unit_rows(11, 5, 4), unit_rows(12, 5, 4)
    alpha = np.kron([[0, 1], [1, 0]], np.eye(5))  # 1 for the other side of the pair, 0 for all other texts
    found = transitive_loss(np.concatenate([first, second]), alpha, 0.1)
    np.testing.assert_allclose(found, nt_xent(Pairs(first, second), 0.1), atol=1e-5)


@pytest.mark.parametrize("definition", ["code", "paper"])
def test_nothing_flows_back_through_alpha(definition):
    images, captions, sentences = (tf.Variable(alike_rows(seed, 6, 4)) for seed in (13, 13, 17))
    with tf.GradientTape() as tape:
        loss = transitive_loss(sentences, transitive_weights(images, captions, definition), 0.1)
    to_images, to_captions, to_sentences = tape.gradient(loss, [images, captions, sentences])
    assert to_images is None and to_captions is None and np.abs(to_sentences).max() > 1e-3


def test_cloze_derived_by_hand_and_by_loop():
    # Equal logits over 8 pieces cost ln 8 at each place, however many places count.
    weights = tf.constant([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    sums = cloze_sums(tf.zeros([2, 3, 8]), tf.zeros([2, 3], tf.int32), weights)
    np.testing.assert_allclose(sums, [[2 * math.log(8), 2], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(cloze_loss(sums), math.log(8), atol=1e-6)
    assert float(cloze_loss(sums[1:])) == 0.0  # no places at all
    generator = np.random.default_rng(0)
    logits, targets = generator.normal(size=(4, 3, 5)).astype(np.float32), generator.integers(0, 5, (4, 3))
    weights = generator.integers(0, 2, (4, 3)).astype(np.float32)
    losses = [
        weights[b, k] * (math.log(np.sum(np.exp(logits[b, k]))) - logits[b, k, targets[b, k]])
        for b in range(4)
        for k in range(3)
    ]
    sums = cloze_sums(logits, targets, weights)
    np.testing.assert_allclose(cloze_loss(sums), np.sum(losses) / np.sum(weights), rtol=1e-5)
    parts = [cloze_loss(Rows.of(sums, rows)) for rows in ((0, 1), (1, 3))]
    np.testing.assert_allclose(sum(parts), cloze_loss(sums), rtol=1e-5)
