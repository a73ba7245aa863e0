"""Packs the real tokens of a batch of texts one after the other, so that nothing is computed on padding.

A padded batch [B, T] of captions is mostly padding. Packed, its tokens are one row [1, N], shorter texts first. A
transformer's work on single tokens runs on that row. Only attention needs separate texts: it lays out its queries, keys
and values by text, in groups of similar length. The states equal the padded batch's states. N varies from batch to
batch, so packing is not for XLA and TPUs, which need fixed shapes: there groups of texts of similar length run at
one of a few lengths that are known before the first step.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import tensorflow as tf

from mural_tf.backend import keras
from mural_tf.encoders.layers import current_pass, forward_pass

LENGTH_STEP = 2  # groups' lengths are rounded up to multiples of it: compiled loops are compiled again for every shape
FINEST_COUNT = 32  # N is rounded up by less than 1 / 32 of it, for the same reason


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
            longest = _longest(lengths[begin:end])
            is_token = tf.sequence_mask(lengths[begin:end], longest)  # [b, t]
            rows = self.first[begin:end, tf.newaxis] + tf.range(longest)
            self._rows.append(tf.where(is_token, rows, self.count))  # [b, t]; N: none
            self.masks.append(tf.cast(is_token, tf.int32))
        self._indices: dict[int, tuple[list[tf.Tensor], tf.Tensor]] = {}

    def pack(self, ids: tf.Tensor) -> tf.Tensor:
        """Takes the tokens of a padded batch: [B, T] -> [1, N]."""
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
        """Which vectors of one head each group takes from the row, and which the row takes from the groups in turn."""
        if (parts, heads) in self._indices:
            return self._indices[parts, heads]
        vectors = parts * heads  # of a token
        columns = tf.reshape(tf.range(vectors), [parts, 1, heads, 1])
        by_text = []
        for rows in self._rows:
            rows = rows[tf.newaxis, :, tf.newaxis]  # [1, b, 1, t]
            by_text.append(tf.where(rows < self.count, rows * vectors + columns, self.count * vectors))
        taken = tf.concat([tf.reshape(indices, [-1]) for indices in by_text], axis=0)
        by_token = tf.fill([self.count * vectors + 1], tf.size(taken))  # the last is for places beyond the texts
        by_token = tf.tensor_scatter_nd_update(by_token, taken[:, tf.newaxis], tf.range(tf.size(taken)))
        self._indices[parts, heads] = by_text, by_token[:-1]
        return self._indices[parts, heads]


def _longest(lengths: tf.Tensor) -> tf.Tensor:
    """The largest length, rounded up to a multiple of `LENGTH_STEP`; as of a length of 1 if there are no texts."""
    longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
    return (longest + LENGTH_STEP - 1) // LENGTH_STEP * LENGTH_STEP


def _rounded(count: tf.Tensor) -> tf.Tensor:
    """The next multiple of the largest power of two that is at most count / FINEST_COUNT."""
    step = tf.constant(1)
    for power in range(1, 26):
        step = tf.where(count >= FINEST_COUNT << power, 1 << power, step)
    return (count + step - 1) // step * step


def _exchange(inputs: list[tf.Tensor], forward: list[tf.Tensor], backward: list[tf.Tensor], size: int):
    """Gathers vectors of `size` from all inputs in turn, by indices `forward`; one past the last is a zero vector.

    `backward` undoes it: the gradient is a gather too, several times faster than the scatter of `tf.gather`'s own.
    """

    def gather_vectors(arrays, indices):
        vectors = [tf.reshape(array, [-1, size]) for array in arrays]
        vectors.append(tf.zeros([1, size], arrays[0].dtype))
        table = tf.concat(vectors, axis=0)
        return [tf.gather(table, chosen) for chosen in indices]

    @tf.custom_gradient
    def exchange(*inputs):
        def gradient(*upstream):
            gradients = gather_vectors(upstream, backward)
            return [tf.reshape(values, tf.shape(x)) for values, x in zip(gradients, inputs)]

        return gather_vectors(inputs, forward), gradient

    return exchange(*inputs)


def stack_ids(ids: list[tf.Tensor]) -> tf.Tensor:
    """Concatenates [B_i, T_i] along the batch, padding with 0 to the largest T; a static shape where all are."""
    widths = [value.shape[1] for value in ids]
    width = tf.reduce_max([tf.shape(value)[1] for value in ids]) if None in widths else max(widths)
    padded = []
    for value in ids:
        missing = width - tf.shape(value)[1]
        padded.append(tf.pad(value, [[0, 0], [0, missing]]))
    return tf.concat(padded, axis=0)


def encode_by_length(
    encoder: keras.Model, tokens: dict, groups: int, training: bool, lengths: Sequence[int] = ()
) -> tf.Tensor:
    """Returns `encoder(tokens)`, float32 [B, H], computed in `groups` parts of texts of similar length.

    Our own BERT runs on the packed tokens. Any other tower gets its rows sorted by length, in a few groups, each cut to
    its own longest text. One group is the plain call, on padding too, and so is a tower that attends to padding.

    With `lengths`, increasing, and B and T that are static, every size is known before the first step, as XLA needs it:
    each group runs at the smallest of the lengths, T being the last, that holds its longest text. All are compiled, and
    the texts decide on the device which one runs. There are as many groups as divide B.

    `tokens`: int32 [B, T] each, with `input_mask` 1 on tokens and 0 on padding, which comes last in every row.
    """
    if groups <= 1 or getattr(encoder, "attends_to_padding", False):
        return encoder(tokens, training=training)
    has_lengths = bool(lengths) and None not in tuple(tokens["input_mask"].shape)
    if hasattr(encoder, "packed_states") and not has_lengths:
        return encoder.packed_states(tokens, groups, training)
    counts = tf.reduce_sum(tokens["input_mask"], axis=1)  # [B]
    order = tf.argsort(counts, stable=True)
    if has_lengths:
        sorted_tokens = {name: tf.gather(ids, order) for name, ids in tokens.items()}
        states = _at_known_lengths(encoder, sorted_tokens, tf.gather(counts, order), groups, training, lengths)
    else:
        states = _at_own_lengths(encoder, tokens, counts, order, groups, training)
    return tf.scatter_nd(order[:, tf.newaxis], states, tf.shape(states))  # whose gradient is a gather of known size


def _at_own_lengths(encoder, tokens: dict, counts, order, groups: int, training: bool) -> tf.Tensor:
    """The states of the texts in `order`, each group as wide as its longest."""
    size = tf.shape(order)[0]
    states = []
    for group in range(groups):
        rows = order[size * group // groups : size * (group + 1) // groups]
        longest = _longest(tf.gather(counts, rows))
        texts = {name: tf.gather(ids, rows)[:, :longest] for name, ids in tokens.items()}
        states.append(encoder(texts, training=training))
    return tf.concat(states, axis=0)


def _at_known_lengths(encoder, tokens: dict, counts, groups: int, training: bool, lengths: Sequence[int]) -> tf.Tensor:
    """The states of texts that are sorted by length; a loop over groups, so that each length is compiled once."""
    size, width = tokens["input_mask"].shape
    groups = max(number for number in range(1, groups + 1) if size % number == 0)
    widths = [length for length in lengths if length < width] + [width]
    longest = tf.reduce_max(tf.reshape(counts, [groups, -1]), axis=1)
    chosen = tf.searchsorted(tf.constant(widths[:-1] or [width]), longest)  # the first length that is large enough
    by_group = {name: tf.reshape(ids, [groups, size // groups, width]) for name, ids in tokens.items()}
    current = current_pass()
    seed = None if current is None else current.next_seed()

    def encode_cut(rows, length):
        return encoder({name: ids[:, :length] for name, ids in rows.items()}, training=training)

    def encode(group):
        rows = {name: ids[group] for name, ids in by_group.items()}
        branches = [functools.partial(encode_cut, rows, length) for length in widths]
        if current is None:
            return tf.switch_case(chosen[group], branches)
        with forward_pass(tf.random.experimental.stateless_fold_in(seed, group), repeated=True):
            return tf.switch_case(chosen[group], branches)

    states = tf.map_fn(encode, tf.range(groups), fn_output_signature=tf.float32, parallel_iterations=1)
    return tf.reshape(states, [size, -1])


POOLINGS = ("first", "mean", "first_and_mean", "last", "end")


class OnePosition(keras.layers.Layer):
    """[B, 1, hidden] -> [B, hidden] in the layer's own dtype: the state of the one token that the last layer gives."""

    def call(self, x):
        return x[:, 0]


class EndOfText(keras.layers.Layer):
    """([B, T, hidden], int32 mask [B, T]) -> [B, hidden]: the state of each row's last token, as CLIP takes it."""

    def call(self, inputs):
        x, mask = inputs
        last = tf.maximum(tf.reduce_sum(mask, axis=1), 1) - 1
        return tf.cast(tf.gather(x, last, batch_dims=1), self.compute_dtype)


class FirstAndMean(keras.layers.Layer):
    """([B, T, hidden], int32 mask [B, T]) -> [B, 2 hidden]: the [CLS] state, and the mean of the tokens after it.

    Globetrotter's code compares texts with images by the first, and texts with texts by the other tokens.
    """

    def call(self, inputs):
        x, mask = inputs
        x = tf.cast(x, self.compute_dtype)
        mean = _mean(x[:, 1:], mask[:, 1:])
        return tf.concat([x[:, 0], mean], axis=-1)


class MeanOfTokens(keras.layers.Layer):
    """([B, T, hidden], int32 mask [B, T]) -> [B, hidden]: the mean of the states of all tokens, [CLS] and [SEP] too.

    Sentence-Transformers' mean pooling (Reimers and Gurevych, 2019); zeros for a row without any token.
    """

    def call(self, inputs):
        x, mask = inputs
        return _mean(tf.cast(x, self.compute_dtype), mask)


def _mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """[B, T, hidden], int32 mask [B, T] -> [B, hidden]: the mean of the tokens; zeros without any token."""
    is_token = tf.expand_dims(tf.cast(mask, x.dtype), -1)
    total = tf.reduce_sum(x * is_token, axis=1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(is_token, axis=1))


def packed_mean(x: tf.Tensor, packing: Packing) -> tf.Tensor:
    """`MeanOfTokens` for packed texts: [1, N, hidden] -> [1, B, hidden], shorter texts first."""
    return tf.math.divide_no_nan(*_packed_sums(x, packing))[tf.newaxis]


def packed_first_and_mean(x: tf.Tensor, packing: Packing) -> tf.Tensor:
    """`FirstAndMean` for packed texts: [1, N, hidden] -> [1, B, 2 hidden], shorter texts first."""
    first = packing.first_tokens(x)[0]  # [B, hidden]
    total, count = _packed_sums(x, packing)
    mean = tf.math.divide_no_nan(total - first, count - 1.0)
    return tf.concat([first, mean], axis=-1)[tf.newaxis]


def _packed_sums(x: tf.Tensor, packing: Packing) -> tuple[tf.Tensor, tf.Tensor]:
    """The sum of each text's states, [B, hidden], and its number of tokens, [B, 1], of packed states [1, N, hidden]."""
    texts = tf.size(packing.order)
    is_token = tf.cast(tf.logical_not(packing.is_filler), x.dtype)[:, tf.newaxis]  # [N, 1]
    total = tf.math.unsorted_segment_sum(x[0] * is_token, packing.places, texts)
    return total, tf.math.unsorted_segment_sum(is_token, packing.places, texts)
