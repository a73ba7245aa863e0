"""NT-Xent, the loss of SimCLR (Chen et al., 2020) and Globetrotter's L_v ([P] = Surís et al., 2022, Eq. 3).

The 2N views of N images are all candidates; a view's positive is the other view of its image, and a view is not
compared with itself. The same loss over sentences that are translations of each other is Globetrotter's L_t with
known pairs, its supervised baseline.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import Rows

ANCHORS = ("both", "first")


def nt_xent(
    first: tf.Tensor,
    second: tf.Tensor,
    temperature: tf.Tensor | float,
    *,
    anchors: str = "both",
    matches: tuple[tf.Tensor, ...] = (),
    rows: Rows | None = None,
) -> tf.Tensor:
    """Returns the mean over anchors a of -log( exp(cos(a, a')/τ) / sum_{b ≠ a} exp(cos(a, b)/τ) ).

    Args:
      first, second: [N, D], any float type, L2-normalised; row i of each is a view of image i.
      temperature: τ > 0.
      anchors: "both": each of the 2N views is an anchor ([P] Eq. 3); "first": those of `first` (the authors' code).
      matches: integer ids [N], any number of them; images that share an id are not each other's negatives.
      rows: the images to sum over, as (first row, count); the result is still divided by the number of all anchors.

    Returns:
      float32 scalar.
    """
    if anchors not in ANCHORS:
        raise ValueError(f"anchors={anchors!r}: expected one of {', '.join(ANCHORS)}.")
    views = [tf.cast(view, tf.float32) for view in (first, second)]
    total = tf.shape(first)[0]
    begin, count = (0, total) if rows is None else rows
    sides = (0, 1) if anchors == "both" else (0,)
    loss = tf.add_n([_one_side(views, side, temperature, matches, begin, count) for side in sides])
    return loss / tf.cast(len(sides) * total, tf.float32)


def _one_side(views, side: int, temperature, matches, begin, count) -> tf.Tensor:
    """Sum over the anchors of one side."""
    anchors = views[side][begin : begin + count]  # [R, D]
    total = tf.shape(views[0])[0]
    own = tf.equal(tf.range(begin, begin + count)[:, None], tf.range(total)[None, :])  # [R, N]
    same = own
    for ids in matches:
        same = tf.logical_or(same, tf.equal(ids[begin : begin + count, None], ids[None, :]))
    to_own_side = tf.where(same, float("-inf"), tf.matmul(anchors, views[side], transpose_b=True) / temperature)
    to_other_side = tf.matmul(anchors, views[1 - side], transpose_b=True) / temperature
    positive = tf.reduce_sum(tf.where(own, to_other_side, 0.0), axis=1)
    to_other_side = tf.where(tf.logical_and(same, tf.logical_not(own)), float("-inf"), to_other_side)
    normaliser = tf.reduce_logsumexp(tf.concat([to_own_side, to_other_side], axis=1), axis=1)
    return tf.reduce_sum(normaliser - positive)
