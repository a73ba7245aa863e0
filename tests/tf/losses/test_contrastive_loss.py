"""Eq. 2 of MURAL against numbers derived by hand and a loop in NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf

from mural_tf.losses.contrastive import contrastive_loss, in_batch_softmax
from mural_tf.losses.pairs import Pairs, in_batch_recall


def unit_rows(seed, *shape):
    x = np.random.default_rng(seed).normal(size=shape)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def both_sides(ids):
    """The queries' and the candidates' ids."""
    return ids if isinstance(ids, tuple) else (ids, ids)


def loop_oracle(queries, candidates, temperature, margin=0.0, smoothing=0.0, ids=()):
    n, total = len(queries), 0.0
    for i in range(n):
        logits, kept = [], []
        for j in range(n):
            cosine = float(np.dot(queries[i].astype(np.float64), candidates[j].astype(np.float64)))
            if i != j and any(own[i] == other[j] for own, other in map(both_sides, ids)):
                continue
            kept.append(j)
            logits.append((cosine - (margin if i == j else 0.0)) / temperature)
        log_probabilities = np.array(logits) - np.log(np.sum(np.exp(np.array(logits))))
        target = np.full(len(kept), smoothing / len(kept))
        target[kept.index(i)] += 1.0 - smoothing
        total -= float(np.dot(target, log_probabilities))
    return total / n


def test_value_derived_by_hand():
    # Two orthogonal pairs, τ = 1/2: logits are 2 on the diagonal and 0 off it, so each row and each column costs
    # log(e^2 + e^0) - 2 = log(1 + e^-2); both directions: 2 log(1 + e^-2).
    eye = tf.eye(2)
    np.testing.assert_allclose(contrastive_loss(Pairs(eye, eye), 0.5), 2 * math.log(1 + math.exp(-2.0)), atol=1e-6)


def test_margin_derived_by_hand():
    # Margin 0.3 before τ = 0.1 turns the diagonal's 10 into 7: log(1 + e^-7) a direction. Subtracted after the
    # division it would be 9.7.
    eye = tf.eye(2)
    loss = in_batch_softmax(Pairs(eye, eye), 0.1, margin=0.3)
    np.testing.assert_allclose(loss, math.log1p(math.exp(-7.0)), atol=1e-6)


def test_label_smoothing_derived_by_hand():
    # Logits 1 and 0, ε = 0.2: targets 0.9 and 0.1, so the row costs log(e + 1) - 0.9.
    eye = tf.eye(2)
    loss = in_batch_softmax(Pairs(eye, eye), 1.0, label_smoothing=0.2)
    np.testing.assert_allclose(loss, math.log(math.e + 1) - 0.9, atol=1e-6)


def test_a_duplicate_is_not_a_negative():
    # Pairs 0 and 1 are one image: each has only pair 2 left as a negative. With orthogonal embeddings and τ = 1 rows
    # 0 and 1 cost log(1 + e^-1), row 2 log(1 + 2 e^-1).
    eye = tf.eye(3)
    loss = in_batch_softmax(Pairs(eye, eye, (tf.constant([5, 5, 6]),)), 1.0)
    expected = (2 * math.log1p(math.exp(-1)) + math.log1p(2 * math.exp(-1))) / 3
    np.testing.assert_allclose(loss, expected, atol=1e-6)


@pytest.mark.parametrize("margin,smoothing", [(0.0, 0.0), (0.3, 0.0), (0.0, 0.1), (0.3, 0.1)])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_loop(margin, smoothing, masked):
    left, right = unit_rows(0, 9, 5), unit_rows(1, 9, 5)
    ids = (np.array([1, 2, 3, 1, 5, 6, 7, 8, 9]), np.array([1, 2, 3, 4, 5, 6, 2, 2, 9])) if masked else ()
    pairs = Pairs(left, right, tuple(tf.constant(i) for i in ids))
    loss = contrastive_loss(pairs, 0.2, margin=margin, label_smoothing=smoothing)
    expected = loop_oracle(left, right, 0.2, margin, smoothing, ids) + loop_oracle(
        right, left, 0.2, margin, smoothing, ids
    )
    np.testing.assert_allclose(loss, expected, atol=2e-5)


ACROSS = (np.array([1, 2, 3, 4, 5, 6, 7, 8, 9]), np.array([3, 1, 1, 9, 2, 6, 5, 4, 12]))  # left and right, repeated


@pytest.mark.parametrize("others", [(), (np.array([1, 2, 2, 4, 5, 6, 7, 4, 9]),)])
def test_ids_across_the_sides_equal_the_loop_in_both_directions(others):
    left, right = unit_rows(7, 9, 5), unit_rows(8, 9, 5)
    there, back = (*others, ACROSS), (*others, ACROSS[::-1])
    expected = loop_oracle(left, right, 0.2, 0.3, 0.1, there), loop_oracle(right, left, 0.2, 0.3, 0.1, back)
    options = dict(margin=0.3, label_smoothing=0.1)
    np.testing.assert_allclose(in_batch_softmax(Pairs(left, right, there), 0.2, **options), expected[0], atol=2e-5)
    np.testing.assert_allclose(in_batch_softmax(Pairs(right, left, back), 0.2, **options), expected[1], atol=2e-5)
    parts = [contrastive_loss(Pairs(left, right, there, rows), 0.2, **options) for rows in ((0, 4), (4, 5))]
    np.testing.assert_allclose(sum(parts), sum(expected), atol=4e-5)
    assert abs(sum(expected) - 2 * expected[0]) > 1e-3  # the directions differ


def test_gradients_are_finite_where_candidates_are_masked():
    left = tf.Variable(unit_rows(4, 4, 3))
    with tf.GradientTape() as tape:
        loss = contrastive_loss(Pairs(left, left, (tf.constant([1, 1, 1, 1]),)), 0.01, label_smoothing=0.1)
    assert np.all(np.isfinite(tape.gradient(loss, left)))
    np.testing.assert_allclose(loss, 0.0, atol=1e-6)  # nothing but the positive is left in any row


def test_similarity_is_float32_in_mixed_precision():
    left, right = unit_rows(5, 6, 64), unit_rows(6, 6, 64)
    rounded = [tf.cast(x, tf.bfloat16) for x in (left, right)]
    loss = contrastive_loss(Pairs(*rounded), 0.01)
    expected = contrastive_loss(Pairs(*[tf.cast(x, tf.float32) for x in rounded]), 0.01)
    assert loss.dtype == tf.float32
    assert float(abs(loss - expected)) < 1e-5


@pytest.mark.parametrize("short,expected", [(5e-7, 3 / 4), (2e-6, 2 / 4)])
def test_recall_takes_what_rounding_may_part_for_equal(short, expected):
    """Query 0's partner is `short` of the other candidate; of the other way only partner 1's query is beaten."""
    pairs = Pairs(tf.constant([[1.0, 0.0], [0.0, 1.0]]), tf.constant([[1.0 - short, 0.0], [1.0, 0.0]]))
    assert float(in_batch_recall(pairs)) == expected
