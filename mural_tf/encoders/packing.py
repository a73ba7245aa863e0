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
    """Where the tokens of a padded batch are in the packed row of N tokens, and in groups of texts for attention.

    B is the number of texts; in a group, b is the number of its texts and t its longest text's length.

    Args:
      mask: int32 [B, T], 1 on tokens and 0 on padding, which comes last; a text's first position counts as a token.
      groups: the number of groups, each of texts of similar length.
    """

    def __init__(self, mask: tf.Tensor, groups: int):
        lengths = tf.maximum(tf.reduce_sum(mask, axis=1), 1)  # [B]
        self.order = tf.argsort(lengths, stable=True)  # [B]: the text at each place
        lengths = tf.gather(lengths, self.order)
        self.first = tf.cumsum(lengths, exclusive=True)  # [B]: where each place's text begins in the row
        self._lay_out_row(lengths)
        self._lay_out_groups(lengths, groups)
        self._indices: dict[tuple[int, int], tuple[list[tf.Tensor], tf.Tensor]] = {}

    def _lay_out_row(self, lengths: tf.Tensor) -> None:
        """Sets `count`, N, and the row's `places`, `positions` and `is_filler` by ascending lengths, int32 [B]."""
        text_of = tf.repeat(tf.range(tf.size(lengths)), lengths)
        token_count = tf.reduce_sum(lengths)
        self.count = _rounded(token_count)  # N
        positions = tf.range(token_count) - tf.gather(self.first, text_of)
        fillers = tf.zeros([self.count - token_count], tf.int32)  # repeat the first token; nothing reads them
        self.is_filler = tf.range(self.count) >= token_count  # [N]
        self.places = tf.concat([text_of, fillers], axis=0)  # [N]
        self.positions = tf.concat([positions, fillers], axis=0)  # [N]: within the text

    def _lay_out_groups(self, lengths: tf.Tensor, groups: int) -> None:
        """Sets the groups' `group_bounds`, `masks` and rows of tokens; `lengths` is as in `_lay_out_row`."""
        self.group_bounds = [tf.size(lengths) * group // groups for group in range(groups + 1)]
        self.masks = []
        self._rows = []
        for begin, end in itertools.pairwise(self.group_bounds):
            longest = longest_of(lengths[begin:end])
            is_token = tf.sequence_mask(lengths[begin:end], longest)  # [b, t]
            rows = self.first[begin:end, tf.newaxis] + tf.range(longest)  # [b, 1] + [t]
            self._rows.append(tf.where(is_token, rows, self.count))  # [b, t]; N where a text has no token
            self.masks.append(tf.cast(is_token, tf.int32))

    def pack(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns a padded batch's ids, int32 [B, T], as the packed row, int32 [1, N]."""
        texts = tf.gather(self.order, self.places)
        indices = tf.stack([texts, self.positions], axis=1)  # [N, 2]
        return tf.gather_nd(ids, indices)[tf.newaxis]

    def first_tokens(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the state of each text's first token, shorter texts first: [1, N, C] -> [1, B, C]."""
        return tf.gather(x, self.first, axis=1)

    def in_batch_order(self, x: tf.Tensor) -> tf.Tensor:
        """Returns a state per text, [1, B, C], shorter texts first, in the order of the batch: [B, C]."""
        return tf.gather(x[0], tf.argsort(self.order))

    def by_text(self, x: tf.Tensor, parts: int, heads: int) -> list[tf.Tensor]:
        """Returns x, [1, N, parts * heads * size], for each group as [parts, b, heads, t, size]; 0 for padding."""
        text_indices, row_indices = self._text_and_row_indices(parts, heads)
        size = x.shape[-1] // (parts * heads)
        return _gather_with_gather_gradient([x], text_indices, [row_indices], size)

    def by_first_token(self, x: tf.Tensor, heads: int) -> list[tf.Tensor]:
        """Returns x, a vector per text, [1, B, heads * size], for each group as [b, heads, 1, size]."""
        x = tf.reshape(x, [-1, heads, 1, x.shape[-1] // heads])
        # Not tf.split: where B is unknown, TensorFlow's graph optimiser takes all its parts to be of one size.
        return [x[begin:end] for begin, end in itertools.pairwise(self.group_bounds)]

    def by_token(self, groups: list[tf.Tensor]) -> tf.Tensor:
        """Returns the row, [1, N, heads * size], of groups, [b, heads, t, size] each; 0 for the end of the row."""
        _, heads, _, size = groups[0].shape
        text_indices, row_indices = self._text_and_row_indices(1, heads)
        (x,) = _gather_with_gather_gradient(groups, [row_indices], text_indices, size)
        return tf.reshape(x, [1, -1, heads * size])

    def _text_and_row_indices(self, parts: int, heads: int) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the indices of the row's vectors that groups take, and of the groups' vectors that the row takes.

        A vector is one part and head of a token. The first are int32 [parts, b, heads, t] per group, the second are
        int32 [N * parts * heads], where the numbers of a group's vectors follow the previous group's.
        """
        if (parts, heads) in self._indices:  # the same in every layer
            return self._indices[parts, heads]
        per_token = parts * heads  # vectors of a token
        columns = tf.reshape(tf.range(per_token), [parts, 1, heads, 1])
        text_indices = []
        for rows in self._rows:
            rows = rows[tf.newaxis, :, tf.newaxis]  # [1, b, 1, t]
            indices = rows * per_token + columns  # [parts, b, heads, t]
            text_indices.append(tf.where(rows < self.count, indices, self.count * per_token))
        # The other way: vector i of all groups is row vector `from_row[i]`, so `row_indices[from_row[i]]` is i.
        from_row = tf.concat([tf.reshape(indices, [-1]) for indices in text_indices], axis=0)
        group_vectors = tf.size(from_row)
        # Positions beyond a text's end all have the row's index N * per_token: a last entry takes them, and is cut off.
        row_indices = tf.fill([self.count * per_token + 1], group_vectors)
        row_indices = tf.tensor_scatter_nd_update(row_indices, from_row[:, tf.newaxis], tf.range(group_vectors))
        self._indices[parts, heads] = text_indices, row_indices[:-1]
        return self._indices[parts, heads]


def _rounded(count: tf.Tensor) -> tf.Tensor:
    """Returns a count rounded up to a multiple of the largest power of two that is at most count / FINEST_COUNT."""
    step = tf.constant(1)
    for power in range(1, 26):  # FINEST_COUNT << 25 is 2^30, the largest power of two in int32
        step = tf.where(count >= FINEST_COUNT << power, 1 << power, step)
    return (count + step - 1) // step * step


def _gather_with_gather_gradient(
    inputs: list[tf.Tensor], forward_indices: list[tf.Tensor], backward_indices: list[tf.Tensor], size: int
) -> list[tf.Tensor]:
    """Returns the inputs' vectors of `size` numbers at each of `forward_indices`, [..., size] each.

    Indices count the vectors of all inputs in turn; the index after the last vector means a vector of zeros. No
    vector is taken twice, so a gather by `backward_indices`, a tensor per input, undoes the first gather. That gather
    is the gradient, because the scatter-add of `tf.gather`'s own gradient takes several times as long.
    """

    def gather_vectors(arrays, indices):
        vectors = [tf.reshape(array, [-1, size]) for array in arrays]
        vectors.append(tf.zeros([1, size], arrays[0].dtype))
        table = tf.concat(vectors, axis=0)
        return [tf.gather(table, rows) for rows in indices]

    @tf.custom_gradient
    def gather_forward(*arrays):
        def gather_backward(*upstream):
            gradients = gather_vectors(upstream, backward_indices)
            return [tf.reshape(values, tf.shape(array)) for values, array in zip(gradients, arrays)]

        return gather_vectors(arrays, forward_indices), gather_backward

    return gather_forward(*inputs)
