"""ETCL: enhancement via triple contrastive learning, a short stage on top of a trained MURAL ([ETCL] §3.2, Eq. 4).

    L_ETCL = 1/3 [ L(I, A) + L(A, B) + L(B, I) ],    L both directions of the in-batch softmax

Every example is an image with two texts that say the same in different languages. Towers, heads and temperature are
MURAL's; all six terms send their gradients to all three sides. Where [ETCL] is silent (our choice): the image terms
compare by the image-text head and the text term by the text-text head; with `shared_head` all compare by the first.
The printed Eq. 1 lacks logarithm and temperature, so the terms are MURAL's, as [ETCL] §3.3 says of the model: the
image terms with the learned temperature and label smoothing, the text term with its fixed temperature and margin. Read
literally, [ETCL] §3.1 and §3.3 add the margin to both tasks and have one learnable temperature for all; §3.1 defines
L_textA-textB as one direction, L_text-text as the sum of both, so that L(A, B) may be only one direction.
Start it with `run_finetune.py --from=<a MURAL workdir>`.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.pairs import Pairs
from mural_tf.models.dual_encoder import Embedding, Task
from mural_tf.models.mural import Mural


class Etcl(Mural):
    """MURAL on triples. Batches hold `image`, `image_id`, `text_a`, `text_b` (tokens of one length) and their ids.

    `loss.image_text_weight` weighs both image terms, `loss.text_text_weight` the text term: 1/3 each in Eq. 4. With a
    text-text weight of 0 the text term is left out.
    """

    title = "ETCL: MURAL enhanced with triples of an image and two texts"
    starts_from = "mural or etcl"
    embeddings = {
        "image": Embedding("image"),
        "caption_a": Embedding("text_a", head="image_text"),
        "text_a": Embedding("text_a", head="text_text"),
        "caption_b": Embedding("text_b", head="image_text"),
        "text_b": Embedding("text_b", head="text_text"),
    }
    tasks = {
        "image_text": Task("triples", ("image", "caption_a", "caption_b"), pair=("image", "caption_a")),
        "text_text": Task("triples", ("text_a", "text_b"), pair=("text_a", "text_b")),
    }

    @classmethod
    def may_start_from(cls, source):
        return issubclass(source, Mural)

    def image_text_loss(self, image, caption_a, caption_b, ids):
        """Returns L(I, A) + L(B, I) of `Rows` [N, D] each, a float32 scalar.

        Triples that share the image, or the text that is compared, are not each other's negatives.
        """
        losses = []
        for caption, text_id in ((caption_a, "text_a_id"), (caption_b, "text_b_id")):
            pairs = Pairs(image, caption, self.same(ids, "image_id", text_id))
            losses.append(contrastive_loss(pairs, self.temperature, label_smoothing=self.loss_config.label_smoothing))
        return tf.add_n(losses)

    def same_texts(self, ids):
        """Returns `Pairs.same` of L(A, B): triples that share the image or a text are not each other's negatives."""
        return self.same(ids, "image_id", "text_a_id", "text_b_id", ("text_a_id", "text_b_id"))
