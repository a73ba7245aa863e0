"""The in-batch softmax of ALIGN and MURAL, [MURAL] (Jain et al., 2021) §3.1, Eq. 2.

    L_l2r = -1/N sum_i log( exp((cos(l_i, r_i) - m) / τ) / sum_j exp((cos(l_i, r_j) - m [i = j]) / τ) )

The margin m and the fixed τ of the text-text task follow the bidirectional additive-margin loss the paper cites.
Departures from the paper, both options: label smoothing, and a mask that keeps true matches out of the negatives.
"""

from __future__ import annotations

import tensorflow as tf

ROUNDING = 1e-6  # by which two computations of one cosine may differ
Rows = tuple  # (first row, number of rows): the queries one call answers for
Matches = tuple  # of integer ids: [N] for both sides of a pair, or a tuple of two [N], the left side's and the right's


def contrastive_loss(
    left: tf.Tensor,
    right: tf.Tensor,
    temperature: tf.Tensor | float,
    *,
    margin: float = 0.0,
    label_smoothing: float = 0.0,
    matches: Matches = (),
    rows: Rows | None = None,
) -> tf.Tensor:
    """Returns L_l2r + L_r2l, the sum of both directions.

    Args:
      left, right: [N, D], any float type, L2-normalised; row i of each is a pair.
      temperature: scalar > 0 that divides the cosines.
      margin: subtracted from the positive's cosine before the division, 0..2.
      label_smoothing: ε; the target is 1 - ε on the positive plus ε spread evenly over all candidates.
      matches: any number of integer ids. Of ids [N], two pairs that share one (the same image, the same text) are not
        each other's negatives. Of two ids (left [N], right [N]), l_i and r_j are not each other's negatives where
        left i and right j are equal (a text that stands left in one pair and right in another).
      rows: the queries to sum over, as (first, count); the result is still divided by N, so parts add up to the
        whole. `None`: all.

    Returns:
      float32 scalar.
    """
    arguments = dict(margin=margin, label_smoothing=label_smoothing, rows=rows)
    left_to_right = in_batch_softmax(left, right, temperature, matches=matches, **arguments)
    right_to_left = in_batch_softmax(right, left, temperature, matches=mirrored(matches), **arguments)
    return left_to_right + right_to_left


def in_batch_softmax(
    queries: tf.Tensor,
    candidates: tf.Tensor,
    temperature: tf.Tensor | float,
    *,
    margin: float = 0.0,
    label_smoothing: float = 0.0,
    matches: Matches = (),
    rows: Rows | None = None,
) -> tf.Tensor:
    """Returns one direction of Eq. 2: query i against every candidate. Arguments as in `contrastive_loss`.

    Two ids in `matches` are the queries' and the candidates'.
    """
    total = tf.shape(candidates)[0]
    first, count = (0, total) if rows is None else rows
    cosines = tf.matmul(  # [R, N]; float32 for any dtype of the towers
        tf.cast(queries[first : first + count], tf.float32), tf.cast(candidates, tf.float32), transpose_b=True
    )
    is_positive = tf.equal(tf.range(first, first + count)[:, None], tf.range(total)[None, :])  # [R, N]
    logits = (cosines - margin * tf.cast(is_positive, tf.float32)) / temperature

    is_candidate = tf.logical_or(is_positive, tf.logical_not(share_id(matches, is_positive, (first, count))))
    logits = tf.where(is_candidate, logits, float("-inf"))

    log_normaliser = tf.reduce_logsumexp(logits, axis=1)  # [R]
    positive = tf.reduce_sum(tf.where(is_positive, logits, 0.0), axis=1)
    losses = log_normaliser - positive
    if label_smoothing:
        mean_logit = tf.math.divide(
            tf.reduce_sum(tf.where(is_candidate, logits, 0.0), axis=1),
            tf.reduce_sum(tf.cast(is_candidate, tf.float32), axis=1),
        )
        losses = (1.0 - label_smoothing) * losses + label_smoothing * (log_normaliser - mean_logit)
    return tf.reduce_sum(losses) / tf.cast(total, tf.float32)


def share_id(matches: Matches, like: tf.Tensor, rows: Rows) -> tf.Tensor:
    """Tells which queries and candidates share an id: bool [R, N], the shape of `like`, for queries `rows`."""
    first, count = rows
    shared = tf.zeros_like(like, tf.bool)
    for queries, candidates in map(both_sides, matches):
        shared = tf.logical_or(shared, tf.equal(queries[first : first + count, None], candidates[None, :]))
    return shared


def mirrored(matches: Matches) -> Matches:
    """Returns the ids of the other direction, from right to left."""
    return tuple(both_sides(ids)[::-1] for ids in matches)


def both_sides(ids) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids of the left and of the right side of an element of `Matches`."""
    return ids if isinstance(ids, tuple) else (ids, ids)


def in_batch_recall(left: tf.Tensor, right: tf.Tensor, rows: Rows | None = None) -> tf.Tensor:
    """Returns the share of queries whose own partner no candidate beats: R@1 within the batch, mean of both directions.

    Arguments as in `contrastive_loss`; parts add up to the whole too. Equal candidates are hits, not misses: the same
    text twice in a batch is not an error.
    """
    total = tf.shape(right)[0]
    first, count = (0, total) if rows is None else rows
    left, right = (tf.stop_gradient(tf.cast(side, tf.float32)) for side in (left, right))
    own = tf.reduce_sum(left * right, axis=1)[first : first + count]  # [R]
    hits = 0.0
    for queries, candidates in ((left, right), (right, left)):
        best = tf.reduce_max(tf.matmul(queries[first : first + count], candidates, transpose_b=True), axis=1)
        hits += tf.reduce_sum(tf.cast(own >= best - ROUNDING, tf.float32))
    return hits / (2.0 * tf.cast(total, tf.float32))
