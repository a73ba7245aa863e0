"""ALIGN (Jia et al., 2021), as MURAL's baseline: image-text matching alone, [P] §3.

    L = w_i2t (L_i2t + L_t2i)

ALIGN-base has one projection head, 768 → 512, on the text tower and none on the image tower ([P] A.1).
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.models.dual_encoder import ContrastiveModel


class Align(ContrastiveModel):
    """Image-text matching. Batches hold `image`, `image_id`, `caption` (tokens) and `caption_id`."""

    head_names = ("image_text",)
    streams = ("image_text",)
    example_names = ("image", "caption")
    pairs = {"image_text": ("image", "caption")}

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self.image_text_head = tf.keras.layers.Dense(self.embedding_size, name="image_text_head")

    def encode(self, batch, training):
        return {
            "image": self.embed_images(batch["image"], training),
            "caption": self.embed_texts(batch["caption"], "image_text", training),
        }

    def losses(self, embeddings, batch, rows):
        loss = contrastive_loss(  # L_i2t + L_t2i
            embeddings["image"],
            embeddings["caption"],
            self.temperature,
            label_smoothing=self.loss_config.label_smoothing,
            matches=(batch["image_id"], batch["caption_id"]) if self.loss_config.mask_duplicates else (),
            rows=rows["image"],
        )
        return {"image_text": loss}

    def loss_weights(self):
        return {"image_text": self.loss_config.image_text_weight}
