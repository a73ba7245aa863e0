"""Dropout and BatchNorm as layers: draws that repeat, groups of any size."""

import numpy as np
import pytest
import tensorflow as tf

from mural_tf.backend import keras
from mural_tf.encoders.layers import BatchNormalization, Dropout, current_pass, forward_pass, keep_mask

SEED = tf.constant([1, 2], tf.int32)


def test_dropout_repeats_in_a_pass_of_the_same_seed():
    layers, x = [Dropout(0.4), Dropout(0.4)], tf.ones([50, 40])

    def draw(seed):
        with forward_pass(seed):
            return [layer(x, training=True).numpy() for layer in layers]

    one, again, other = draw(SEED), draw(SEED), draw(SEED + 1)
    assert np.array_equal(one[0], again[0]) and np.array_equal(one[1], again[1])
    assert not np.array_equal(one[0], one[1]) and not np.array_equal(one[0], other[0])
    assert set(np.unique(one[0])) == {np.float32(0.0), np.float32(1.0 / 0.6)}
    assert abs(np.mean(one[0]) - 1.0) < 0.1
    assert current_pass() is None


def test_dropout_outside_of_a_pass_draws_anew_and_rests_in_inference():
    layer, x = Dropout(0.5), tf.ones([20, 20])
    assert not np.array_equal(layer(x, training=True), layer(x, training=True))
    assert np.array_equal(layer(x, training=False), x) and np.array_equal(layer(x), x)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
def test_the_share_kept_of_an_odd_number_of_entries(rate):
    kept = keep_mask([333, 333], rate, SEED).numpy()
    deviation = np.sqrt(rate * (1 - rate) / kept.size)
    assert kept.shape == (333, 333) and abs(kept.mean() - (1 - rate)) <= 5 * deviation
    neighbours = kept.reshape(-1)[:-1].reshape(-1, 2)  # the halves of one word are drawn apart
    expected = (1 - rate) ** 2
    assert abs(neighbours.all(axis=1).mean() - expected) <= 5 * np.sqrt(expected * (1 - expected) / len(neighbours))


def test_stochastic_depth_drops_whole_examples():
    dropped = Dropout(0.5, noise_shape=(None, 1, 1, 1))(tf.ones([64, 3, 3, 2]), training=True).numpy()
    per_example = dropped.reshape(64, -1)
    assert np.all(per_example == per_example[:, :1]) and set(per_example[:, 0]) == {0.0, 2.0}


def oracle(x, group):
    """BatchNorm with gamma 1 and beta 0, and the moments for the moving averages, in NumPy."""
    parts = x.reshape(-1, group, *x.shape[1:])
    mean, variance = parts.mean((1, 2, 3), keepdims=True), parts.var((1, 2, 3), keepdims=True)
    count = group * x.shape[1] * x.shape[2]
    y = ((parts - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape)
    return y, mean.mean((0, 1, 2, 3)), variance.mean((0, 1, 2, 3)) * count / (count - 1)


@pytest.mark.parametrize("group,size", [("local", 8), ("global", 8), (8, 8), (4, 4), ("2", 2)])
def test_batch_norm_over_groups(group, size):
    x = np.random.default_rng(0).normal(2.0, 3.0, (8, 3, 3, 5)).astype(np.float32)
    layer = BatchNormalization(group, momentum=0.9)
    y = layer(tf.constant(x), training=True)
    expected, mean, variance = oracle(x, size)
    assert np.max(np.abs(y - expected)) < 1e-4
    assert np.max(np.abs(layer.moving_mean - 0.1 * mean)) < 1e-5
    assert np.max(np.abs(layer.moving_variance - (0.9 + 0.1 * variance))) < 1e-4


def test_batch_norm_is_keras_own_when_local():
    x = tf.random.stateless_normal([8, 4, 4, 3], SEED)
    ours, theirs = BatchNormalization(momentum=0.8), keras.layers.BatchNormalization(momentum=0.8)
    for training in (True, False):
        assert np.max(np.abs(ours(x, training=training) - theirs(x, training=training))) < 1e-6
    for one, other in zip(ours.weights, theirs.weights):
        assert np.max(np.abs(one - other)) < 1e-6


def test_a_pass_takes_the_moments_and_leaves_the_averages():
    layer, x = BatchNormalization(), tf.random.stateless_normal([8, 4, 4, 3], SEED)
    layer.build(x.shape)
    with forward_pass(SEED) as current:
        layer(x, training=True)
        layer(x + 2.0, training=True)
    assert np.array_equal(layer.moving_mean, [0.0] * 3)
    mean, variance = current.mean_moments()[layer]
    assert np.max(np.abs(mean - (tf.reduce_mean(x, [0, 1, 2]) + 1.0))) < 1e-5
    layer.update_moving(mean, variance, apply=tf.constant(False))
    assert np.array_equal(layer.moving_mean, [0.0] * 3)
    layer.update_moving(mean, variance)
    assert np.max(np.abs(layer.moving_mean - 0.01 * mean)) < 1e-6
