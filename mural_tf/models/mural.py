"""MURAL (Jain et al., 2021): image-text and translation-pair matching at once, [P] §3.1, Eq. 1.

    L = w_i2t (L_i2t + L_t2i) + w_t2t (L_r2l + L_l2r)

The text tower is shared; each task has its own single-layer projection head.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.models.align import Align
from mural_tf.models.dual_encoder import text_matches


class Mural(Align):
    """ALIGN plus text-text matching. Batches also hold `text_a`, `text_b` (tokens of one length) and their ids."""

    head_names = ("image_text", "text_text")
    pairs = {**Align.pairs, "text_text": ("text_a", "text_b")}

    @property
    def streams(self):
        return ("image_text", "text_text") if "text_text" in self.loss_weights() else ("image_text",)

    @property
    def example_names(self):
        return (*super().example_names, *(("text_a", "text_b") if "text_text" in self.loss_weights() else ()))

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self.text_head_name = "image_text" if config.shared_head else "text_text"
        self.text_text_head = tf.keras.layers.Dense(self.embedding_size, name="text_text_head")

    def encode(self, batch, training):
        if "text_text" not in self.loss_weights():
            return super().encode(batch, training)
        texts = [batch["caption"], batch["text_a"], batch["text_b"]]
        caption, text_a, text_b = self.text_states(texts, training)  # one pass of the shared tower
        return {
            "image": self.embed_images(batch["image"], training),
            "caption": self.project_texts(caption, "image_text"),
            "text_a": self.project_texts(text_a, self.text_head_name),
            "text_b": self.project_texts(text_b, self.text_head_name),
        }

    def losses(self, embeddings, batch, rows):
        losses = super().losses(embeddings, batch, rows)
        if "text_text" not in self.loss_weights():
            return losses
        loss = contrastive_loss(  # L_r2l + L_l2r
            embeddings["text_a"],
            embeddings["text_b"],
            self.loss_config.text_text_temperature,
            margin=self.loss_config.text_text_margin,
            matches=text_matches(batch) if self.loss_config.mask_duplicates else (),
            rows=rows["text_a"],
        )
        return {**losses, "text_text": loss}

    def loss_weights(self):
        weight = self.loss_config.text_text_weight
        return {**super().loss_weights(), **({"text_text": weight} if weight else {})}

    def variable_groups(self):
        return {**super().variable_groups(), "text_text_head": self.text_text_head.trainable_variables}
