"""Neighbourhood constraints: sentences about one image lie close to each other, whatever their languages.

[MULE] Eq. 1 (Kim et al., 2020). It is applied at two layers, to the mean u of the words in the universal language
embedding and to the sentence s in the multimodal space; these functions see one layer. For an anchor sentence and
another language, the positive is the farthest sentence about the same image in that language, the negatives are that
language's sentences about other images; the loss is `triplet.top_violations`.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.triplet import Rows, distances, paired_distances, top_violations


def caption_neighbourhood(
    sentences: tf.Tensor,
    image_ids: tf.Tensor,
    languages: tf.Tensor,
    slots: int,
    *,
    margin: float = 0.05,
    distance: str = "euclidean",
    top: int = 10,
    rows: Rows | None = None,
) -> tf.Tensor:
    """Returns the mean over all (anchor, other language) that have a positive.

    Args:
      sentences: [S, D], L2-normalised; `slots` rows in succession are about one image.
      image_ids: [S] integers, the image of each sentence.
      languages: integers [S]; -1: there is no sentence in this row.
      slots: rows an image.
      margin, distance, top: as in `triplet.top_violations` and `triplet.distances`.
      rows: the anchors to sum over, as (first, count); the result is still divided by the number of all, so parts add
        up to the whole. `None`: all.

    Returns:
      float32 scalar.
    """
    first, count = (0, tf.shape(sentences)[0]) if rows is None else rows
    mine = slice(first, first + count)
    if slots == 1:
        return 0.0 * tf.reduce_sum(tf.cast(sentences[mine], tf.float32))  # no two sentences about one image
    turned = [_roll(languages, slots, shift) for shift in range(1, slots)]
    partners = [_roll(sentences, slots, shift) for shift in range(1, slots)]
    apart = tf.stack([paired_distances(sentences, partner, distance) for partner in partners], axis=1)  # [S, slots - 1]
    chosen = _farthest_of_each_language(apart, tf.stack(turned, axis=1), languages)  # [S, slots - 1]
    between = distances(sentences[mine], sentences, distance)  # [R, S]
    other_image = tf.not_equal(image_ids[mine, None], image_ids[None, :])
    total = tf.zeros([])
    for index, language in enumerate(turned):
        is_negative = tf.logical_and(other_image, tf.equal(language[mine, None], languages[None, :]))
        losses = top_violations(apart[mine, index], between, is_negative, margin, top)
        total += tf.reduce_sum(tf.where(chosen[mine, index], losses, 0.0))
    return total / tf.maximum(tf.reduce_sum(tf.cast(chosen, tf.float32)), 1.0)


def pair_neighbourhood(
    left: tf.Tensor,
    right: tf.Tensor,
    left_languages: tf.Tensor,
    right_languages: tf.Tensor,
    *,
    matches: tuple[tf.Tensor, ...] = (),
    margin: float = 0.05,
    distance: str = "euclidean",
    top: int = 10,
    rows: Rows | None = None,
) -> tf.Tensor:
    """Returns the constraint for sentence pairs that mean the same, the mean over pairs of both directions' sum.

    A pair's negatives are the other pairs' sentences in the language of the positive.

    Args:
      left, right: [P, D], L2-normalised; row i of each is a pair.
      left_languages, right_languages: integers [P].
      matches: [P] integer ids, any number of them; pairs that share an id (the same text) are not negatives.
      margin, distance, top, rows: as in `caption_neighbourhood`.

    Returns:
      float32 scalar.
    """
    total = tf.shape(left)[0]
    first, count = (0, total) if rows is None else rows
    mine = slice(first, first + count)
    other = tf.not_equal(tf.range(first, first + count)[:, None], tf.range(total)[None, :])  # [R, P]
    for ids in matches:
        other = tf.logical_and(other, tf.not_equal(ids[mine, None], ids[None, :]))
    apart = paired_distances(left[mine], right[mine], distance)  # [R]
    losses = tf.zeros([])
    for anchors, candidates, languages in ((left, right, right_languages), (right, left, left_languages)):
        is_negative = tf.logical_and(other, tf.equal(languages[mine, None], languages[None, :]))
        between = distances(anchors[mine], candidates, distance)
        losses += tf.reduce_sum(top_violations(apart, between, is_negative, margin, top))
    return losses / tf.cast(total, tf.float32)


def _roll(values: tf.Tensor, slots: int, shift: int) -> tf.Tensor:
    """Puts into each row what the row `shift` slots on holds, around within one image."""
    shape = tf.shape(values)
    grouped = tf.reshape(values, tf.concat([[-1, slots], shape[1:]], axis=0))
    return tf.reshape(tf.roll(grouped, -shift, axis=1), shape)


def _farthest_of_each_language(apart: tf.Tensor, partner_languages: tf.Tensor, languages: tf.Tensor) -> tf.Tensor:
    """Marks, among the partners of each anchor, the farthest of every language but its own: bool [S, slots - 1]."""
    present = tf.logical_and(partner_languages >= 0, (languages >= 0)[:, None])
    candidate = tf.logical_and(present, tf.not_equal(partner_languages, languages[:, None]))
    index = tf.range(tf.shape(apart)[1])
    farther = tf.logical_or(  # [S, partner, rival]
        apart[:, None, :] > apart[:, :, None],
        tf.logical_and(tf.equal(apart[:, None, :], apart[:, :, None]), index[None, None, :] < index[None, :, None]),
    )
    rival = tf.logical_and(farther, tf.equal(partner_languages[:, None, :], partner_languages[:, :, None]))
    return tf.logical_and(candidate, tf.logical_not(tf.reduce_any(rival, axis=2)))
