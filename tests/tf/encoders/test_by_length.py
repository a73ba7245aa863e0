"""Running a text tower by groups of similar length changes nothing but the work."""

import numpy as np
import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_tf.backend import keras
from mural_tf.encoders import build_text_encoder
from mural_tf.encoders.by_length import encode_by_length
from mural_tf.encoders.layers import forward_pass


def tower(**fields):
    config = base_config().text_tower
    config.update(dict(layers=2, hidden_size=32, heads=2, feed_forward_size=64, max_length=20, dropout=0.0))
    config.precision = "float32"
    config.update(fields)
    keras.utils.set_random_seed(1)
    return build_text_encoder(config, 50)


def tokens(lengths, width):
    rng = np.random.default_rng(0)
    mask = (np.arange(width)[None] < np.array(lengths)[:, None]).astype(np.int32)
    ids = rng.integers(1, 50, mask.shape).astype(np.int32) * mask
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}


@pytest.mark.parametrize("groups", [3, *(pytest.param(groups, marks=pytest.mark.slow) for groups in (1, 2, 7, 40))])
def test_states_and_gradients_are_the_same(groups):
    encoder, batch = tower(), tokens([3, 20, 5, 2, 9, 9, 4, 13, 2, 7, 3], 20)

    def states_and_gradients(groups):
        with tf.GradientTape() as tape:
            states = encode_by_length(encoder, batch, groups, training=True)
            loss = tf.reduce_sum(states * tf.cast(tf.range(11)[:, None], tf.float32))  # rows must keep their places
        return states, [tf.convert_to_tensor(g) for g in tape.gradient(loss, encoder.trainable_variables)]

    states, gradients = states_and_gradients(groups)
    expected, expected_gradients = states_and_gradients(1)
    assert np.max(np.abs(states - expected)) < 1e-5
    for one, other in zip(gradients, expected_gradients):
        assert np.max(np.abs(one - other)) < 1e-3 * max(1.0, float(np.max(np.abs(other))))


@pytest.mark.slow
@pytest.mark.parametrize("known", [(8, 40), (4, 8, 40)])
def test_lengths_known_beforehand_change_nothing_and_xla_compiles_them(known):
    """One compiled function for batches of short and of long texts; gradients come back to each row."""
    encoder = tower(layers=1)
    traces = []

    @tf.function(jit_compile=True, autograph=False)
    def compiled(batch):
        traces.append(1)
        with tf.GradientTape() as tape:
            states = encode_by_length(encoder, batch, 4, training=True, lengths=known)  # 4 does not divide 9 rows
            loss = tf.reduce_sum(states * tf.cast(tf.range(9)[:, None], tf.float32))
        return states, [tf.convert_to_tensor(g) for g in tape.gradient(loss, encoder.trainable_variables)]

    for rows in ([3, 20, 5, 2, 9, 9, 4, 1, 8], [1, 2, 1, 2, 3, 1, 1, 4, 4], [20] * 9):
        batch = {name: tf.constant(ids) for name, ids in tokens(rows, 20).items()}
        states, gradients = compiled(batch)
        with tf.GradientTape() as tape:
            expected = encoder(batch, training=True)
            loss = tf.reduce_sum(expected * tf.cast(tf.range(9)[:, None], tf.float32))
        expected_gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, encoder.trainable_variables)]
        assert np.max(np.abs(states - expected)) < 1e-5
        for one, other in zip(gradients, expected_gradients):
            assert np.max(np.abs(one - other)) < 1e-3 * max(1.0, float(np.max(np.abs(other))))
    assert len(traces) == 1


@pytest.mark.parametrize(
    "lengths,expected", [((4, 8), [4, 20, 20]), ((4, 9), [4, 9, 20]), ((40,), [20] * 3), ((1, 3), [3, 20, 20])]
)
def test_each_group_runs_at_the_smallest_length_that_holds_it(lengths, expected):
    """Groups of two texts with 2 and 3, 8 and 9, 19 and 20 tokens."""

    def encoder(batch, training):
        return tf.fill([2, 1], float(batch["input_mask"].shape[1]))

    batch = {name: tf.constant(ids) for name, ids in tokens([2, 20, 3, 9, 19, 8], 20).items()}
    states = encode_by_length(encoder, batch, 3, training=True, lengths=lengths)
    assert [int(states[row, 0]) for row in (0, 3, 1)] == expected and [
        int(states[row, 0]) for row in (2, 5, 4)
    ] == expected


def test_groups_at_known_lengths_draw_apart():
    """Dropout in a loop over groups is not one draw for all of them."""
    encoder, batch = tower(layers=1, dropout=0.5), {name: tf.constant(ids) for name, ids in tokens([9] * 4, 20).items()}
    same = {name: tf.repeat(ids[:1], 4, axis=0) for name, ids in batch.items()}
    with forward_pass(tf.constant([1, 2])):
        states = encode_by_length(encoder, same, 4, training=True, lengths=(16,)).numpy()
    assert len({row.tobytes() for row in states}) == 4


def test_each_group_is_cut_to_its_longest_text():
    seen = []

    def encoder(batch, training):
        seen.append(tuple(batch["input_mask"].shape))
        return tf.cast(batch["input_word_ids"][:, :1], tf.float32)

    batch = tokens([2, 20, 3, 4, 19, 6], 20)
    states = encode_by_length(encoder, {k: tf.constant(v) for k, v in batch.items()}, 3, training=True)
    np.testing.assert_array_equal(states[:, 0], batch["input_word_ids"][:, 0])
    assert seen == [(2, 4), (2, 6), (2, 20)]  # lengths 2 3, 4 6, 19 20; rounded up to even ones
