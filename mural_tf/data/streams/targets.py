"""Texts whose embeddings are what others are taught: which they are, and one vector for each.

Several pivot languages name what a whole group of pairs ("say all the same") is taught: the mean of the group's texts
in them. Vectors are made once, before the first step, in an order that follows from the data, so that a run that goes
on elsewhere has the very same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from mural_tf.errors import UserError

TEXTS = 2048  # embedded at a time
MOST_BYTES = 2**31  # of vectors, and of texts


class TargetTable:
    """A vector for each id.

    Args:
      ids: int64 [N], all different.
      vectors: float32 [N, D].
    """

    def __init__(self, ids: np.ndarray, vectors: np.ndarray):
        order = np.argsort(ids)
        self._ids, self._vectors = tf.constant(ids[order]), tf.constant(vectors[order])

    def take(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the float32 [B, D] of int64 [B]; an id that is not there is an error of the running graph."""
        rows = tf.minimum(tf.searchsorted(self._ids, ids), len(self._ids) - 1)
        known = tf.reduce_all(tf.equal(tf.gather(self._ids, rows), ids))
        with tf.control_dependencies([tf.debugging.Assert(known, ["The data changed after training began."])]):
            return tf.gather(self._vectors, rows)


class Texts:
    """Numbers different texts in the order of their first `number`; raises `UserError` once they are too many."""

    def __init__(self, width: int):
        self.numbers: dict[bytes, int] = {}
        self._width, self._bytes = width, 0

    def number(self, text: bytes) -> int:
        """Returns the text's number."""
        found = self.numbers.setdefault(text, len(self.numbers))
        if found == len(self.numbers) - 1:
            self._bytes += len(text) + 4 * self._width
            if self._bytes > MOST_BYTES:
                raise UserError(
                    f"More than {found:,} texts to embed before the first step, above {MOST_BYTES / 2**30:g} GiB: set "
                    "--config.method.cached=False and one method.pivot, and each step embeds its own."
                )
        return found


def embed_all(texts: Sequence[bytes], embed: Callable[[tf.Tensor], tf.Tensor]) -> np.ndarray:
    """Returns float32 [N, D] of texts, by blocks of texts of similar length; `embed`: string [B] to float32 [B, D]."""
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    vectors = None
    for begin in range(0, len(order), TEXTS):
        rows = order[begin : begin + TEXTS]
        found = embed(tf.constant([texts[row] for row in rows])).numpy()
        vectors = np.zeros([len(texts), found.shape[1]], np.float32) if vectors is None else vectors
        vectors[rows] = found
    return vectors


def mean_by_group(groups: np.ndarray, members: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of groups and the mean of each one's different members, of length 1.

    Args:
      groups, members: int64 [M] each: row m says that text `members[m]` is in group `groups[m]`; may say it twice.
      vectors: float32 [N, D] of texts.
    """
    pairs = np.unique(np.stack([groups, members], axis=1), axis=0)
    ids, first = np.unique(pairs[:, 0], return_index=True)
    sums = np.add.reduceat(vectors[pairs[:, 1]], first, axis=0)
    return ids, sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), np.finfo(np.float32).tiny)
