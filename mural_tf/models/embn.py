"""EmbN and PARALLEL-EmbN ([MULE], Kim et al., 2020, after Wang et al., 2019, and Gella et al., 2017): MULE's baselines.

    L = w_i2t L_triplet, [MULE] Eq. 3

Both have MULE's image branch and, per language, word vectors and their projection. EmbN is trained with one language
in `text_tower.languages`, a model per language; with several it is the row "MULE EmbN" of the paper's tables, one
sentence branch for all and no other loss. PARALLEL-EmbN has one image branch and a sentence branch per language.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.encoders.words import vectors_of_vocabulary
from mural_tf.errors import UserError
from mural_tf.losses.triplet import DISTANCES, image_sentence_loss
from mural_tf.models.dual_encoder import ContrastiveModel


class Columns(tf.keras.layers.Layer):
    """[B, C] → [B, last - first]: the head that takes one part of a tower's output and has no weights."""

    def __init__(self, first: int, last: int, **options):
        super().__init__(**options)
        self.first, self.last = first, last

    def call(self, states):
        return states[:, self.first : self.last]


class EmbN(ContrastiveModel):
    """Image-sentence matching with triplets.

    Batches hold `image` and `image_id` of I images, and of `data.captions_per_image` captions each `caption` (tokens)
    and `caption_language_id` (-1: no caption in this place).
    """

    head_names = ("image_text",)
    streams = ("image_groups",)
    example_names = ("image", "caption")
    pairs = {}
    branches = "shared"

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self._check(config)
        self.mule_config = config.mule
        self.vector_files = config.text_tower.word_vectors
        self.slots = config.data.captions_per_image
        self.image_text_head = Columns(0, self.embedding_size, name="image_text_head", dtype="float32")

    @property
    def triplets(self) -> dict:
        """The settings that all triplet losses share."""
        return dict(margin=self.mule_config.margin, distance=self.mule_config.distance, top=self.mule_config.top)

    def encode(self, batch, training):
        return {
            "image": self.embed_images(batch["image"], training),
            "caption": self.embed_texts(batch["caption"], "image_text", training),
        }

    def losses(self, embeddings, batch, rows):
        count = tf.shape(embeddings["caption"])[0]
        loss = image_sentence_loss(
            embeddings["image"],
            embeddings["caption"],
            tf.range(count) // self.slots,
            batch["image_id"],
            batch["caption_language_id"],
            sentence_factor=self.mule_config.sentence_factor,
            structure_factor=self.mule_config.structure_factor,
            rows=rows["caption"],
            **self.triplets,
        )
        return {"image_text": loss}

    def loss_weights(self):
        return {"image_text": self.loss_config.image_text_weight}

    def begin(self, tokenizer, restored):
        """Takes the word vectors of the files, if there are any and no others were restored."""
        if restored or not self.vector_files:
            return
        table = self.text_encoder.get_layer("word_vectors").embeddings
        vectors, shares = vectors_of_vocabulary(
            self.vector_files, tokenizer.vocabulary, tokenizer.languages, table.shape[1]
        )
        values = table.numpy()
        for word, vector in vectors.items():
            values[word] = vector
        table.assign(values)
        found = ", ".join(f"{language} {known} of {words}" for language, (known, words) in shares.items())
        print(f"Words with vectors in {self.vector_files}: {found}; the others start at random.")

    def _check(self, config) -> None:
        tower = config.text_tower
        if tower.name != "words" or tower.language_branches != self.branches:
            raise UserError(
                f"model={config.model!r} needs text_tower.name='words' and text_tower.language_branches="
                f"{self.branches!r}, got {tower.name!r} and {tower.language_branches!r}."
            )
        if tower.projection != config.embedding_size:
            raise UserError(f"text_tower.projection={tower.projection} must be embedding_size={config.embedding_size}.")
        if config.data.captions_per_image < 1:
            raise UserError(f"model={config.model!r} needs data.captions_per_image of 1 or more.")
        if config.mule.distance not in DISTANCES or config.mule.top < 1 or config.mule.margin < 0:
            raise UserError(
                f"mule.distance={config.mule.distance!r}, mule.top={config.mule.top}, mule.margin="
                f"{config.mule.margin}: expected {' or '.join(DISTANCES)}, 1 or more, and 0 or more."
            )


class ParallelEmbN(EmbN):
    """EmbN with a sentence branch per language."""

    branches = "parallel"
