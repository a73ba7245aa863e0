"""The in-batch softmax of ALIGN and MURAL, [MURAL] (Jain et al., 2021) §3.1, Eq. 2.

    L_l2r = -1/N sum_i log( exp((cos(l_i, r_i) - m) / τ) / sum_j exp((cos(l_i, r_j) - m [i = j]) / τ) )

The margin m and the fixed τ of the text-text task follow the bidirectional additive-margin loss the paper cites.
Departures from the paper, both options: label smoothing, and ids that keep true matches out of the negatives (`Pairs`).
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.pairs import Pairs


def contrastive_loss(
    pairs: Pairs, temperature: tf.Tensor | float, *, margin: float = 0.0, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Returns L_l2r + L_r2l, the sum of both directions, a float32 scalar.

    Args:
      pairs: N pairs; with only some queries the result is their part of the whole.
      temperature: scalar > 0 that divides the cosines.
      margin: subtracted from the positive's cosine before the division, 0..2.
      label_smoothing: ε; the target is 1 - ε on the positive plus ε spread evenly over all candidates.
    """
    arguments = dict(margin=margin, label_smoothing=label_smoothing)
    left_to_right = in_batch_softmax(pairs, temperature, **arguments)
    right_to_left = in_batch_softmax(pairs.reversed, temperature, **arguments)
    return left_to_right + right_to_left


def in_batch_softmax(
    pairs: Pairs, temperature: tf.Tensor | float, *, margin: float = 0.0, label_smoothing: float = 0.0
) -> tf.Tensor:
    """Returns L_l2r of Eq. 2, each left row against every candidate on the right, a float32 scalar.

    Arguments are as in `contrastive_loss`.
    """
    margins = margin * tf.cast(pairs.is_positive, tf.float32)  # [R, N]
    logits = (pairs.cosines - margins) / temperature
    logits = tf.where(pairs.is_candidate, logits, float("-inf"))
    log_normaliser = tf.reduce_logsumexp(logits, axis=1)  # [R]
    losses = log_normaliser - pairs.of_partner(logits)
    if label_smoothing:
        logit_sum = tf.reduce_sum(tf.where(pairs.is_candidate, logits, 0.0), axis=1)  # [R]
        candidate_count = tf.reduce_sum(tf.cast(pairs.is_candidate, tf.float32), axis=1)
        even_losses = log_normaliser - logit_sum / candidate_count  # of a target spread over all candidates
        losses = (1.0 - label_smoothing) * losses + label_smoothing * even_losses
    return pairs.mean(losses)
