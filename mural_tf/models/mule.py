"""MULE (Kim et al., 2020): one multimodal model for all languages, on a universal language embedding.

    L = w_i2t L_triplet + λ1 L_LM + λ2 L_LC, [MULE] Eq. 4 (λ3 is w_i2t; the sign of λ2 L_LC is the gradient reversal's)

L_LM, the neighbourhood constraints, are applied to the captions of a batch at two layers, u and s. The mean word in
the universal language embedding is u; the language classifier sees it too. Beyond the paper:

- `loss.text_text_weight`: the neighbourhood constraints on the text pairs as well. LP, pretraining on sentence pairs,
  is this task alone on u (`configs/mule_multi30k_lp.py`); MULE then starts from its workdir (run_finetune.py).
- `mule.word_vector_weight`, of the released code: the squared distance of the word vectors to those of the files.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.errors import UserError
from mural_tf.losses.adversarial import language_loss, reverse_gradient
from mural_tf.losses.triplet import caption_neighbourhood, pair_neighbourhood
from mural_tf.models.dual_encoder import text_matches
from mural_tf.models.embn import Columns, EmbN

LEVELS = ("words", "sentences")  # u and s


class Mule(EmbN):
    """EmbN with several languages, neighbourhood constraints and a language classifier.

    With text pairs, batches also hold `text_a`, `text_b` (tokens), their ids and `text_a_language_id`,
    `text_b_language_id`.
    """

    head_names = ("image_text", "words")
    pairs = {"text_text": ("text_a", "text_b")}

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        unknown = set(self.mule_config.neighbourhood_levels) - set(LEVELS)
        if unknown or not self.mule_config.neighbourhood_levels:
            raise UserError(f"mule.neighbourhood_levels must be among {', '.join(LEVELS)}, and at least one.")
        tower = config.text_tower
        self.words_head = Columns(
            tower.projection, tower.projection + tower.language_size, name="words_head", dtype="float32"
        )
        self.universal_size = tower.language_size
        self.language_classifier = tf.keras.layers.Dense(len(tower.languages), name="language_classifier")
        self.language_classifier(tf.zeros([1, tower.language_size]))  # creates its weights, under its name
        self.original_vectors = None
        if self.vector_files and self.mule_config.word_vector_weight:
            shape = self.word_vectors.shape
            self.original_vectors = self.add_weight(name="original_vectors", shape=shape, trainable=False)

    @property
    def word_vectors(self) -> tf.Variable:
        """float32 [vocabulary, word_size]."""
        return self.text_encoder.get_layer("word_vectors").embeddings

    @property
    def text_names(self) -> tuple[str, ...]:
        """The parts of a batch that are texts and are used."""
        captions = ("caption",) if {"image_text", "neighbourhood"} & set(self.loss_weights()) else ()
        return captions + (("text_a", "text_b") if "text_text" in self.loss_weights() else ())

    @property
    def example_names(self):
        return (("image",) if "image_text" in self.loss_weights() else ()) + self.text_names

    @property
    def streams(self):
        groups = ("image_groups",) if "caption" in self.text_names else ()
        return groups + (("text_text",) if "text_text" in self.loss_weights() else ())

    @property
    def embedding_shapes(self):
        sizes = {name: (name, self.embedding_size) for name in self.example_names}
        return {**sizes, **{f"{name}_words": (name, self.universal_size) for name in self.text_names}}

    def encode(self, batch, training):
        embeddings = {}
        if "image_text" in self.loss_weights():
            embeddings["image"] = self.embed_images(batch["image"], training)
        states = self.text_states([batch[name] for name in self.text_names], training)  # one pass of the tower
        for name, state in zip(self.text_names, states):
            embeddings[name] = self.project_texts(state, "image_text")  # s
            embeddings[f"{name}_words"] = self.project_texts(state, "words")  # u
        return embeddings

    def losses(self, embeddings, batch, rows):
        tasks = self.loss_weights()
        losses = super().losses(embeddings, batch, rows) if "image_text" in tasks else {}
        if "neighbourhood" in tasks:
            losses["neighbourhood"] = tf.add_n([
                caption_neighbourhood(
                    embeddings[self._at("caption", level)],
                    tf.repeat(batch["image_id"], self.slots),
                    batch["caption_language_id"],
                    self.slots,
                    rows=rows["caption"],
                    **self.triplets,
                )
                for level in self.mule_config.neighbourhood_levels
            ])  # fmt: skip
        if "text_text" in tasks:
            losses["text_text"] = tf.add_n([
                pair_neighbourhood(
                    embeddings[self._at("text_a", level)],
                    embeddings[self._at("text_b", level)],
                    batch["text_a_language_id"],
                    batch["text_b_language_id"],
                    matches=text_matches(batch),
                    rows=rows["text_a"],
                    **self.triplets,
                )
                for level in self.mule_config.neighbourhood_levels
            ])  # fmt: skip
        if "language" in tasks:
            losses["language"] = self._language_loss(embeddings, batch, rows)
        if "word_vectors" in tasks:
            moved = tf.reduce_sum(tf.square(self.word_vectors - self.original_vectors))
            name = self.text_names[0]
            share = rows[name][1] / tf.shape(embeddings[name])[0]  # this replica's, as of every loss
            losses["word_vectors"] = moved * tf.cast(share, tf.float32)
        return losses

    def normalization_layers(self):
        return super().normalization_layers() if "image" in self.example_names else []

    def loss_weights(self):
        config, weights = self.mule_config, super().loss_weights()
        weights["neighbourhood"] = config.neighbourhood_weight if self.slots > 1 else 0.0
        weights["text_text"] = self.loss_config.text_text_weight
        weights["language"] = config.language_weight
        weights["word_vectors"] = config.word_vector_weight if self.original_vectors is not None else 0.0
        return {task: weight for task, weight in weights.items() if weight}

    def weights_by_part(self):
        parts = {**super().weights_by_part(), "language_classifier": self.language_classifier}
        if self.original_vectors is not None:
            parts["original_vectors"] = self.original_vectors
        return parts

    def begin(self, tokenizer, restored):
        """As `EmbN.begin`; the vectors a run begins with are those that it is held to."""
        super().begin(tokenizer, restored)
        if self.original_vectors is not None:
            self.original_vectors.assign(self.word_vectors)

    def _at(self, name: str, level: str) -> str:
        return f"{name}_words" if level == "words" else name

    def _language_loss(self, embeddings, batch, rows) -> tf.Tensor:
        """The mean over the sentences of all parts of the batch."""
        total, present = tf.zeros([]), tf.zeros([])
        for name in self.text_names:
            languages = batch[f"{name}_language_id"]
            logits = self.language_classifier(reverse_gradient(embeddings[f"{name}_words"]))
            count = tf.reduce_sum(tf.cast(languages >= 0, tf.float32))
            total += count * language_loss(logits, languages, rows[name])
            present += count
        return total / tf.maximum(present, 1.0)
