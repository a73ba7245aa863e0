"""The losses of [MULE] (Kim et al., 2020): triplets over the most violated constraints, and a language classifier.

Image-sentence matching (Eq. 3), after the two-branch network of Wang et al. (2019), which is also EmbN's, with the
weights of its released code. A triplet (anchor, positive, negative) is violated by

    max(0, margin + d(anchor, positive) - d(anchor, negative))

and an anchor's loss is the mean over its K largest violations, zeros included (fewer if it has fewer negatives).

Neighbourhood constraints (Eq. 1): sentences about one image lie close to each other in all languages. They hold at two
layers, for the mean u of the words in the universal language embedding and for the sentence s in the multimodal space;
these functions see one layer. For an anchor sentence and another language, the positive is the farthest sentence about
the same image in that language, the negatives are that language's sentences about other images. (The
paper enumerates all positives of the minibatch.)

The language classifier (Eq. 2 and 4), after Ganin and Lempitsky (2014), makes embeddings that do not show their
language: it minimises the cross-entropy of the language, and the layers below maximise it. One backward pass does both,
because the gradient changes its sign between the two.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.pairs import Pairs, Rows

DISTANCES = ("euclidean", "cosine")
SMALLEST_SQUARE = 1e-8  # of a Euclidean distance: the square root has no gradient at 0


def distances(anchors: tf.Tensor, candidates: tf.Tensor, distance: str = "euclidean") -> tf.Tensor:
    """Returns the distance of every anchor, [R, D], to every candidate, [C, D], both L2-normalised: float32 [R, C].

    "euclidean" (the released code) is sqrt(2 - 2 cos), in 0..2; "cosine" (the paper) is 1 - cos, in 0..2. Raises
    `ValueError` for another `distance`.
    """
    anchors = tf.cast(anchors, tf.float32)
    candidates = tf.cast(candidates, tf.float32)
    cosines = tf.matmul(anchors, candidates, transpose_b=True)
    return _distances_by_cosines(cosines, distance)


def paired_distances(left: tf.Tensor, right: tf.Tensor, distance: str = "euclidean") -> tf.Tensor:
    """Returns the distance of each row of `left` to the same row of `right`, [R, D] both: float32 [R]."""
    left = tf.cast(left, tf.float32)
    right = tf.cast(right, tf.float32)
    cosines = tf.reduce_sum(left * right, axis=-1)
    return _distances_by_cosines(cosines, distance)


def _distances_by_cosines(cosines: tf.Tensor, distance: str) -> tf.Tensor:
    """Returns the distances of L2-normalised vectors with these cosines, float32, in the shape of `cosines`."""
    if distance == "cosine":
        return 1.0 - cosines
    if distance == "euclidean":
        return tf.sqrt(tf.maximum(2.0 - 2.0 * cosines, SMALLEST_SQUARE))
    raise ValueError(f"Unknown distance {distance!r}: expected one of {', '.join(DISTANCES)}.")


def top_violations(
    positive: tf.Tensor, negative: tf.Tensor, is_negative: tf.Tensor, margin: float, top: int
) -> tf.Tensor:
    """Returns each anchor's loss, the mean of its `top` largest violations: float32 [R].

    Args:
      positive: float32 [R], distance of each anchor to its positive.
      negative: float32 [R, C], distances to the candidates.
      is_negative: bool [R, C]; others do not count. An anchor without negatives has loss 0.
      margin: in the unit of the distance.
      top: K; at most as many as an anchor has negatives are averaged.
    """
    violations = tf.nn.relu(margin + positive[:, None] - negative)  # [R, C]
    violations = tf.where(is_negative, violations, 0.0)  # no violation is smaller, so others add nothing
    candidate_count = negative.shape[1]
    if candidate_count is None:
        worst_count = tf.minimum(top, tf.shape(negative)[1])
    else:
        worst_count = min(top, candidate_count)  # TPUs need a K that is known when the step is compiled
    worst = tf.math.top_k(violations, worst_count, sorted=False).values  # [R, K]
    negative_count = tf.reduce_sum(tf.cast(is_negative, tf.float32), axis=1)  # [R]
    averaged_count = tf.minimum(float(top), negative_count)
    return tf.reduce_sum(worst, axis=1) / tf.maximum(averaged_count, 1.0)


def image_sentence_loss(
    images: tf.Tensor,
    sentences: Rows | tf.Tensor,
    owners: tf.Tensor,
    image_ids: tf.Tensor,
    languages: tf.Tensor,
    *,
    margin: float = 0.05,
    distance: str = "euclidean",
    top: int = 10,
    factors: tuple[float, float] = (1.5, 0.05),
) -> tf.Tensor:
    """Returns the matching loss of images and sentences, the mean over all sentences s, whose image is v, of

        factors[0] · [s, v, other images] + [v, s, other images' sentences]
        + factors[1] · [s, the farthest other sentence of v, other images' sentences]

    where [anchor, positive, negatives] is `top_violations` and all sentences in the brackets have s's language. The
    factors are the released code's; (1, 0) gives the paper's Eq. 3. Departure: the mean is over all sentences, so a
    language counts as often as it occurs.

    Args:
      images: [I, D], L2-normalised.
      sentences: [S, D], L2-normalised; with `Rows` of a part the result is their part of the whole.
      owners: int32 [S], the row of each sentence's image.
      image_ids: [I] integers; images of one id are not each other's negatives.
      languages: integers [S]; -1: this row has no sentence.
      margin, distance, top: as in `top_violations` and `distances`.
      factors: weights of the first and the last bracket.

    Returns:
      float32 scalar.
    """
    rows = Rows.of(sentences)
    anchors = rows.own  # [R, D]
    own_languages = rows.own_of(languages)  # [R]
    own_images = tf.gather(images, rows.own_of(owners))  # [R, D], each anchor's image
    image_id = tf.gather(image_ids, owners)  # [S], of each sentence's image
    same_image = rows.share_id(image_id, image_id)  # [R, S]
    same_language = rows.share_id(languages, languages) & (own_languages >= 0)[:, None]  # [R, S]
    is_negative = same_language & ~same_image  # [R, S]
    sentence_factor, structure_factor = factors

    to_own_image = paired_distances(anchors, own_images, distance)  # [R]
    to_images = distances(anchors, images, distance)  # [R, I]
    is_other_image = ~rows.share_id(image_id, image_ids)  # [R, I]
    losses = sentence_factor * top_violations(to_own_image, to_images, is_other_image, margin, top)
    images_to_sentences = distances(own_images, rows.values, distance)  # [R, S]
    losses += top_violations(to_own_image, images_to_sentences, is_negative, margin, top)
    if structure_factor:
        is_itself = rows.is_own_row(tf.range(rows.total))  # [R, S]
        is_positive = same_language & same_image & ~is_itself
        between = distances(anchors, rows.values, distance)  # [R, S]
        losses += structure_factor * _structure_losses(between, is_positive, is_negative, margin, top)
    losses = tf.where(own_languages >= 0, losses, 0.0)
    return _mean_of_present(losses, languages >= 0)


def _structure_losses(between, is_positive, is_negative, margin: float, top: int) -> tf.Tensor:
    """Returns the losses of [sentence, its farthest positive, its negatives], float32 [R], 0 without a positive.

    `between` holds the distances of sentences, float32 [R, S]; the two masks are bool [R, S].
    """
    farthest = tf.reduce_max(tf.where(is_positive, between, 0.0), axis=1)  # [R]
    losses = top_violations(farthest, between, is_negative, margin, top)  # [R]
    has_positive = tf.reduce_any(is_positive, axis=1)  # [R]
    return tf.where(has_positive, losses, 0.0)


def caption_neighbourhood(
    sentences: Rows | tf.Tensor,
    image_ids: tf.Tensor,
    languages: tf.Tensor,
    slots: int,
    *,
    margin: float = 0.05,
    distance: str = "euclidean",
    top: int = 10,
) -> tf.Tensor:
    """Returns the neighbourhood constraints (Eq. 1), a float32 scalar: the mean over anchors and other languages.

    An anchor and a language count where the anchor's image has a sentence in this language, the positive.

    Args:
      sentences: [S, D], L2-normalised; `slots` rows in succession are about one image. With `Rows` of a part the
        result is their part of the whole.
      image_ids: [S] integers, the image of each sentence.
      languages: integers [S]; -1: this row has no sentence.
      slots: rows for each image.
      margin, distance, top: as in `top_violations` and `distances`.
    """
    rows = Rows.of(sentences)
    if slots == 1:
        return 0.0 * tf.reduce_sum(tf.cast(rows.own, tf.float32))  # 0 with a gradient: no two sentences about one image
    # A sentence's partners are the other sentences about its image: 1, 2, … rows after it, cyclically.
    partner_languages = []  # [S] each
    partner_distances = []  # [S] each
    for shift in range(1, slots):
        partner_languages.append(_roll(languages, slots, shift))
        partners = _roll(rows.values, slots, shift)  # [S, D]
        partner_distances.append(paired_distances(rows.values, partners, distance))
    to_partners = tf.stack(partner_distances, axis=1)  # [S, slots - 1]
    is_positive = _farthest_of_each_language(to_partners, tf.stack(partner_languages, axis=1), languages)
    own_to_partners = rows.own_of(to_partners)  # [R, slots - 1]
    own_is_positive = rows.own_of(is_positive)  # [R, slots - 1]
    between = distances(rows.own, rows.values, distance)  # [R, S]
    is_other_image = ~rows.share_id(image_ids, image_ids)  # [R, S]
    total = tf.zeros([])
    for column, partner_language in enumerate(partner_languages):
        is_negative = is_other_image & rows.share_id(partner_language, languages)  # [R, S]
        losses = top_violations(own_to_partners[:, column], between, is_negative, margin, top)  # [R]
        total += tf.reduce_sum(tf.where(own_is_positive[:, column], losses, 0.0))
    positive_count = tf.reduce_sum(tf.cast(is_positive, tf.float32))
    return total / tf.maximum(positive_count, 1.0)


def pair_neighbourhood(
    pairs: Pairs,
    left_languages: tf.Tensor,
    right_languages: tf.Tensor,
    *,
    margin: float = 0.05,
    distance: str = "euclidean",
    top: int = 10,
) -> tf.Tensor:
    """Returns the neighbourhood constraint for pairs of sentences that mean the same, a float32 scalar.

    It is the mean over pairs of the sum of both directions. An anchor's positive is the other sentence of its pair; its
    negatives are the other pairs' sentences in the language of the positive.

    Args:
      pairs: P pairs; with only some queries the result is their part of the whole.
      left_languages, right_languages: integers [P].
      margin, distance, top: as in `top_violations` and `distances`.
    """
    to_positive = _distances_by_cosines(pairs.own_cosines, distance)  # [R]
    total = tf.zeros([])
    for direction, languages in ((pairs, right_languages), (pairs.reversed, left_languages)):
        same_language = direction.left.share_id(languages, languages)  # [R, P]
        is_negative = direction.is_negative & same_language
        between = _distances_by_cosines(direction.cosines, distance)  # [R, P]
        losses = top_violations(to_positive, between, is_negative, margin, top)  # [R]
        total += tf.reduce_sum(losses)
    return total / tf.cast(pairs.total, tf.float32)


def _roll(values: tf.Tensor, slots: int, shift: int) -> tf.Tensor:
    """Returns [S, …] with each row replaced by the row `shift` slots after it, cyclically within its image."""
    shape = tf.shape(values)
    grouped = tf.reshape(values, tf.concat([[-1, slots], shape[1:]], axis=0))  # [images, slots, …]
    return tf.reshape(tf.roll(grouped, -shift, axis=1), shape)


def _farthest_of_each_language(to_partners: tf.Tensor, partner_languages: tf.Tensor, languages: tf.Tensor) -> tf.Tensor:
    """Returns bool [S, P]: whether a partner is the farthest of its language, which is not the anchor's language.

    Where partners are equally far the first counts as the farthest, so that every language has exactly one.

    Args:
      to_partners: float32 [S, P], distance of each anchor to its P = slots - 1 partners.
      partner_languages: integers [S, P].
      languages: integers [S].
    """
    is_present = (partner_languages >= 0) & (languages >= 0)[:, None]  # [S, P]
    is_candidate = is_present & tf.not_equal(partner_languages, languages[:, None])
    # Each partner is compared with each of its rivals, the partners again: [S, partner, rival].
    index = tf.range(tf.shape(to_partners)[1])  # [P]
    rival_comes_first = index[None, None, :] < index[None, :, None]  # [1, P, P]
    to_partner = to_partners[:, :, None]
    to_rival = to_partners[:, None, :]
    rival_wins = (to_rival > to_partner) | (tf.equal(to_rival, to_partner) & rival_comes_first)
    same_language = tf.equal(partner_languages[:, None, :], partner_languages[:, :, None])
    is_beaten = tf.reduce_any(rival_wins & same_language, axis=2)  # [S, P]
    return is_candidate & ~is_beaten


@tf.custom_gradient
def reverse_gradient(x: tf.Tensor) -> tf.Tensor:
    """Returns x; its gradient is the gradient that arrives, with the other sign (Ganin and Lempitsky, 2014)."""
    return tf.identity(x), lambda upstream: -upstream


def language_loss(logits: Rows | tf.Tensor, languages: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross-entropy of the languages of the sentences that are present, a float32 scalar.

    Args:
      logits: [S, L], any float type; with `Rows` of a part the result is their part of the whole.
      languages: integers [S], 0 to L - 1; -1: this row has no sentence.
    """
    logits = Rows.of(logits)
    own_languages = logits.own_of(languages)
    labels = tf.maximum(own_languages, 0)  # a row without a sentence gets any label: its loss is left out below
    own_logits = tf.cast(logits.own, tf.float32)  # [R, L]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, own_logits)
    losses = tf.where(own_languages >= 0, losses, 0.0)
    return _mean_of_present(losses, languages >= 0)


def _mean_of_present(losses: tf.Tensor, is_present: tf.Tensor) -> tf.Tensor:
    """Returns the sum of `losses`, [R], divided by the number of true values in `is_present`, bool [S], at least 1."""
    count = tf.reduce_sum(tf.cast(is_present, tf.float32))
    return tf.reduce_sum(losses) / tf.maximum(count, 1.0)
