"""Translation distillation: a stage that teaches a trained model's text tower translations in the images' space.

    L = w_t L(y, T(x)) + w_p L(x, T(x)) + w_c L(c, T(c)),    L(z, t) = mean of 1 - cos(z, t)

x is the side of a translation pair in the pivot language and y its translation, c a caption of training. T embeds
texts as the model did when the stage began, through the image-text head, and never changes. So y moves to where
pictures find x, x and c stay, and no picture is read: the image tower stays as it is. With several pivot languages the
target of both sides is the mean of T over all texts in them that say the same.

The first two terms are the multilingual distillation of Reimers and Gurevych, "Making Monolingual Sentence Embeddings
Multilingual using Knowledge Distillation" (2020), Eq. 1, with the cosine in place of the squared distance. Carlsson et
al., "Cross-lingual and Multilingual CLIP" (2022), teach a second text tower CLIP's texts in this way. Here the student
begins as the teacher, so x is where it shall be from the start, and w_p may be 0 where captions hold it there. The
third term is ours.

With `method.teacher` T is another model, or a folder of vectors, and with `method.student` the text tower another
model's, whose vocabulary and languages it keeps; its head begins anew. The student meets only T's vectors. So any
tower of texts learns the space of any model of pictures, without a picture.

T does not change, so each target is the same in every epoch: `method.cached` makes them all before the first step, each
different text once, as a column (`data/streams/columns.py`); the targets of another T always are. That is cheaper where
the run meets its texts more than once. So are the states of a frozen text tower, of which only the head is trained.

Start it with `run_finetune.py --from=…`. The result has only the image-text head, for images and for texts: a
text-text head would no longer fit the tower.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.data.streams.columns import Column, ColumnFolder, Embed
from mural_tf.data.streams.pipeline import stream_items
from mural_tf.data.streams.stream import fingerprints
from mural_tf.data.streams.text_text import MEAN, MOST_PAIRED, pivots_of
from mural_tf.encoders import build_text_encoder
from mural_tf.encoders.by_length import encode_by_length
from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.pairs import Pairs
from mural_tf.models import method_class, takes_steps
from mural_tf.models.dual_encoder import TEXT_PAIRS, Embedding, Task
from mural_tf.models.states import data_digest, digest_of, text_states, texts_to_vectors
from mural_tf.models.temperature import LearnedTemperature

LOSSES = ("cosine", "softmax")
TEMPERATURE = 0.05  # of the softmax, fixed
FIRST = "embeddings_and_first"
TRAINED = ("all", FIRST)
FIRST_LAYERS = ("embeddings", "layer_0")  # of the BERT tower
TEXTS = ("caption", "text_a", "text_b")
TARGETS = {"caption_target": "caption", "text_target": "text_a"}  # {target: the text that it embeds}


class TranslationDistillation(LearnedTemperature):
    """Batches hold `text_a`, the side in a pivot language, `text_b`, `caption` (tokens) and their ids; and targets."""

    title = "Translation distillation: translations taught in the images' space (after Reimers and Gurevych, 2020)"
    starts_from = "a model with an image-text head"
    sized_by = TEXT_PAIRS
    outside_teacher = None  # the `runs.teachers.Teacher` of `method.teacher`, once a run has opened it
    taught = dict(  # also by methods that take no steps
        # The language of each pair's side that is the target; pairs without it are left out. "": the language with most
        # pairs among the languages with many captions. "en+de", or "mean" for all of these: the mean of their texts.
        pivot=MOST_PAIRED,
        teacher="",  # a model or a folder of vectors of texts; "": the model as it was when the stage began
        student="",  # a model whose text tower and vocabulary take the source's place; "": the source's stay
        translation_weight=1.0,  # w_t
        pivot_weight=1.0,  # w_p; 0: the pivot's side is not embedded
        captions_weight=1.0,  # w_c; 0: captions are not read
    )
    fields = dict(
        taught,
        heads_of="align",  # the method whose kind of heads the model has; run_finetune.py sets it to the source's
        cached=False,  # embed all targets before the first step, each once, in place of every batch's in its step
        loss="cosine",  # or "softmax": the target among all targets of the batch, in both directions
        trained="all",  # the text tower and its head; or "embeddings_and_first": BERT's embeddings and first layer
    )
    tasks = {
        "translation": Task(TEXT_PAIRS, ("text_b", "text_target"), pair=("text_b", "text_target")),
        "pivot": Task(TEXT_PAIRS, ("text_a", "text_target")),
        "captions": Task("captions", ("caption", "caption_target")),
    }

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self._check()
        if self.options.get("trained") == FIRST:
            for layer in (*self.text_encoder.layers, self.image_text_head):
                if layer.name not in FIRST_LAYERS:
                    layer.trainable = False

    def build_head(self, name):
        owner = method_class(self.options.heads_of)
        if not owner.has_image_text_head():
            raise UserError(f"method.heads_of={self.options.heads_of!r}: expected a method with an image-text head.")
        return owner.build_head(self, name)  # a head of the source's kind, so that its weights fit

    @classmethod
    def has_image_text_head(cls):
        return True

    @classmethod
    def may_start_from(cls, source):
        return source.has_image_text_head() and takes_steps(source)

    def _check(self) -> None:
        """Raises `UserError` for fields that the method cannot have."""
        options = self.options
        if options.trained not in TRAINED:
            raise UserError(f"Unknown method.trained {options.trained!r}; known: {', '.join(TRAINED)}.")
        if options.trained == FIRST and not hasattr(self.text_encoder, "token_states"):
            raise UserError(f"method.trained={FIRST} needs text_tower.name=bert, got {self.text_tower.name}.")
        if options.loss not in LOSSES:
            raise UserError(f"Unknown method.loss {options.loss!r}; known: {', '.join(LOSSES)}.")
        if self._has_means and not self._is_cached:
            raise UserError(
                f"method.pivot={options.pivot} is a mean over texts of many records, which no batch holds: set "
                "method.cached=True, or one language."
            )

    @property
    def _has_means(self) -> bool:
        """Whether targets are means over texts in several pivot languages."""
        return self.options.pivot == MEAN or "+" in self.options.pivot

    @property
    def _is_cached(self) -> bool:
        """Whether all targets are made before the first step."""
        return self.options.cached or bool(self.options.teacher)

    @property
    def embeddings(self):
        """{name: `Embedding`}; targets are vectors of the batch where they are cached, else the teacher's."""
        embeddings = {name: Embedding(name, head="image_text") for name in TEXTS}
        for target, text in TARGETS.items():
            if self._is_cached:
                embeddings[target] = Embedding(target, is_given=True)
            else:
                embeddings[target] = Embedding(text, function="teach")
        return embeddings

    # The teacher.

    def compile(self, *args, **kwargs):
        """As `DualEncoder.compile`; without `method.teacher` the teacher is the model as it is now."""
        if self.options.teacher:
            self.teacher_digest = tf.Variable(0, trainable=False, dtype=tf.int64)  # 0: not known yet
        else:
            self._copy_teacher()
        super().compile(*args, **kwargs)

    def _copy_teacher(self) -> None:
        """Makes `teacher` and `teacher_head` of the text tower and the head as they are now; they are never trained."""
        self.teacher_head = self.build_head("image_text")
        self.teacher_head(tf.zeros([1, self.text_encoder.embedding_size]))  # makes its variables
        copies = {self.teacher_head: self.image_text_head}  # {copy: source}
        if self.text_tower.frozen:  # it stays as it is, so it is the teacher's, too
            self.teacher = self.towers.text_encoder
        else:
            self.teacher = build_text_encoder(self.text_tower, self.vocabulary_size)
            copies[self.teacher] = self.text_encoder
        for part, source in copies.items():
            for variable, value in zip(part.variables, source.variables):
                variable.assign(value)
            part.trainable = False

    def training_parts(self):
        if self.options.teacher:
            return {"teacher_digest": self.teacher_digest}
        parts = {"teacher_head": self.teacher_head}
        if not self.text_tower.frozen:
            parts["teacher"] = self.teacher
        return parts

    def teach(self, texts: dict | tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the teacher's vectors, float32 [B, D], L2-normalised, without gradient.

        Args:
          texts: tokens, or the states of a frozen tower, float32 [B, H].
          training: unused: the teacher never draws. An `Embedding.function` has this argument.
        """
        states = texts
        if not tf.is_tensor(texts):
            groups = self.text_tower.length_groups
            states = encode_by_length(self.teacher, texts, groups, False, self.compiled_lengths)
        targets = tf.math.l2_normalize(tf.cast(self.teacher_head(states), tf.float32), axis=-1)
        return tf.stop_gradient(targets)

    def columns(self, config, tokenizer, workdir):
        """As `DualEncoder.columns`: the columns of targets that are cached, after making the missing targets.

        Raises `UserError` if `method.teacher` is another model than when the run began.
        """
        if not self._is_cached:
            return {}
        if self.options.teacher:
            digest = np.frombuffer(bytes.fromhex(self._teacher_id), np.int64)[0]  # checkpoints hold it as a number
            if int(self.teacher_digest) not in (0, digest):  # 0: the run begins
                raise UserError(
                    f"method.teacher={self.options.teacher} is not the teacher that this run began with: give the "
                    "first teacher again, or name another --workdir."
                )
            self.teacher_digest.assign(digest)
        return self.target_columns(config, tokenizer, workdir)

    def target_columns(self, config, tokenizer, workdir) -> dict[str, tuple[Column, str]]:
        """Returns {target in use: (its column, the entry with its ids)}, after embedding the texts without a target.

        Raises `UserError` if more texts than `data.max_skipped_fraction`, or any for the softmax, get no vector.
        """
        pivots = pivots_of(config.data, self.options.pivot)
        used = [name for name in TARGETS if name in self.used]
        if self.options.teacher:
            embed = self.towers.outside_teacher.embed
            dtype = "float16"
        else:
            embed = self._embedder(config, tokenizer, workdir)
            dtype = "float32"  # as precise as the targets of `teach` in a step
        targets = ColumnFolder(workdir / ".targets", self.embedding_size, dtype, self._teacher_id)
        made_for = data_digest(config, self.streams, *pivots, "", *used)
        if not targets.is_made_for(made_for):
            print(f"Embedding texts as targets, in {', '.join(pivots)} …", flush=True)
            members: list[np.ndarray] = []  # (groups, keys), int64 [2, M] each; the generator adds to it
            targets.extend(self._keyed_texts(config, tokenizer, pivots, used, members), embed)
            if members:
                groups, keys = np.concatenate(members, axis=1)
                targets.write_means(groups, keys)
            targets.mark_complete(made_for, config.data.max_skipped_fraction)
        if self.options.get("loss") == "softmax" and targets.state["missing"]:
            raise UserError("method.loss=softmax needs a vector of the teacher's for every text: leave it at cosine.")
        column = targets.column()
        columns = {"caption_target": (column, "caption_id"), "text_target": (column, "text_a_id")}
        if len(pivots) > 1:
            columns["text_target"] = targets.column("group_"), "text_group_id"
        return {name: columns[name] for name in used}

    @property
    def _teacher_id(self) -> str:
        """16 hexadecimal digits that differ between teachers."""
        if self.options.teacher:
            return self.towers.outside_teacher.digest
        return digest_of((*self.teacher.variables, *self.teacher_head.variables))

    def _keyed_texts(self, config, tokenizer, pivots, used, members) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (keys, int64 [B], and texts) of text_a of pairs, of text_b in a pivot language, and of captions.

        Args:
          pivots: the pivot languages.
          used: the targets in use, keys of `TARGETS`: only their texts are read.
          members: with several pivots (groups, keys), int64 [2, B], of each block are added here, so that the data are
            read once: a group's target is the mean over the texts of its keys.
        """
        if "text_target" in used:
            names = ("text_a", "text_b", "language_b", "group_id")
            for text_a, text_b, language_b, group_id in stream_items(config, tokenizer, "text_text", names):
                is_pivot = np.isin(language_b, [name.encode() for name in pivots])  # text_a is in a pivot always
                texts = np.concatenate([text_a, text_b[is_pivot]])
                keys = fingerprints(texts)
                if len(pivots) > 1:
                    groups = fingerprints(group_id)
                    members.append(np.stack([np.concatenate([groups, groups[is_pivot]]), keys]))
                yield keys, texts
        if "caption_target" in used:
            for (captions,) in stream_items(config, tokenizer, "captions", ("caption",)):
                yield fingerprints(captions), captions

    def _embedder(self, config, tokenizer, workdir) -> Embed:
        """Returns the copied teacher as a function of N texts to float32 [N, D].

        With a frozen text tower it first makes the texts' states, which all runs share, and computes only the head.
        """
        if not self.text_tower.frozen or self.text_tower.name == "words":
            return texts_to_vectors(lambda tokens: self.teach(tokens, training=False), tokenizer)

        states = text_states(self.towers, config, tokenizer, workdir)  # of all texts of the run

        def embed(texts: list[bytes]) -> np.ndarray:
            keys = fingerprints(texts)
            return self.teach(tf.constant(states.find(keys)), training=False).numpy()

        return embed

    # The losses: of texts and targets, `Rows` [N, D] each, float32 scalars.

    def translation_loss(self, text_b, target, ids):
        """Returns L(y, T(x))."""
        return self._distance(Pairs(text_b, target, self.same_texts(ids)))

    def pivot_loss(self, text_a, target, ids):
        """Returns L(x, T(x))."""
        return self._distance(Pairs(text_a, target, self.same_texts(ids)))

    def captions_loss(self, caption, target, ids):
        """Returns L(c, T(c))."""
        return self._distance(Pairs(caption, target, self.same(ids, "caption_id")))

    def _distance(self, pairs: Pairs) -> tf.Tensor:
        """Returns L of texts (left) and their targets (right) by `method.loss`, a float32 scalar."""
        if self.options.loss == "cosine":
            return pairs.mean(1.0 - pairs.own_cosines)
        return contrastive_loss(pairs, TEMPERATURE)

    def begin(self, tokenizer, restored):
        """Raises `UserError` unless the weights come from a trained model, which is the teacher."""
        if not restored:
            raise UserError("translation_distillation needs a trained model to learn from: run_finetune.py --from=….")
