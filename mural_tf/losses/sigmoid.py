"""The pairwise sigmoid loss of SigLIP (Zhai et al., 2023, "Sigmoid Loss for Language Image Pre-Training"), §3.2.

    L = -1/N sum_i sum_j log sigmoid( z_ij (cos(l_i, r_j) / τ + b) ),   z_ij = 1 if i = j, else -1

Every pair of a left and a right is a separate yes-or-no question, so nothing is normalised over a row. The sum is
divided by N, the number of pairs, and not by the N² questions, as in the paper's Algorithm 1, where 1/τ is t = exp(t').

The matrix of all questions is never in memory as a whole: the loss takes it by blocks of columns, and its gradient
computes each block again. A replica with R rows holds R x `block` numbers. The paper (§3.3) has the same blocks, but
sends each replica's texts around; here all replicas have all embeddings already, as for every method.

Departures from the paper, an option: pairs that share an id (the same image, the same text) are not negatives; they
drop out of the sum, which is still divided by N.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from mural_tf.losses.pairs import Pairs, count_rows

BLOCK = 1_024  # columns


def sigmoid_loss(
    pairs: Pairs, temperature: tf.Tensor | float, bias: tf.Tensor | float, *, block: int = BLOCK
) -> tf.Tensor:
    """Returns L, a float32 scalar, which has first derivatives only.

    Args:
      pairs: N pairs; with only some queries the result is their part of the whole.
      temperature: scalar τ > 0 that divides the cosines.
      bias: scalar b, added to every cosine after the division.
      block: columns that are compared at a time.
    """
    left = pairs.left
    right = pairs.right.values
    total = count_rows(right)
    width = min(block, total) if isinstance(total, int) else tf.minimum(block, total)
    blocks = _as_blocks(tf.cast(right, tf.float32), width)  # [K, C, D]
    ids = [(left_ids, _as_blocks(right_ids, width)) for left_ids, right_ids in pairs.same]  # [N] and [K, C] each

    def block_loss(index, queries, candidates, scale, bias) -> tf.Tensor:
        """Returns the summed loss of the queries with the candidates of one block, a scalar."""
        logits = tf.matmul(queries, candidates, transpose_b=True) * scale + bias  # [R, C]
        columns = index * width + tf.range(width)  # [C], their numbers among all N
        is_positive = left.is_own_row(columns)  # [R, C]
        shares_id = tf.zeros_like(is_positive)
        for left_ids, right_blocks in ids:
            shares_id |= left.share_id(left_ids, right_blocks[index])
        # Columns from N on fill the last block up.
        is_counted = (is_positive | ~shares_id) & (columns < total)[None, :]
        losses = tf.nn.softplus(tf.where(is_positive, -logits, logits))  # -log sigmoid(z logit)
        return tf.reduce_sum(tf.where(is_counted, losses, 0.0))

    scale = 1.0 / tf.convert_to_tensor(temperature, tf.float32)
    loss = _sum_of_blocks(block_loss)(pairs.queries, blocks, scale, tf.convert_to_tensor(bias, tf.float32))
    return loss / tf.cast(total, tf.float32)


def _as_blocks(values: tf.Tensor, width) -> tf.Tensor:
    """Returns the rows of [N, …] in K blocks of `width` rows, [K, width, …], the last block filled up with zeros."""
    missing = -count_rows(values) % width  # rows up to the next multiple of `width`
    paddings = [[0, missing]] + [[0, 0]] * (values.shape.rank - 1)
    return tf.reshape(tf.pad(values, paddings), [-1, width, *values.shape[1:]])


def _sum_of_blocks(block_loss: Callable) -> Callable:
    """Returns the function (queries [R, D], blocks [K, C, D], scale, bias) → the sum of `block_loss` over the K blocks.

    Its gradient computes each block again, instead of keeping all logits.

    Args:
      block_loss: (number of the block, queries, its candidates [C, D], scale, bias) → a scalar.
    """

    @tf.custom_gradient
    def sum_of_blocks(queries, blocks, scale, bias):
        block_count = count_rows(blocks)

        def add_loss(index, total):
            return (total + block_loss(index, queries, blocks[index], scale, bias),)

        def add_gradients(index, to_queries, to_blocks, to_scale, to_bias):
            inputs = queries, blocks[index], scale, bias
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                loss = block_loss(index, *inputs)
            query_part, block_part, scale_part, bias_part = tape.gradient(loss, inputs)
            to_blocks = to_blocks.write(index, block_part)
            return to_queries + query_part, to_blocks, to_scale + scale_part, to_bias + bias_part

        def gradient(upstream):
            array = tf.TensorArray(tf.float32, size=block_count, element_shape=blocks.shape[1:])
            zeros = (tf.zeros_like(queries), array, tf.zeros([]), tf.zeros([]))
            to_queries, to_blocks, to_scale, to_bias = _loop_over_blocks(block_count, add_gradients, zeros)
            return upstream * to_queries, upstream * to_blocks.stack(), upstream * to_scale, upstream * to_bias

        (total,) = _loop_over_blocks(block_count, add_loss, (tf.zeros([]),))
        return total, gradient

    return sum_of_blocks


def _loop_over_blocks(count, step: Callable, state: tuple) -> tuple:
    """Returns the state, a tuple, after `state = step(index, *state)` for each of `count` blocks, one at a time."""

    def is_left(index, *_):
        return index < count

    def advance(index, *current):
        return index + 1, *step(index, *current)

    _, *final = tf.while_loop(is_left, advance, (0, *state), parallel_iterations=1, maximum_iterations=count)
    return tuple(final)
