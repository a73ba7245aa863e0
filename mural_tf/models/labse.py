"""A LaBSE-style dual encoder of texts (Feng et al., 2020): MURAL's text-text task alone.

    L = L_r2l + L_l2r

BERT's [CLS] state through one Dense head; fixed temperature and additive margin, [P] = MURAL §3.1. Left out, of LaBSE
itself: pretraining with masked tokens and translation language modelling, and stacking layers during training.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.models.dual_encoder import ContrastiveModel, text_matches


class Labse(ContrastiveModel):
    """Text-text matching. Batches hold `text_a`, `text_b` (tokens of one length) and their ids."""

    streams = ("text_text",)
    head_names = ("text_text",)
    example_names = ("text_a", "text_b")
    image_parts = ()
    pairs = {"text_text": ("text_a", "text_b")}

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self.text_text_head = tf.keras.layers.Dense(self.embedding_size, name="text_text_head")

    def encode(self, batch, training):
        states = self.text_states([batch["text_a"], batch["text_b"]], training)
        return {name: self.project_texts(state, "text_text") for name, state in zip(self.example_names, states)}

    def losses(self, embeddings, batch, rows):
        loss = contrastive_loss(
            embeddings["text_a"],
            embeddings["text_b"],
            self.loss_config.text_text_temperature,
            margin=self.loss_config.text_text_margin,
            matches=text_matches(batch) if self.loss_config.mask_duplicates else (),
            rows=rows["text_a"],
        )
        return {"text_text": loss}

    def loss_weights(self):
        return {"text_text": self.loss_config.text_text_weight}

    def variable_groups(self):
        return {**super().variable_groups(), "text_text_head": self.text_text_head.trainable_variables}
