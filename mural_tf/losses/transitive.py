"""Globetrotter's transitive relation and the loss that uses it ([P] = Surís et al., 2022, §3.2, Eq. 1 and 2).

Two sentences belong together as far as each fits its image and the two images are alike:

    α_ij = f([α^x_ii α^v_ij α^x_jj]^(1/3)),  f(x) = max(0, x - m) / (1 - m)
    L_t  = - sum_{i ≠ j} α_ij log( exp(β_ij/τ) / sum_{k ≠ i} exp(β_ik/τ) ) / sum_{i ≠ j} α_ij

Nothing flows back through α, so that L_t trains the text side alone.

| `definition` | α_ij before f |
|---|---|
| "paper" | the cube root above, each similarity mapped to [0, 1] by (1 + cos) / 2 ([P] B.1) |
| "code"  | α^v_ij times α^x_ii α^x_jj, rescaled over the whole matrix to [0.75, 1.25], divided by the largest (i ≠ j) |

The paper's map makes nearly every pair a positive; the code's division always makes one, and turns the signs around
if every similarity is negative: then there are no positives here. Where Σα = 0, L_t = 0. The paper does not divide by
Σα; the code does. β is the cosine of sentence embeddings [P]; the code compares the tokens of sentences.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import Rows

DEFINITIONS = ("code", "paper")
RESCALED = (0.75, 1.25)  # [C]


def transitive_weights(
    images: tf.Tensor, captions: tf.Tensor, definition: str = "code", margin: float = 0.4
) -> tf.Tensor:
    """Returns α, float32 [N, N], symmetric, in [0, 1], 0 on the diagonal, without gradient.

    Args:
      images, captions: [N, D], any float type, L2-normalised; row i of each is a pair.
      definition: "code" or "paper", see above.
      margin: m, 0 <= m < 1.
    """
    if definition not in DEFINITIONS:
        raise ValueError(f"definition={definition!r}: expected one of {', '.join(DEFINITIONS)}.")
    images, captions = (tf.stop_gradient(tf.cast(side, tf.float32)) for side in (images, captions))
    between_images = tf.matmul(images, images, transpose_b=True)  # α^v [N, N]
    to_caption = tf.reduce_sum(images * captions, axis=1)  # α^x_ii [N]
    is_pair = 1.0 - tf.eye(tf.shape(images)[0])
    if definition == "paper":
        between_images, to_caption = ((1.0 + cosine) / 2.0 for cosine in (between_images, to_caption))
        product = between_images * to_caption[:, None] * to_caption[None, :]
        similarity = tf.pow(tf.maximum(product, 0.0), 1.0 / 3.0)  # rounding can leave it just below 0
    else:
        product = to_caption[:, None] * to_caption[None, :]
        low, high = tf.reduce_min(product), tf.reduce_max(product)
        share = tf.math.divide_no_nan(product - low, high - low)
        product = between_images * (RESCALED[0] + share * (RESCALED[1] - RESCALED[0]))
        largest = tf.reduce_max(tf.where(is_pair > 0, product, float("-inf")))
        similarity = tf.where(largest > 0, product / tf.where(largest > 0, largest, 1.0), 0.0)
    return is_pair * tf.maximum(0.0, similarity - margin) / (1.0 - margin)


def transitive_loss(
    sentences: tf.Tensor,
    weights: tf.Tensor,
    temperature: tf.Tensor | float,
    *,
    divided: bool = True,
    rows: Rows | None = None,
) -> tf.Tensor:
    """Returns L_t.

    Args:
      sentences: [N, D], any float type, L2-normalised.
      weights: α, float [N, N]; its diagonal is not used.
      temperature: τ > 0.
      divided: by Σα (code) or not (paper).
      rows: the sentences to sum over, as (first, count); the result is still divided by the whole Σα.

    Returns:
      float32 scalar, 0 where Σα is 0.
    """
    sentences = tf.cast(sentences, tf.float32)
    total = tf.shape(sentences)[0]
    first, count = (0, total) if rows is None else rows
    own = tf.equal(tf.range(first, first + count)[:, None], tf.range(total)[None, :])  # [R, N]
    cosines = tf.matmul(sentences[first : first + count], sentences, transpose_b=True)
    logits = tf.where(own, float("-inf"), cosines / temperature)
    logarithms = tf.where(own, 0.0, tf.nn.log_softmax(logits, axis=1))
    weights = tf.stop_gradient(tf.cast(weights, tf.float32))
    loss = -tf.reduce_sum(weights[first : first + count] * logarithms)
    if not divided:
        return loss
    return tf.math.divide_no_nan(loss, tf.reduce_sum(weights) - tf.linalg.trace(weights))
