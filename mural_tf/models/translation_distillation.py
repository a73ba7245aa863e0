"""Translation distillation: a stage that teaches a trained model's text tower translations in the images' space.

    L = w_t [ L(x, T(x)) + L(y, T(x)) ] + w_c L(c, T(c)),    L(z, t) = mean of 1 - cos(z, t)

x is the side of a translation pair in the pivot language and y its translation, c a caption of training. T embeds
texts as the model did when the stage began, through the image-text head, and never changes. So y comes to stand where
pictures find x, x and c stay, and no picture is read: the image tower stays as it is.

The first two terms are the multilingual distillation of Reimers and Gurevych, "Making Monolingual Sentence Embeddings
Multilingual using Knowledge Distillation" (2020), Eq. 1, with the cosine in place of the squared distance. Carlsson et
al., "Cross-lingual and Multilingual CLIP" (2022), teach a second text tower that of CLIP in this way. Here the student
begins as the teacher, and the third term is ours.

Start it with `run_finetune.py --from=…`. What it leaves has the image-text head alone, for images and for texts: a
text-text head would not fit the tower any more.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.encoders import build_text_encoder
from mural_tf.encoders.packing import encode_by_length
from mural_tf.errors import UserError
from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.distillation import cosine_loss
from mural_tf.models.dual_encoder import DualEncoder, Embedding, Task

LOSSES = ("cosine", "softmax")
FIRST = "embeddings_and_first"
TRAINED = ("all", FIRST)
FIRST_LAYERS = ("embeddings", "layer_0")  # of the BERT tower


class TranslationDistillation(DualEncoder):
    """Batches hold `text_a`, the side in the pivot language, `text_b`, `caption` (tokens) and their ids."""

    title = "Translation distillation: translations taught in the images' space (after Reimers and Gurevych, 2020)"
    starts_from = ("align", "mural", "etcl", "siglip", "translation_distillation")
    fields = dict(
        pivot="en",  # the language of each pair's side that is the target; pairs without it are left out
        loss="cosine",  # or "softmax": the target among those of the whole batch, in both directions
        softmax_temperature=0.05,  # of the softmax, fixed
        trained="all",  # the text tower and its head; or "embeddings_and_first": BERT's embeddings and first layer
        translation_weight=1.0,  # w_t
        captions_weight=1.0,  # w_c; 0: captions are not read
    )
    embeddings = {
        "caption": Embedding("caption", head="image_text"),
        "text_a": Embedding("text_a", head="image_text"),
        "text_b": Embedding("text_b", head="image_text"),
        "caption_target": Embedding("caption", made_by="teach"),
        "text_target": Embedding("text_a", made_by="teach"),
    }
    tasks = {
        "translation": Task("text_text", ("text_b", "text_a", "text_target"), pair=("text_b", "text_target")),
        "captions": Task("captions", ("caption", "caption_target")),
    }

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self.vocabulary_size = config.vocabulary_size
        self._check()
        if self.options.trained == FIRST:
            self._hold_what_follows_the_first_layer()

    def _check(self) -> None:
        options = self.options
        if options.trained not in TRAINED:
            raise UserError(f"Unknown method.trained {options.trained!r}; known: {', '.join(TRAINED)}.")
        if options.trained == FIRST and not hasattr(self.text_encoder, "token_states"):
            raise UserError(f"method.trained={FIRST} needs text_tower.name=bert, got {self.text_tower.name}.")
        if options.loss not in LOSSES or options.softmax_temperature <= 0 or not options.pivot:
            raise UserError(
                f"method.loss={options.loss!r}, method.softmax_temperature={options.softmax_temperature}, method.pivot="
                f"{options.pivot!r}: expected {' or '.join(LOSSES)}, a number above 0, and a language such as 'en'."
            )

    def _hold_what_follows_the_first_layer(self) -> None:
        for layer in (*self.text_encoder.layers, self.image_text_head):
            if layer.name not in FIRST_LAYERS:
                layer.trainable = False

    # The teacher.

    def compile(self, optimizers, **kwargs):
        """As `DualEncoder.compile`; the teacher is made of the weights that the model has at this moment."""
        self.teacher = build_text_encoder(self.text_tower, self.vocabulary_size)
        self.teacher_head = self.build_head("image_text")
        self.teacher_head.build([None, self.image_text_head.kernel.shape[0]])
        for part, source in ((self.teacher, self.text_encoder), (self.teacher_head, self.image_text_head)):
            for variable, value in zip(part.variables, source.variables):
                variable.assign(value)
            part.trainable = False
        super().compile(optimizers, **kwargs)

    def training_parts(self):
        return {"teacher": self.teacher, "teacher_head": self.teacher_head}

    def teach(self, tokens: dict, training: bool) -> tf.Tensor:
        """The teacher's float32 [B, D] of each text, L2-normalised, without gradient; `training` changes nothing."""
        states = encode_by_length(self.teacher, tokens, self.text_tower.length_groups, training=False)
        targets = tf.math.l2_normalize(tf.cast(self.teacher_head(states), tf.float32), axis=-1)
        return tf.stop_gradient(targets)

    # The losses.

    def translation_loss(self, text_b, text_a, target, ids, rows):
        """L(x, T(x)) + L(y, T(x))."""
        mine, matches = rows["text_b"], self.text_matches(ids)
        return self._distance(text_a, target, matches, mine) + self._distance(text_b, target, matches, mine)

    def captions_loss(self, caption, target, ids, rows):
        """L(c, T(c))."""
        return self._distance(caption, target, self.matches(ids, "caption_id"), rows["caption"])

    def _distance(self, embeddings, targets, matches, rows) -> tf.Tensor:
        if self.options.loss == "cosine":
            return cosine_loss(embeddings, targets, rows=rows)
        return contrastive_loss(embeddings, targets, self.options.softmax_temperature, matches=matches, rows=rows)

    def begin(self, tokenizer, restored):
        """Raises `UserError` if there is nothing to learn from."""
        if not restored:
            raise UserError("translation_distillation needs a trained model to learn from: run_finetune.py --from=….")
