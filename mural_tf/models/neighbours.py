"""Neighbours: a teacher's vectors for all texts that a student of many languages knows, without a step of training.

    v(y) = Σ_i a_i t_i,    a = softmax_i(cos(s(y), s(x_i)) / τ)

s is the student as it was trained, its tower and its own head, less its mean over the known texts: vectors of a tower
that was trained at a low temperature all lie close together. x_i is a text whose target t_i the teacher gives: captions
and the pivot's side of pairs, and with `method.translation_weight` translations, each with its other side's vector. A
text becomes a weighted mean of the known texts that the student finds closest (Nadaraya and Watson's kernel regression,
1964). τ is the value of `TEMPERATURES` that dev prefers. The known texts are a part of the model, at most
`method.most_known`; so memory and time of a query are bounded, and an export needs nothing else. Beyond that number,
translations are left out, and if need be texts of the pivot language, evenly by a hash.

Its vectors are targets, too: `method.teacher` of a stage takes such a model, for texts that no teacher has seen.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.data.streams.columns import TEXTS, Column
from mural_tf.data.streams.pipeline import stream_items
from mural_tf.data.streams.stream import fingerprints
from mural_tf.models.dual_encoder import text_head
from mural_tf.models.states import states_of_texts
from mural_tf.models.translation_distillation import TARGETS, TranslationDistillation

TEMPERATURES = (0.005, 0.007, 0.01, 0.014, 0.02, 0.03, 0.05)


class NeighboursHead(keras.layers.Layer):
    """Maps states of the student's tower, float32 [B, H], to means of the known texts' vectors, float32 [B, D].

    Args:
      own: the student's head, [B, H] → [B, E].
      student_size: E.
      size: D.
    """

    def __init__(self, own: keras.layers.Layer, student_size: int, size: int, **options):
        super().__init__(dtype="float32", **options)
        self.own = own
        self._student_size = student_size
        self._size = size

    def build(self, shape):
        self.own.build(shape)
        self.known = self._rows("known", self._student_size)
        self.vectors = self._rows("vectors", self._size)
        # 0.02 until dev chooses one of `TEMPERATURES`.
        self.temperature = tf.Variable(0.02, trainable=False, name=f"{self.name}/temperature")
        self.mean = tf.Variable(tf.zeros([self._student_size]), trainable=False, name=f"{self.name}/mean")
        super().build(shape)

    def _rows(self, name: str, width: int) -> tf.Variable:
        """Returns a variable [N, width], a row per known text; it has one row until these are set or restored."""
        zero = tf.zeros([1, width])
        return tf.Variable(zero, trainable=False, shape=[None, width], name=f"{self.name}/{name}")

    def own_vectors(self, states):
        """Returns the student's vectors of states [B, H] less their mean: float32 [B, E], L2-normalised."""
        vectors = tf.math.l2_normalize(tf.cast(self.own(states), tf.float32), axis=-1)
        return tf.math.l2_normalize(vectors - self.mean, axis=-1)

    def set_known(self, states: np.ndarray, vectors: np.ndarray) -> None:
        """Sets the known texts and their mean: the student's states, float32 [N, H], the teacher's vectors [N, D]."""
        self.mean.assign(tf.zeros_like(self.mean))  # `own_vectors` subtracts it: 0 until the mean itself is known
        self.mean.assign(self._own_vectors_in_blocks(states).mean(axis=0))
        self.known.assign(self._own_vectors_in_blocks(states))
        self.vectors.assign(vectors)

    def _own_vectors_in_blocks(self, states: np.ndarray) -> np.ndarray:
        """Returns `own_vectors` of states [N, H], computed in blocks: float32 [N, E]."""
        blocks = []
        for begin in range(0, len(states), TEXTS):
            vectors = self.own_vectors(states[begin : begin + TEXTS])
            blocks.append(vectors.numpy())
        return np.concatenate(blocks)

    def call(self, states):
        cosines = tf.matmul(self.own_vectors(states), self.known, transpose_b=True)  # [B, N]
        shares = tf.nn.softmax(cosines / self.temperature, axis=-1)
        return tf.matmul(shares, self.vectors)


class KnownTexts(TranslationDistillation):
    """Base of methods that compute a head from a teacher's vectors of known texts, without steps and batches.

    Attributes:
      chooses: the name of the head's only free number, for messages.
      choices: the values that it may have, of which the best on dev is taken.
    """

    fields = dict(TranslationDistillation.taught, most_known=2**16)  # texts
    _is_cached = True  # all targets are made before `learn`
    chooses: ClassVar[str] = ""
    choices: ClassVar[tuple[float, ...]] = ()

    def choose(self, value: float, head: keras.layers.Layer) -> None:
        """Sets the free number of a head of this method, the model's or a copy of it, to one of `choices`."""
        raise NotImplementedError

    def learn_from(self, states: np.ndarray, vectors: np.ndarray) -> None:
        """Computes the head from the student's states, float32 [N, H], and the teacher's vectors, float32 [N, D]."""
        raise NotImplementedError

    def _check(self):
        if not self.options.teacher:  # run_finetune.py, given a student, always sets a teacher
            name = type(self).__name__.lower()
            raise UserError(f"{name} needs a student: run_finetune.py --config.method.student=MODEL.")
        if self.options.most_known < 1:
            raise UserError(f"method.most_known={self.options.most_known}: expected 1 or more.")

    def learn(self, config, tokenizer, workdir) -> None:
        """Computes the head from all known texts of the training data; called once, in place of a run's steps."""
        texts, vectors = self._known_texts(config, tokenizer, self.target_columns(config, tokenizer, workdir))
        print(f"Embedding {len(texts):,} known texts by the student …", flush=True)
        states = states_of_texts(texts, self, config, tokenizer, workdir)
        self.learn_from(states.find(fingerprints(texts)), vectors)

    def _known_texts(self, config, tokenizer, columns) -> tuple[list[bytes], np.ndarray]:
        """Returns the texts that have a target, and their targets, float32 [N, D], in the order of their keys.

        At most `method.most_known` texts stay, see `with_smallest_keys`; a line is printed if some go. `columns`
        is the result of `target_columns`.
        """
        most = self.options.most_known
        pairs = {}  # as `_pairs_with_targets` returns them
        too_many = False
        for task in self.loss_weights():
            text, target = self.tasks[task].compares
            column, id_entry = columns[target]
            # With several pivots a target is its group's mean and has the group's key; else it has its text's key.
            target_entry = "group_id" if id_entry == "text_group_id" else TARGETS[target]
            for texts, target_texts in stream_items(config, tokenizer, self.tasks[task].stream, (text, target_entry)):
                pairs.update(_pairs_with_targets(texts, target_texts, column))
                if len(pairs) > 2 * most:  # twice, so that they are not sorted again for every block
                    pairs = with_smallest_keys(pairs, most)
                    too_many = True
        if too_many or len(pairs) > most:
            pairs = with_smallest_keys(pairs, most)
            print(f"More texts are known than method.most_known={most}: {len(pairs):,} of the pivot stay.", flush=True)
        texts = []
        vectors = []
        for keys in sorted(pairs):
            known_text, vector = pairs[keys]
            texts.append(known_text)
            vectors.append(vector)
        return texts, np.stack(vectors).astype(np.float32)


class Neighbours(KnownTexts):
    """Kernel regression over known texts; needs `method.student` and `method.teacher`."""

    title = "Neighbours: a teacher's vectors, averaged over the known texts that a student finds closest"
    fields = {
        **KnownTexts.fields,
        "student_size": 0,  # numbers in the student's vectors; run_finetune.py sets it
    }
    chooses = "temperature"
    choices = TEMPERATURES

    def build_head(self, name):
        own = text_head(self.options.student_size, self.text_tower.head_hidden_size, "student_head")
        return NeighboursHead(own, self.options.student_size, self.embedding_size, name=f"{name}_head")

    def _check(self):
        super()._check()
        if not self.options.student_size:  # run_finetune.py has seen no student
            raise UserError("neighbours needs a student: run_finetune.py --config.method.student=MODEL.")

    def learn_from(self, states, vectors):
        self.image_text_head.set_known(states, vectors)

    def choose(self, value, head):
        head.temperature.assign(value)


def _pairs_with_targets(texts, target_texts, column: Column) -> dict[tuple[int, int], tuple]:
    """Returns {(text's key, its target text's key): (text, target vector, float16 [D])} of texts that have a target."""
    text_keys = fingerprints(texts)
    target_keys = fingerprints(target_texts)
    vectors = column.find(target_keys)
    pairs = {}
    for row in np.flatnonzero(vectors.any(axis=1)):  # the column has zeros for a text without a vector
        keys = int(text_keys[row]), int(target_keys[row])
        pairs[keys] = texts[row], vectors[row].astype(np.float16)
    return pairs


def with_smallest_keys(pairs: dict[tuple[int, int], tuple], most: int) -> dict[tuple[int, int], tuple]:
    """Returns the `most` entries with the smallest keys, or all if they are fewer: keys are hashes, so as if drawn.

    If any text is its own target, translations are left out, all of them: a part of them is worse than no translation,
    because other texts are drawn to the known translations.

    Args:
      pairs: {(text's key, its target text's key): …}; a text that is its own target has two equal keys.
      most: how many entries may stay.
    """
    own_targets = {keys: pair for keys, pair in pairs.items() if keys[0] == keys[1]}
    candidates = own_targets or pairs
    return {keys: candidates[keys] for keys in sorted(candidates)[:most]}
