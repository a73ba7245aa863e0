"""The losses of [Globetrotter] (Surís et al., 2022): L_v, L_t and L_c. (L_x is `contrastive_loss`.)

L_v (Eq. 3) is NT-Xent, the loss of SimCLR (Chen et al., 2020). The 2N views of N images are all candidates; a view's
positive is the other view of its image, and a view is not compared with itself. The same loss over sentences that are
translations of each other is L_t with known pairs, the supervised baseline.

    L_v = mean over anchors a of -log( exp(cos(a, a')/τ) / sum_{b ≠ a} exp(cos(a, b)/τ) )

L_t (§3.2, Eq. 1 and 2) is transitive: two sentences belong together to the degree that each fits its image and the two
images are similar. No gradient flows through α, so that L_t trains the text side only.

    α_ij = f([α^x_ii α^v_ij α^x_jj]^(1/3)),  f(x) = max(0, x - m) / (1 - m)
    L_t  = - sum_{i ≠ j} α_ij log( exp(β_ij/τ) / sum_{k ≠ i} exp(β_ik/τ) ) / sum_{i ≠ j} α_ij

| `definition` | α_ij before f |
|---|---|
| "paper" | the cube root above, each similarity mapped to [0, 1] by (1 + cos) / 2 (B.1) |
| "code"  | α^v_ij times α^x_ii α^x_jj, rescaled over the whole matrix to [0.75, 1.25], divided by the largest (i ≠ j) |

The paper's map makes nearly every pair a positive; the code's division always makes one, and would reverse the signs if
every similarity is negative: we have no positives then. Where Σα = 0, L_t = 0. The paper does not divide by Σα; the
code does. Undivided, the sum is taken per sentence, as all of the paper's losses are sums over sentences. β is the
cosine of sentence embeddings, as in the paper; the code compares the tokens of sentences.

L_c is the cloze task of BERT (Devlin et al., 2019, §3.1): predict the pieces that were masked. The loss is a mean over
all places of the global batch. So that it can be taken over replicas and chunks, each text comes as two numbers, its
summed cross-entropy and how many places it has.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.pairs import Pairs, Rows

DEFINITIONS = ("code", "paper")
RESCALED = (0.75, 1.25)  # the authors' code


def nt_xent(pairs: Pairs, temperature: tf.Tensor | float) -> tf.Tensor:
    """Returns L_v, NT-Xent of N pairs of views, a float32 scalar.

    Args:
      pairs: the first and second views of N images; with only some queries the result is their part of the whole.
        Images that share an id are not each other's negatives.
      temperature: τ > 0.
    """
    left_loss = _sum_over_anchors(pairs, temperature)
    right_loss = _sum_over_anchors(pairs.reversed, temperature)
    return (left_loss + right_loss) / tf.cast(2 * pairs.total, tf.float32)


def _sum_over_anchors(pairs: Pairs, temperature) -> tf.Tensor:
    """Returns the summed loss of the left side's queries as anchors, against both sides, a scalar."""
    to_own_side = pairs.cosines_to(pairs.left) / temperature  # [R, N]
    to_own_side = tf.where(pairs.within_left.is_negative, to_own_side, float("-inf"))
    to_other_side = pairs.cosines / temperature  # [R, N]
    positive = pairs.of_partner(to_other_side)  # [R]
    to_other_side = tf.where(pairs.is_candidate, to_other_side, float("-inf"))
    logits = tf.concat([to_own_side, to_other_side], axis=1)  # [R, 2N]
    log_normaliser = tf.reduce_logsumexp(logits, axis=1)
    return tf.reduce_sum(log_normaliser - positive)


def transitive_weights(
    images: tf.Tensor, captions: tf.Tensor, definition: str = "code", margin: float = 0.4
) -> tf.Tensor:
    """Returns α, float32 [N, N], symmetric, in [0, 1], 0 on the diagonal, without gradient.

    Args:
      images, captions: [N, D], any float type, L2-normalised; row i of each is a pair.
      definition: "code" or "paper", see the table above.
      margin: m, 0 <= m < 1.

    Raises:
      ValueError: another definition.
    """
    if definition not in DEFINITIONS:
        raise ValueError(f"definition={definition!r}: expected one of {', '.join(DEFINITIONS)}.")
    images = tf.stop_gradient(tf.cast(images, tf.float32))
    captions = tf.stop_gradient(tf.cast(captions, tf.float32))
    between_images = tf.matmul(images, images, transpose_b=True)  # α^v [N, N]
    to_caption = tf.reduce_sum(images * captions, axis=1)  # α^x_ii [N]
    off_diagonal = 1.0 - tf.eye(tf.shape(images)[0])  # float32 [N, N], 1 for i ≠ j
    if definition == "paper":
        similarity = _paper_similarity(between_images, to_caption)
    else:
        similarity = _code_similarity(between_images, to_caption, off_diagonal > 0)
    excess = tf.maximum(0.0, similarity - margin)
    return off_diagonal * excess / (1.0 - margin)


def _paper_similarity(between_images: tf.Tensor, to_caption: tf.Tensor) -> tf.Tensor:
    """Returns the similarity "paper" of the table above, [N, N], from α^v [N, N] and α^x_ii [N]."""
    between_images = (1.0 + between_images) / 2.0  # in [0, 1], as the next
    to_caption = (1.0 + to_caption) / 2.0
    product = between_images * to_caption[:, None] * to_caption[None, :]  # [N, N] * [N, 1] * [1, N]
    product = tf.maximum(product, 0.0)  # rounding can leave it just below 0
    return tf.pow(product, 1.0 / 3.0)


def _code_similarity(between_images: tf.Tensor, to_caption: tf.Tensor, is_pair: tf.Tensor) -> tf.Tensor:
    """Returns the similarity "code" of the table above, [N, N], from α^v [N, N] and α^x_ii [N]; `is_pair`: i ≠ j."""
    to_captions = to_caption[:, None] * to_caption[None, :]  # [N, 1] * [1, N]
    smallest = tf.reduce_min(to_captions)
    share = tf.math.divide_no_nan(to_captions - smallest, tf.reduce_max(to_captions) - smallest)  # in [0, 1]
    low, high = RESCALED
    similarity = between_images * (low + share * (high - low))
    largest = tf.reduce_max(tf.where(is_pair, similarity, float("-inf")))
    divisor = tf.where(largest > 0, largest, 1.0)
    return tf.where(largest > 0, similarity / divisor, 0.0)


def transitive_loss(
    sentences: Rows | tf.Tensor, weights: tf.Tensor, temperature: tf.Tensor | float, *, divided: bool = True
) -> tf.Tensor:
    """Returns L_t, a float32 scalar, 0 where Σα is 0.

    Args:
      sentences: [N, D], any float type, L2-normalised; with `Rows` of a part the result is their part of the whole.
      weights: α, float [N, N]; its diagonal is not used.
      temperature: τ > 0.
      divided: by Σα (code), else by N (paper).
    """
    pairs = Pairs(sentences, sentences)
    logits = tf.where(pairs.is_positive, float("-inf"), pairs.cosines / temperature)
    logarithms = tf.where(pairs.is_positive, 0.0, tf.nn.log_softmax(logits, axis=1))
    weights = tf.stop_gradient(tf.cast(weights, tf.float32))
    own_weights = pairs.left.own_of(weights)  # [R, N]
    loss = -tf.reduce_sum(own_weights * logarithms)
    if not divided:
        return loss / tf.cast(pairs.total, tf.float32)
    weight_sum = tf.reduce_sum(weights) - tf.linalg.trace(weights)  # i ≠ j
    return tf.math.divide_no_nan(loss, weight_sum)


def cloze_sums(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns float32 [B, 2]: each text's summed cross-entropy, in nats, and its sum of weights.

    Args:
      logits: [B, K, V], any float type.
      targets: int [B, K], in [0, V).
      weights: float32 [B, K], 1 where there is a piece to predict, else 0.
    """
    logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)  # [B, K]
    loss_sums = tf.reduce_sum(losses * weights, axis=1)
    counts = tf.reduce_sum(weights, axis=1)
    return tf.stack([loss_sums, counts], axis=1)


def cloze_loss(sums: Rows | tf.Tensor) -> tf.Tensor:
    """Returns the mean cross-entropy over all places, float32 scalar; 0 without places.

    Args:
      sums: float32 [N, 2], `cloze_sums` of all texts; with `Rows` of a part the result is their part of the whole.
    """
    sums = Rows.of(sums)
    total = tf.reduce_sum(sums.own[:, 0])
    count = tf.reduce_sum(sums.values[:, 1])
    return tf.math.divide_no_nan(total, count)
