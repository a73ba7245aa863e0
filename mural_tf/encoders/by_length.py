"""Texts through a text tower in groups of similar length, so that little is computed on padding.

A tower that packs texts (`packing.py`) does it by itself. XLA and TPUs need fixed shapes: there each group runs at one
of a few lengths that are known before the first step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from mural_tf.backend import keras
from mural_tf.encoders.layers import current_pass, dense_tables, forward_pass

LENGTH_STEP = 2  # groups' lengths are rounded up to multiples of it: compiled loops are compiled again for every shape


def longest_of(lengths: tf.Tensor) -> tf.Tensor:
    """Returns the largest length, rounded up to a multiple of `LENGTH_STEP`; without texts, the length 1 rounded up."""
    longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
    return (longest + LENGTH_STEP - 1) // LENGTH_STEP * LENGTH_STEP


def stack_ids(ids: list[tf.Tensor]) -> tf.Tensor:
    """Returns all [B_i, T_i] along the batch, padded with 0 to the largest T; its T is static if all T_i are."""
    widths = [value.shape[1] for value in ids]
    if None in widths:
        width = tf.reduce_max([tf.shape(value)[1] for value in ids])
    else:
        width = max(widths)
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
    its own longest text. With one group, or a tower that attends to padding, it is the plain call, on padding too.

    With `lengths`, increasing, and B and T that are static, every size is known before the first step, as XLA needs it:
    each group runs at the smallest of the lengths, T being the last, that holds its longest text. All are compiled, and
    the texts decide on the device which one runs. There are as many groups as divide B.

    Args:
      tokens: {name: int32 [B, T]}, with `input_mask` 1 on tokens and 0 on padding, which comes last in every row.
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
    """Returns the states of the texts in `order`, [B, H], each group computed as wide as its longest text."""
    size = tf.shape(order)[0]
    states = []
    for group in range(groups):
        rows = order[size * group // groups : size * (group + 1) // groups]
        longest = longest_of(tf.gather(counts, rows))
        texts = {name: tf.gather(ids, rows)[:, :longest] for name, ids in tokens.items()}
        states.append(encoder(texts, training=training))
    return tf.concat(states, axis=0)


def _at_known_lengths(encoder, tokens: dict, counts, groups: int, training: bool, lengths: Sequence[int]) -> tf.Tensor:
    """Returns the states of texts that are sorted by length, [B, H]; `counts`, [B], are their numbers of tokens.

    It loops over groups, so that each length is compiled once. A graph has one number of groups: the largest that
    divides the texts evenly.
    """
    size, width = tokens["input_mask"].shape
    groups = max(number for number in range(1, groups + 1) if size % number == 0)
    widths = [length for length in lengths if length < width] + [width]
    longest = tf.reduce_max(tf.reshape(counts, [groups, -1]), axis=1)
    width_index = tf.searchsorted(tf.constant(widths), longest)  # of the first length that is large enough
    by_group = {name: tf.reshape(ids, [groups, size // groups, width]) for name, ids in tokens.items()}
    current = current_pass()
    if current is not None:
        seed = current.next_seed()

    def encode_cut(rows, length):
        cut = {name: ids[:, :length] for name, ids in rows.items()}
        with dense_tables():
            return encoder(cut, training=training)

    def encode(group):
        rows = {name: ids[group] for name, ids in by_group.items()}
        branches = [functools.partial(encode_cut, rows, length) for length in widths]
        if current is None:
            return tf.switch_case(width_index[group], branches)
        with forward_pass(tf.random.experimental.stateless_fold_in(seed, group), repeated=True):
            return tf.switch_case(width_index[group], branches)

    states = tf.map_fn(encode, tf.range(groups), fn_output_signature=tf.float32, parallel_iterations=1)
    return tf.reshape(states, [size, -1])
