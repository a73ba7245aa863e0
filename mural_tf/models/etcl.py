"""ETCL: enhancement via triple contrastive learning, a short stage on top of a trained MURAL ([ETCL] §3.2, Eq. 4).

    L = 1/3 [ L(I, A) + L(A, B) + L(B, I) ]

Every example is an image with two texts that say the same in different languages. Towers, heads and temperature are
MURAL's. Where [ETCL] is silent (our choice): the image terms compare by the image-text head and the text term by the
text-text head; with `shared_head` all compare by the first. Start it with `run_finetune.py --from=<a MURAL workdir>`.
"""

from __future__ import annotations

from mural_tf.losses.contrastive import triple_losses
from mural_tf.models.mural import Mural


class Etcl(Mural):
    """MURAL on triples. Batches hold `image`, `image_id`, `text_a`, `text_b` (tokens of one length) and their ids.

    `loss.image_text_weight` weighs both image terms, `loss.text_text_weight` the text term: 1/3 each in Eq. 4. With a
    text-text weight of 0 the text term is left out.
    """

    starts_from = ("mural", "etcl")
    streams = ("triples",)
    example_names = ("image", "text_a", "text_b")

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self.text_head_name = "image_text" if config.shared_head else "text_text"

    @property
    def pairs(self):
        return {"image_text": ("image", "caption_a"), "text_text": ("text_a", "text_b")}

    @property
    def embedding_shapes(self):
        parts = {"image": "image", "caption_a": "text_a", "caption_b": "text_b", "text_a": "text_a", "text_b": "text_b"}
        return {name: (part, self.embedding_size) for name, part in parts.items()}

    def encode(self, batch, training):
        embeddings = {"image": self.embed_images(batch["image"], training)}
        states = self.text_states([batch["text_a"], batch["text_b"]], training)  # one pass of the shared tower
        for side, state in zip("ab", states):
            embeddings[f"caption_{side}"] = self.project_texts(state, "image_text")
            embeddings[f"text_{side}"] = self.project_texts(state, self.text_head_name)
        return embeddings

    def losses(self, embeddings, batch, rows):
        masked = self.loss_config.mask_duplicates
        image_text, text_text = triple_losses(
            embeddings["image"],
            (embeddings["caption_a"], embeddings["caption_b"]),
            (embeddings["text_a"], embeddings["text_b"]),
            self.temperature,
            text_temperature=self.loss_config.text_text_temperature,
            text_margin=self.loss_config.text_text_margin,
            label_smoothing=self.loss_config.label_smoothing,
            image_ids=batch["image_id"] if masked else None,
            text_ids=(batch["text_a_id"], batch["text_b_id"]) if masked else None,
            rows=rows["image"],
        )
        losses = {"image_text": image_text, "text_text": text_text}
        return {task: losses[task] for task in self.loss_weights()}
