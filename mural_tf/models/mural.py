"""MURAL (Jain et al., 2021): image-text and translation-pair matching at once, [MURAL] §3.1, Eq. 1.

    L = w_i2t (L_i2t + L_t2i) + w_t2t (L_r2l + L_l2r)

The text tower is shared; each task has its own single-layer projection head, or with `shared_head` the first for both.
"""

from __future__ import annotations

from mural_lite.errors import UserError
from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.pairs import Pairs
from mural_tf.models.align import Align
from mural_tf.models.dual_encoder import DualEncoder, Embedding, Task


class TextText(DualEncoder):
    """Text-text matching. Batches hold `text_a`, `text_b` (tokens of one length) and their ids."""

    fields = dict(
        text_text_temperature=0.01,  # fixed [MURAL §3.1]; 0: the learned one of image-text
        text_text_margin=0.3,  # subtracted from the positive's cosine [MURAL §3.1]
    )
    embeddings = {"text_a": Embedding("text_a", head="text_text"), "text_b": Embedding("text_b", head="text_text")}
    tasks = {"text_text": Task("text_text", ("text_a", "text_b"), pair=("text_a", "text_b"))}

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        temperature = self.options.text_text_temperature
        if not temperature >= 0:  # as written it also refuses NaN
            raise UserError(f"method.text_text_temperature={temperature} must be above 0, or 0 for the images'.")

    def text_text_loss(self, text_a, text_b, ids):
        """Returns L_r2l + L_l2r with an additive margin, a float32 scalar; both sides are `Rows` [N, D]."""
        pairs = Pairs(text_a, text_b, self.same_texts(ids))
        temperature = self.options.text_text_temperature or self.temperature
        return contrastive_loss(pairs, temperature, margin=self.options.text_text_margin)

    def variable_groups(self):
        groups = super().variable_groups()
        if "text_text" in self.head_names:  # with `shared_head` MURAL has only the head "image_text"
            groups["text_text_head"] = self.text_text_head.trainable_variables
        return groups


class Mural(TextText, Align):
    """ALIGN plus text-text matching; batches hold the entries of both."""

    title = "MURAL: multimodal, multitask retrieval across languages (Jain et al., 2021)"
    # The text tower runs first, because a text is declared first: so the order of random draws is fixed.
    embeddings = {"caption": Align.embeddings["caption"], **TextText.embeddings, "image": Align.embeddings["image"]}
    tasks = {**Align.tasks, **TextText.tasks}
