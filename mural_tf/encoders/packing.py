"""Packs the real tokens of a batch of texts one after the other, so that nothing is computed on padding.

A padded batch [B, T] of captions is mostly padding. Packed, its tokens are one row [1, N], shorter texts first. A
transformer's work on single tokens runs on that row. Only attention needs separate texts: it lays out its queries, keys
and values by text, in groups of similar length. The states equal the padded batch's states. N varies from batch to
batch, so packing is not for XLA and TPUs, which need fixed shapes: `by_length.py` has their way.
"""

from __future__ import annotations

import itertools

import tensorflow as tf

from mural_tf.encoders.by_length import longest_of

FINEST_COUNT = 32  # N is rounded up by less than 1 / 32 of it: loops are compiled again for every shape


class Packing:
    """The places of a padded batch's tokens in the packed row, and how attention finds them.

    Args:
      mask: int32 [B, T], 1 on tokens and 0 on padding, which comes last; a text's first position counts as a token.
      groups: attention runs in this many parts of texts of similar length, each as wide as its own longest.
    """

    def __init__(self, mask: tf.Tensor, groups: int):
        lengths = tf.maximum(tf.reduce_sum(mask, axis=1), 1)  # [B]
        self.order = tf.argsort(lengths, stable=True)  # [B]: the text at each place
        lengths = tf.gather(lengths, self.order)
        self.first = tf.cumsum(lengths, exclusive=True)  # [B]: where each place's text begins in the row
        text_of = tf.repeat(tf.range(tf.size(lengths)), lengths)
        tokens = tf.reduce_sum(lengths)
        self.count = _rounded(tokens)  # N
        positions = tf.range(tokens) - tf.gather(self.first, text_of)
        fillers = tf.zeros([self.count - tokens], tf.int32)  # repeat the first token; nothing reads them
        self.is_filler = tf.range(self.count) >= tokens
        self.places = tf.concat([text_of, fillers], axis=0)  # [N]
        self.positions = tf.concat([positions, fillers], axis=0)  # [N]: within the text
        self.group_bounds = [tf.size(lengths) * group // groups for group in range(groups + 1)]
        self.masks = []
        self._rows = []
        for begin, end in itertools.pairwise(self.group_bounds):
            longest = longest_of(lengths[begin:end])
            is_token = tf.sequence_mask(lengths[begin:end], longest)  # [b, t]
            rows = self.first[begin:end, tf.newaxis] + tf.range(longest)
            self._rows.append(tf.where(is_token, rows, self.count))  # [b, t]; N where a text has no token
            self.masks.append(tf.cast(is_token, tf.int32))
        self._indices: dict[int, tuple[list[tf.Tensor], tf.Tensor]] = {}

    def pack(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of a padded batch in the packed row: [B, T] -> [1, N]."""
        texts = tf.gather(self.order, self.places)
        indices = tf.stack([texts, self.positions], axis=1)  # [N, 2]
        return tf.gather_nd(ids, indices)[tf.newaxis]

    def first_tokens(self, x: tf.Tensor) -> tf.Tensor:
        """The first token of each text, shorter texts first: [1, N, C] -> [1, B, C]."""
        return tf.gather(x, self.first, axis=1)

    def in_batch_order(self, x: tf.Tensor) -> tf.Tensor:
        """[1, B, C], shorter texts first -> [B, C] as in the batch."""
        return tf.gather(x[0], tf.argsort(self.order))

    def by_text(self, x: tf.Tensor, parts: int, heads: int) -> list[tf.Tensor]:
        """[1, N, parts * heads * size] -> for each group, [parts, b, heads, t, size]; 0 beyond a text's end."""
        by_text, by_token = self._exchange_indices(parts, heads)
        return _exchange([x], by_text, [by_token], x.shape[-1] // (parts * heads))

    def by_first_token(self, x: tf.Tensor, heads: int) -> list[tf.Tensor]:
        """[1, B, heads * size] -> for each group, [b, heads, 1, size]."""
        x = tf.reshape(x, [-1, heads, 1, x.shape[-1] // heads])
        # Not tf.split: where B is unknown, TensorFlow's graph optimiser takes all its parts to be of one size.
        return [x[begin:end] for begin, end in itertools.pairwise(self.group_bounds)]

    def by_token(self, groups: list[tf.Tensor]) -> tf.Tensor:
        """For each group, [b, heads, t, size] -> [1, N, heads * size]; 0 for the end of the row."""
        _, heads, _, size = groups[0].shape
        by_text, by_token = self._exchange_indices(1, heads)
        (x,) = _exchange(groups, [by_token], by_text, size)
        return tf.reshape(x, [1, -1, heads * size])

    def _exchange_indices(self, parts: int, heads: int) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns which of the row's vectors each group takes, and which of the groups' vectors the row takes.

        A vector is of one part and head of a token. The first are int32 [parts, b, heads, t] per group, the second
        int32 [N * parts * heads], where the groups' vectors count on from group to group.
        """
        if (parts, heads) in self._indices:
            return self._indices[parts, heads]
        vectors = parts * heads  # per token
        columns = tf.reshape(tf.range(vectors), [parts, 1, heads, 1])
        by_text = []
        for rows in self._rows:
            rows = rows[tf.newaxis, :, tf.newaxis]  # [1, b, 1, t]
            by_text.append(tf.where(rows < self.count, rows * vectors + columns, self.count * vectors))
        row_indices = tf.concat([tf.reshape(indices, [-1]) for indices in by_text], axis=0)
        count = tf.size(row_indices)
        by_token = tf.fill([self.count * vectors + 1], count)  # the last is for places beyond the texts
        by_token = tf.tensor_scatter_nd_update(by_token, row_indices[:, tf.newaxis], tf.range(count))
        self._indices[parts, heads] = by_text, by_token[:-1]
        return self._indices[parts, heads]


def _rounded(count: tf.Tensor) -> tf.Tensor:
    """Returns the next multiple of the largest power of two that is at most count / FINEST_COUNT."""
    step = tf.constant(1)
    for power in range(1, 26):  # FINEST_COUNT << 25 is 2^30, the largest power of two in int32
        step = tf.where(count >= FINEST_COUNT << power, 1 << power, step)
    return (count + step - 1) // step * step


def _exchange(inputs: list[tf.Tensor], forward: list[tf.Tensor], backward: list[tf.Tensor], size: int):
    """Returns, for each of the indices `forward`, vectors of `size` gathered from all inputs in turn.

    The index after the last vector is of a vector of zeros. The indices `backward` undo it: the gradient is a gather
    too, several times faster than the scatter of `tf.gather`'s own.
    """

    def gather_vectors(arrays, indices):
        vectors = [tf.reshape(array, [-1, size]) for array in arrays]
        vectors.append(tf.zeros([1, size], arrays[0].dtype))
        table = tf.concat(vectors, axis=0)
        return [tf.gather(table, rows) for rows in indices]

    @tf.custom_gradient
    def exchange(*inputs):
        def gradient(*upstream):
            gradients = gather_vectors(upstream, backward)
            return [tf.reshape(values, tf.shape(x)) for values, x in zip(gradients, inputs)]

        return gather_vectors(inputs, forward), gradient

    return exchange(*inputs)
