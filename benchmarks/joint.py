"""The stage of translations without a stage: MURAL with its loss from the first step, an ablation.

    python run_pretrain.py --config=configs/emoji_mural.py --config.model=benchmarks.joint:JointDistillation --workdir=…

    L = L_MURAL + w_t L(y, T(x)),    L(y, t) = mean of 1 - cos(y, t)

T is a moving average of the text tower and the image-text head while they train, x the side of a translation pair in
the pivot language and y its translation, both through the image-text head. Pairs without the pivot are left out.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.encoders import build_text_encoder
from mural_tf.losses.distillation import cosine_loss
from mural_tf.models.dual_encoder import TEXT_PAIRS, Embedding, Task
from mural_tf.models.mural import Mural
from mural_tf.models.translation_distillation import TranslationDistillation


class JointDistillation(Mural):
    """Batches are MURAL's; `text_a` is the side in the pivot language."""

    fields = dict(pivot="en", teacher_decay=0.99, translation_weight=1.0)
    embeddings = {
        **Mural.embeddings,
        "translation": Embedding("text_b", head="image_text"),
        "target": Embedding("text_a", made_by="teach"),
    }
    tasks = {**Mural.tasks, "translation": Task(TEXT_PAIRS, ("translation", "target"))}

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self.vocabulary_size = config.vocabulary_size

    def compile(self, optimizers, **kwargs):
        """As `DualEncoder.compile`; the teacher begins as the student."""
        self.teacher = build_text_encoder(self.text_tower, self.vocabulary_size)
        self.teacher_head = self.build_head("image_text")
        self.teacher_head.build([None, self.text_encoder.embedding_size])
        for average, variable in self._averages():
            average.assign(variable)
        self.teacher.trainable = self.teacher_head.trainable = False
        super().compile(optimizers, **kwargs)

    def _averages(self):
        for one, other in ((self.teacher, self.text_encoder), (self.teacher_head, self.image_text_head)):
            yield from zip(one.variables, other.variables)

    def training_parts(self):
        return {"teacher": self.teacher, "teacher_head": self.teacher_head}

    teach = TranslationDistillation.teach  # here the teacher is the average

    @tf.autograph.experimental.do_not_convert
    def train_step(self, batch):
        """MURAL's, and the average moves."""
        logs = super().train_step(batch)
        for average, variable in self._averages():
            average.assign(average + (variable - average) * (1.0 - self.options.teacher_decay))
        return logs

    def translation_loss(self, translation, target, ids, rows):
        """L(y, T(x))."""
        return cosine_loss(translation, target, rows=rows["translation"])
