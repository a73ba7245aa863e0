"""Running a text tower by groups of similar length changes nothing but the work."""

import numpy as np
import pytest
import tensorflow as tf

from mural_tf.backend import keras
from mural_tf.config import base_config
from mural_tf.encoders import build_text_encoder
from mural_tf.encoders.packing import encode_by_length


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


@pytest.mark.parametrize("groups", [1, 2, 3, 7, 40])
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


def test_each_group_is_cut_to_its_longest_text():
    seen = []

    def encoder(batch, training):
        seen.append(tuple(batch["input_mask"].shape))
        return tf.cast(batch["input_word_ids"][:, :1], tf.float32)

    batch = tokens([2, 20, 3, 4, 19, 6], 20)
    states = encode_by_length(encoder, {k: tf.constant(v) for k, v in batch.items()}, 3, training=True)
    np.testing.assert_array_equal(states[:, 0], batch["input_word_ids"][:, 0])
    assert seen == [(2, 4), (2, 6), (2, 20)]  # lengths 2 3, 4 6, 19 20; rounded up to even ones
