"""Texts whose states were made are projected by a head; the text tower answers for the others, each in its row."""

import types

import numpy as np
import tensorflow as tf

from mural_tf.data.streams.stream import fingerprint
from mural_tf.models.states import KnownStates

KEYS = fingerprint(tf.constant(["a", "c"])).numpy()


class Column:
    """The states of two texts: a is [1, 2], c is [3, 4]."""

    def holds(self, keys):
        return np.isin(keys, KEYS)

    def find(self, keys):
        states = {KEYS[0]: [1, 2], KEYS[1]: [3, 4]}
        return np.array([states[key] for key in keys], np.float32)


def test_known_texts_need_only_their_head():
    heads = {"text": 10.0, "other": 100.0}
    model = types.SimpleNamespace(
        text_encoder=types.SimpleNamespace(embedding_size=2),
        embedding_size=2,
        project_texts=lambda rows, head: rows * heads[head],
    )
    asked = []

    def embed_texts(texts):
        asked.extend(texts.numpy())
        return -tf.ones([len(texts), 2])

    for head, factor in heads.items():
        embed = KnownStates(model, Column()).with_fallback(embed_texts, head)
        expected = np.array([[3 * factor, 4 * factor], [-1, -1], [factor, 2 * factor]])
        np.testing.assert_array_equal(embed(tf.constant(["c", "b", "a"])).numpy(), expected)
        np.testing.assert_array_equal(embed(tf.constant(["a"])).numpy(), expected[2:])
        np.testing.assert_array_equal(embed(tf.constant(["b"])).numpy(), expected[1:2])
    assert asked == [b"b"] * 4
