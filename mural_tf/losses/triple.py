"""ETCL's triple loss, [ETCL] §3.2, Eq. 4: an image and two texts that say the same, each with each.

    L_ETCL = 1/3 [ L(I, A) + L(A, B) + L(B, I) ],    L both directions of the in-batch softmax

All six terms send their gradients to all three sides. Departures: the printed Eq. 1 lacks logarithm and temperature,
so the terms are MURAL's (`contrastive.py`), as [ETCL] §3.3 says of the model: the image terms with the learned
temperature and label smoothing, the text term with its fixed temperature and margin.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import Rows, contrastive_loss


def triple_losses(
    image: tf.Tensor,
    captions: tuple[tf.Tensor, tf.Tensor],
    texts: tuple[tf.Tensor, tf.Tensor],
    temperature: tf.Tensor | float,
    *,
    text_temperature: float,
    text_margin: float = 0.0,
    label_smoothing: float = 0.0,
    image_ids: tf.Tensor | None = None,
    text_ids: tuple[tf.Tensor, tf.Tensor] | None = None,
    rows: Rows | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns L(I, A) + L(B, I), and L(A, B); Eq. 4 weighs both with 1/3.

    Args:
      image: [N, D], L2-normalised.
      captions: texts A and B as they are compared with images, [N, D] each, L2-normalised.
      texts: texts A and B as they are compared with each other; the same tensors where there is one head.
      temperature: scalar > 0, of the image terms.
      text_temperature, text_margin: of the text term.
      label_smoothing: of the image terms, 0..1.
      image_ids, text_ids: integer [N] each; triples that share the image, text A or text B are not each other's
        negatives in the terms that involve it.
      rows: as in `contrastive_loss`.

    Returns:
      Two float32 scalars.
    """
    image_ids = () if image_ids is None else (image_ids,)
    image_text = tf.add_n(
        [
            contrastive_loss(
                image,
                caption,
                temperature,
                label_smoothing=label_smoothing,
                matches=(*image_ids, *(() if text_ids is None else (text_ids[side],))),
                rows=rows,
            )
            for side, caption in enumerate(captions)
        ]
    )
    text_text = contrastive_loss(
        *texts, text_temperature, margin=text_margin, matches=(*image_ids, *(text_ids or ())), rows=rows
    )
    return image_text, text_text
