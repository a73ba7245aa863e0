"""The start of every loss over a batch: rows of a global batch, and pairs of them.

Each replica holds all embeddings of the global batch and answers for some rows of it: its sums over these, divided by
numbers of the whole batch, add up over the replicas to the loss of one device.

On a TPU the first of a replica's rows is known only when the step runs, but every size when it is compiled. So `first`
is only added to numbers (`first + tf.range(count)`) or begins a `tf.slice` of a known size, never a bracket's range.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tensorflow as tf

ROUNDING = 1e-6  # by which two computations of one cosine may differ


def count_rows(values: tf.Tensor) -> tf.Tensor | int:
    """Returns the size of the first axis: an `int` if it is known when the step is traced, else an int32 scalar."""
    rows = values.shape[0]
    if rows is None:
        return tf.shape(values)[0]
    return rows


class Rows(NamedTuple):
    """All rows of the global batch, and which of them are this replica's own, whose losses it sums.

    values: [N, …].
    first, count: the own rows are first, first + 1, …; R = count of them.
    """

    values: tf.Tensor
    first: tf.Tensor | int
    count: tf.Tensor | int

    @classmethod
    def of(cls, values: tf.Tensor | Rows, rows: tuple | None = None) -> Rows:
        """Returns `Rows` of a tensor [N, …] with the own rows (first, count), `None`: all; `Rows` stay as they are."""
        if isinstance(values, Rows):
            return values
        first, count = rows or (0, count_rows(values))
        return cls(values, first, count)

    @property
    def total(self) -> tf.Tensor:
        """N, an int32 scalar."""
        return tf.shape(self.values)[0]

    @property
    def own(self) -> tf.Tensor:
        """The own rows, [R, …]."""
        return self.own_of(self.values)

    def own_of(self, others: tf.Tensor) -> tf.Tensor:
        """Returns the own rows of another tensor [N, …]: [R, …]."""
        widths = [-1 if width is None else width for width in others.shape[1:]]  # -1: the whole axis
        begin = [self.first] + [0] * len(widths)
        return tf.slice(others, begin, [self.count] + widths)

    def is_own_row(self, columns: tf.Tensor) -> tf.Tensor:
        """Whether an own row's number is a column's number, int32 [C]: bool [R, C]."""
        numbers = self.first + tf.range(self.count)
        return tf.equal(numbers[:, None], columns[None, :])

    def share_id(self, ids: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Whether an own row's id is a column's id: bool [R, C].

        Args:
          ids: integers [N], of all rows.
          others: integers [C], of the columns.
        """
        own_ids = self.own_of(ids)
        return tf.equal(own_ids[:, None], others[None, :])


class Pairs:
    """Pairs: row i of the left side belongs to row i of the right; left rows are queries, all right rows candidates.

    Args:
      left, right: [N, D], any float type, L2-normalised; tensors, or `Rows`, of which the left `Rows` are the queries.
      same: ids that keep pairs from being each other's negatives. An entry is integers [N], which two such pairs share,
        for example their image's id; or (left [N], right [N]): left i equals right j, for example the same text.
      rows: the queries, as (first, count), where `left` is a tensor; `None`: all.
    """

    def __init__(self, left: tf.Tensor | Rows, right: tf.Tensor | Rows, same: tuple = (), rows: tuple | None = None):
        self.left = Rows.of(left, rows)
        self.right = self.left._replace(values=Rows.of(right).values)  # own rows as the left's: partners stay together
        self.same = tuple(ids if isinstance(ids, tuple) else (ids, ids) for ids in same)  # (left [N], right [N]) each

    @property
    def reversed(self) -> Pairs:
        """The other direction, from right to left."""
        return Pairs(self.right, self.left, tuple((right, left) for left, right in self.same))

    @property
    def within_left(self) -> Pairs:
        """The left side compared with itself."""
        return Pairs(self.left, self.left, tuple(left for left, _ in self.same))

    @functools.cached_property
    def total(self) -> tf.Tensor:
        """N, an int32 scalar."""
        return self.right.total

    @functools.cached_property
    def queries(self) -> tf.Tensor:
        """The left rows whose losses are summed, float32 [R, D]."""
        return tf.cast(self.left.own, tf.float32)

    @functools.cached_property
    def cosines(self) -> tf.Tensor:
        """The cosine of every query and candidate: float32 [R, N]."""
        return self.cosines_to(self.right)

    def cosines_to(self, side: Rows) -> tf.Tensor:
        """Returns the cosine of every query and every row of a side: float32 [R, N]."""
        values = tf.cast(side.values, tf.float32)
        return tf.matmul(self.queries, values, transpose_b=True)

    @property
    def own_cosines(self) -> tf.Tensor:
        """The cosine of every query and its partner: float32 [R]."""
        left = tf.cast(self.left.values, tf.float32)
        right = tf.cast(self.right.values, tf.float32)
        cosines = tf.reduce_sum(left * right, axis=1)  # [N]
        return self.left.own_of(cosines)

    @functools.cached_property
    def is_positive(self) -> tf.Tensor:
        """Whether candidate c is query r's partner: bool [R, N]."""
        return self.left.is_own_row(tf.range(self.total))

    @functools.cached_property
    def is_candidate(self) -> tf.Tensor:
        """Whether candidate c is query r's partner or negative: bool [R, N]."""
        shared = tf.zeros_like(self.is_positive)
        for queries, candidates in self.same:
            shared |= self.left.share_id(queries, candidates)
        return self.is_positive | ~shared

    @property
    def is_negative(self) -> tf.Tensor:
        """Whether candidate c is a negative of query r: bool [R, N]."""
        return self.is_candidate & ~self.is_positive

    def of_partner(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the value of each query's partner, [R], from values of all candidates, [R, N]."""
        return tf.reduce_sum(tf.where(self.is_positive, values, 0.0), axis=1)

    def mean(self, losses: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the queries' losses, [R], divided by N: parts of a batch add up to the mean."""
        return tf.reduce_sum(losses) / tf.cast(self.total, tf.float32)


def in_batch_recall(pairs: Pairs) -> tf.Tensor:
    """Returns R@1 within the batch, 0..1: the share of queries, in both directions, whose partner no candidate beats.

    A candidate as good as the partner does not beat it: the same text twice in a batch is not a mistake. With only some
    queries the result is their part of the whole. A float32 scalar, without gradient.
    """
    own_cosines = tf.stop_gradient(pairs.own_cosines)  # the same in both directions
    hit_count = 0.0
    for direction in (pairs, pairs.reversed):
        best = tf.reduce_max(tf.stop_gradient(direction.cosines), axis=1)
        is_hit = own_cosines >= best - ROUNDING
        hit_count += tf.reduce_sum(tf.cast(is_hit, tf.float32))
    return hit_count / (2.0 * tf.cast(pairs.total, tf.float32))
