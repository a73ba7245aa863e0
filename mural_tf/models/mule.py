"""MULE (Kim et al., 2020): one multimodal model for all languages, on a universal language embedding.

    L = w_i2t L_triplet + λ1 L_LM + λ2 L_LC, [MULE] Eq. 4 (λ3 is w_i2t; the sign of λ2 L_LC is the gradient reversal's)

L_LM, the neighbourhood constraints, are applied to the captions of a batch at two layers, u and s. The mean word in
the universal language embedding is u; the language classifier sees it too.

Departures; "its code" is the released one:
- Positives and negatives of L_LM are sentences of one other language, as in its code; in the paper they "may be from
  any language", the anchor's own too. Here each of two languages gives anchors; in its code only the first.
- The penalty on word vectors is the sum of their squared distances. Its code takes half of it, and the mean over the
  languages: with four languages the same weight is 8 times as strong here, and 6.25e-8 would be its 5e-7.
- The image branch has no dropout; its code has 0.5 after the ReLU, which the paper does not mention.
- The reversed gradient is λ2 times the classifier's, as in Eq. 4. Its code multiplies it once more, by a factor that
  rises from 0 to 1e-6, which leaves almost nothing of it.

Beyond the paper:

- `loss.text_text_weight`: the neighbourhood constraints on the text pairs as well. LP, pretraining on sentence pairs,
  is only this task, on u (`configs/mule.py:lp`); MULE then starts from its workdir (run_finetune.py).
- `WORD_VECTORS_WEIGHT`, of the released code: the squared distance between word vectors and the files' vectors.

The two last terms compare no embeddings of their own: the classifier looks at the u of all texts that other terms
use, and the word vectors at no example at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.losses.mule import caption_neighbourhood, language_loss, pair_neighbourhood, reverse_gradient
from mural_tf.losses.pairs import Pairs
from mural_tf.models.dual_encoder import Embedding, Task
from mural_tf.models.embn import Columns, EmbN

LEVELS = ("words", "sentences")  # u and s
TEXTS = ("caption", "text_a", "text_b")
WORD_VECTORS_WEIGHT = 5e-7  # of the squared distance to the vectors of the files


class Mule(EmbN):
    """EmbN with several languages, neighbourhood constraints and a language classifier.

    With text pairs, batches also hold `text_a`, `text_b` (tokens), their ids and `text_a_language_id`,
    `text_b_language_id`.
    """

    title = "MULE: multimodal universal language embedding (Kim et al., 2020)"
    fields = dict(
        EmbN.fields,
        neighbourhood_weight=1.0,  # λ1 of Eq. 4; 0: without NC
        neighbourhood_levels=LEVELS,  # u and s of Eq. 1; LP: ("words",)
        language_weight=1e-6,  # λ2 of Eq. 4; 0: without LC
    )
    embeddings = {
        "image": Embedding("image"),
        "caption": Embedding("caption", head="image_text"),
        "caption_words": Embedding("caption", head="words"),
        "text_a": Embedding("text_a", head="image_text"),
        "text_a_words": Embedding("text_a", head="words"),
        "text_b": Embedding("text_b", head="image_text"),
        "text_b_words": Embedding("text_b", head="words"),
    }

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        tower = self.text_tower
        self.language_classifier = keras.layers.Dense(len(tower.languages), name="language_classifier")
        self.language_classifier(tf.zeros([1, tower.language_size]))  # creates its weights, under its name
        if self.is_held_to_files:
            shape = self.word_vectors.shape
            self.original_vectors = self.add_weight(name="original_vectors", shape=shape, trainable=False)

    @property
    def also_reads(self):
        return tuple(f"{text}_language_id" for text in TEXTS if text in self.parts)

    @property
    def tasks(self):
        """{name: `Task`}, by the levels of the neighbourhood constraints and the captions per image."""
        tasks = dict(EmbN.tasks)
        if self.options.captions_per_image > 1:  # else no image has a second sentence
            tasks["neighbourhood"] = Task("image_groups", self._at_levels("caption"))
        left = self._at_levels("text_a")
        right = self._at_levels("text_b")
        last_level = (left[-1], right[-1])
        tasks["text_text"] = Task("text_text", (*left, *right), pair=last_level)
        words = self._words_of(tasks)
        if words:
            stream = "image_groups" if "caption_words" in words else "text_text"
            tasks["language"] = Task(stream, words)
            if self.is_held_to_files:  # a term without examples, but every task compares an embedding
                tasks["word_vectors"] = Task(stream, words[:1])
        return tasks

    def _words_of(self, tasks: Mapping[str, Task]) -> tuple[str, ...]:
        """Returns the names of the embeddings u of all texts that tasks with a weight compare."""
        compared = set()
        for name, task in tasks.items():
            if self._weight(name):
                compared.update(task.compares)
        parts = {self.embeddings[name].part for name in compared}
        return tuple(f"{text}_words" for text in TEXTS if text in parts)

    def _at_levels(self, text: str) -> tuple[str, ...]:
        """Returns the names of a text's embeddings at the configured levels, in their order."""
        return tuple(f"{text}_words" if level == "words" else text for level in self.options.neighbourhood_levels)

    @property
    def is_held_to_files(self) -> bool:
        """Whether word vectors are held to the files' vectors."""
        return bool(self.text_tower.word_vectors)

    def _weight(self, task):
        if task == "word_vectors":
            return WORD_VECTORS_WEIGHT
        return super()._weight(task)

    @property
    def word_vectors(self) -> tf.Variable:
        """The text tower's table, float32 [vocabulary, word_size]."""
        return self.text_encoder.get_layer("word_vectors").embeddings

    def build_head(self, name):
        if name != "words":
            return super().build_head(name)
        begin = self.text_tower.projection  # the tower's output is [s, u]
        return Columns(begin, begin + self.text_tower.language_size, name=f"{name}_head", dtype="float32")

    def width(self, head):
        return self.text_tower.language_size if head == "words" else self.embedding_size

    def neighbourhood_loss(self, *compared):
        """Returns L_LM of a batch's captions, a float32 scalar: the sum over the levels.

        Args:
          compared: the captions' embeddings at each level, `Rows` [I * slots, D], and last the batch's ids.
        """
        *levels, ids = compared
        slots = self.options.captions_per_image
        image_ids = tf.repeat(ids["image_id"], slots)
        languages = ids["caption_language_id"]
        losses = []
        for captions in levels:
            losses.append(caption_neighbourhood(captions, image_ids, languages, slots, **self.triplet_arguments))
        return tf.add_n(losses)

    def text_text_loss(self, *compared):
        """Returns L_LM of text pairs, a float32 scalar: the sum over the levels.

        Args:
          compared: `Rows` [P, D] of text_a at each level, then of text_b at each level, and last the batch's ids.
        """
        *embeddings, ids = compared
        levels = len(embeddings) // 2
        left_languages = ids["text_a_language_id"]
        right_languages = ids["text_b_language_id"]
        losses = []
        for text_a, text_b in zip(embeddings[:levels], embeddings[levels:]):
            pairs = Pairs(text_a, text_b, self.same_texts(ids))
            losses.append(pair_neighbourhood(pairs, left_languages, right_languages, **self.triplet_arguments))
        return tf.add_n(losses)

    def language_loss(self, *compared):
        """Returns L_LC, a float32 scalar: the mean over the sentences of all parts of the batch.

        Args:
          compared: the embedding u of each text, `Rows` [S, D], and last the batch's ids.
        """
        *words, ids = compared
        total = tf.zeros([])
        sentence_count = tf.zeros([])
        for name, embeddings in zip(self.tasks["language"].compares, words):
            languages = ids[f"{name.removesuffix('_words')}_language_id"]
            logits = embeddings._replace(values=self.language_classifier(reverse_gradient(embeddings.values)))
            count = tf.reduce_sum(tf.cast(languages >= 0, tf.float32))
            total += count * language_loss(logits, languages)
            sentence_count += count
        return total / tf.maximum(sentence_count, 1.0)

    def word_vectors_loss(self, words, ids):
        """Returns this replica's share of the squared distance of all word vectors to the files', a float32 scalar."""
        distance = tf.reduce_sum(tf.square(self.word_vectors - self.original_vectors))
        share = tf.cast(words.count, tf.float32) / tf.cast(words.total, tf.float32)
        return distance * share

    def weights_by_part(self):
        parts = {**super().weights_by_part(), "language_classifier": self.language_classifier}
        if self.is_held_to_files:
            parts["original_vectors"] = self.original_vectors
        return parts

    def begin(self, tokenizer, restored):
        """As `EmbN.begin`; then keeps the word vectors, to which `word_vectors_loss` holds the run."""
        super().begin(tokenizer, restored)
        if self.is_held_to_files:
            self.original_vectors.assign(self.word_vectors)

    def _check(self) -> None:
        super()._check()
        levels = self.options.neighbourhood_levels
        if set(levels) - set(LEVELS) or not levels:
            raise UserError(f"method.neighbourhood_levels={levels}: expected one or more of {', '.join(LEVELS)}.")
