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
    """Returns the largest of lengths, int32 [N], at least 1, rounded up to a multiple of `LENGTH_STEP`."""
    longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
    return (longest + LENGTH_STEP - 1) // LENGTH_STEP * LENGTH_STEP


def stack_ids(ids: list[tf.Tensor]) -> tf.Tensor:
    """Returns batches, int32 [B_i, T_i], as a single batch, padded with 0 to the largest T_i; static if all T_i are."""
    widths = [batch.shape[1] for batch in ids]
    if None in widths:
        width = tf.reduce_max([tf.shape(batch)[1] for batch in ids])
    else:
        width = max(widths)
    padded = []
    for batch in ids:
        missing = width - tf.shape(batch)[1]
        padded.append(tf.pad(batch, [[0, 0], [0, missing]]))
    return tf.concat(padded, axis=0)


def encode_by_length(
    encoder: keras.Model, tokens: dict, groups: int, training: bool, lengths: Sequence[int] = ()
) -> tf.Tensor:
    """Returns `encoder(tokens)`, float32 [B, D], computed in groups of texts of similar length, on little padding.

    A tower with `packed_states` gets the packed tokens, unless `lengths` apply. Otherwise a tower gets the texts sorted
    by length, in groups, each cut to its longest text. A tower that attends to padding gets the whole batch.

    Args:
      tokens: {name: int32 [B, T]}, with `input_mask` 1 on tokens and 0 on padding, which comes last in every row.
      groups: how many groups there are; 1: the tower gets the whole batch, padding included.
      lengths: increasing lengths, for XLA, which needs to know every size before the first step. If B and T are static,
        each group is cut to the smallest of these lengths, and T, that holds its longest text. Every length is
        compiled, and the texts decide on the device which length runs. Then at most `groups` groups of equal size run.
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
        states = _encode_at_lengths(encoder, sorted_tokens, tf.gather(counts, order), groups, training, lengths)
    else:
        states = _encode_at_longest(encoder, tokens, counts, order, groups, training)
    return tf.scatter_nd(order[:, tf.newaxis], states, tf.shape(states))  # whose gradient is a gather of known size


def _encode_at_longest(encoder, tokens: dict, counts, order, groups: int, training: bool) -> tf.Tensor:
    """Returns the embeddings of texts, float32 [B, D], in the order that `order` gives, each group at its longest text.

    `counts` are the texts' numbers of tokens, `order` the texts' rows sorted by them, int32 [B] each.
    """
    size = tf.shape(order)[0]
    states = []
    for group in range(groups):
        rows = order[size * group // groups : size * (group + 1) // groups]
        longest = longest_of(tf.gather(counts, rows))
        texts = {name: tf.gather(ids, rows)[:, :longest] for name, ids in tokens.items()}
        states.append(encoder(texts, training=training))
    return tf.concat(states, axis=0)


def _encode_at_lengths(encoder, tokens: dict, counts, groups: int, training: bool, lengths: Sequence[int]) -> tf.Tensor:
    """Returns the embeddings of texts sorted by length, float32 [B, D], each group computed at one of `lengths`.

    A loop goes over the groups, so that each length is compiled once. All groups have the same size: their number is
    the largest up to `groups` that divides B. `counts` are the texts' numbers of tokens, int32 [B].
    """
    size, width = tokens["input_mask"].shape
    groups = max(number for number in range(1, groups + 1) if size % number == 0)
    widths = [length for length in lengths if length < width] + [width]
    longest = tf.reduce_max(tf.reshape(counts, [groups, -1]), axis=1)
    width_index = tf.searchsorted(tf.constant(widths), longest)  # of the first length that is large enough
    by_group = {name: tf.reshape(ids, [groups, size // groups, width]) for name, ids in tokens.items()}
    outer_pass = current_pass()
    if outer_pass is not None:
        seed = outer_pass.next_seed()

    def encode_cut(rows, length):
        cut = {name: ids[:, :length] for name, ids in rows.items()}
        with dense_tables():
            return encoder(cut, training=training)

    def encode_group(group):
        rows = {name: ids[group] for name, ids in by_group.items()}
        branches = [functools.partial(encode_cut, rows, length) for length in widths]
        if outer_pass is None:
            return tf.switch_case(width_index[group], branches)
        # The loop's body is traced once: only the group's number lets the groups' draws differ.
        with forward_pass(tf.random.experimental.stateless_fold_in(seed, group), repeated=True):
            return tf.switch_case(width_index[group], branches)

    states = tf.map_fn(encode_group, tf.range(groups), fn_output_signature=tf.float32, parallel_iterations=1)
    return tf.reshape(states, [size, -1])
