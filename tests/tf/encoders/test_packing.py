"""Packed texts against a loop over texts: where every token goes, what comes back, and the gradients of both ways."""

import numpy as np
import pytest
import tensorflow as tf
from test_by_length import tokens, tower

from mural_tf.encoders.packing import Packing
from mural_tf.encoders.pooling import packed_first_and_mean

LENGTHS = [3, 20, 5, 2, 9, 9, 4, 13, 2, 7, 3]  # 77 tokens: one filler


@pytest.fixture
def no_fusion():
    """The fused loops are part of what is tested here."""


def packing(groups, lengths=LENGTHS):
    return Packing(tf.constant(tokens(lengths, 20)["input_mask"]), groups)


def test_tokens_stand_text_after_text_shorter_first():
    batch = tokens(LENGTHS, 20)
    packed = packing(2).pack(tf.constant(batch["input_word_ids"])).numpy()
    assert packed.shape == (1, 78)
    order = np.argsort(LENGTHS, kind="stable")
    expected = np.concatenate([batch["input_word_ids"][text, : LENGTHS[text]] for text in order])
    np.testing.assert_array_equal(packed[0, :77], expected)
    np.testing.assert_array_equal(packed[0, 77], expected[0])


@pytest.mark.parametrize("groups", [1, 3, 40])
def test_attention_layout_and_back(groups):
    packed, parts, heads, size = packing(groups), 3, 2, 4
    x = np.random.default_rng(0).normal(size=(1, 78, parts * heads * size)).astype(np.float32)
    laid_out = packed.by_text(tf.constant(x), parts, heads)
    assert len(laid_out) == groups
    lengths, begin, place = np.sort(LENGTHS), 0, 0
    for group, mask in zip(laid_out, packed.masks):
        assert group.shape[3] <= max(lengths[: place + group.shape[1]], default=1) + 1  # as wide as its longest
        for text in range(group.shape[1]):
            length = lengths[place]
            rows = x[0, begin : begin + length].reshape(length, parts, heads, size).transpose(1, 2, 0, 3)
            np.testing.assert_array_equal(group[:, text, :, :length], rows)
            assert np.all(group[:, text, :, length:] == 0)
            np.testing.assert_array_equal(mask[text], np.arange(group.shape[3]) < length)
            begin, place = begin + length, place + 1
    assert place == len(LENGTHS)
    for part in range(parts):
        back = packed.by_token([group[part] for group in laid_out]).numpy().reshape(78, heads * size)
        np.testing.assert_array_equal(back[:77], x[0, :77].reshape(77, parts, heads * size)[:, part])
        assert np.all(back[77] == 0)


@pytest.mark.parametrize("groups", [1, 3])
def test_gradients_reach_every_token_once_and_no_filler(groups):
    packed = packing(groups)
    weight = np.random.default_rng(1).normal(size=(1, 78, 24)).astype(np.float32)
    with tf.GradientTape() as tape:
        x = tf.Variable(tf.ones([1, 78, 24]))
        laid_out = packed.by_text(x, 3, 2)
        squares = [tf.square(group) for group in laid_out]
        back = tf.concat([packed.by_token([group[part] for group in squares]) for part in range(3)], axis=-1)
        loss = tf.reduce_sum(back * weight)
    expected = 2 * weight  # of w x^2 at x = 1; the last row is a filler
    expected[0, 77] = 0
    assert np.max(np.abs(tape.gradient(loss, x) - expected)) < 1e-6


def test_the_row_is_at_most_a_thirty_second_longer():
    for lengths in ([2], [20] * 16, [7] * 100, [13] * 5000):
        count, tokens_ = int(packing(1, lengths).count), sum(lengths)
        assert tokens_ <= count < tokens_ * (1 + 1 / 32) + 1


@pytest.mark.parametrize("lengths", [[1, *LENGTHS, 1], LENGTHS])  # 79 and 77 tokens: one filler of the shortest text
def test_the_first_token_and_the_mean_of_the_others_leave_fillers_out(lengths):
    packed, x = packing(2, lengths), np.random.default_rng(2).normal(size=(1, sum(lengths) + 1, 8)).astype(np.float32)
    texts = np.split(x[0, :-1], np.cumsum(np.sort(lengths))[:-1])
    expected = [np.concatenate([text[0], text[1:].mean(axis=0) if len(text) > 1 else np.zeros(8)]) for text in texts]
    np.testing.assert_allclose(packed_first_and_mean(tf.constant(x), packed)[0], expected, atol=1e-6)


def test_dropout_acts_on_packed_texts_in_training_only():
    encoder, batch = tower(dropout=0.5), {name: tf.constant(ids) for name, ids in tokens(LENGTHS, 20).items()}
    one, two = (encoder.packed_states(batch, 3, training=True) for _ in range(2))
    assert np.max(np.abs(one - two)) > 1e-3
    assert np.max(np.abs(encoder.packed_states(batch, 3, training=False) - encoder(batch, training=False))) < 1e-5
