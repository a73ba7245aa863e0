"""Linear: a student's states mapped into a teacher's space by a ridge regression, without a step of training.

    W = (X'X + λ tr(X'X) / H · I)^-1 X'T,    v(y) = (s(y) - x̄) W + t̄

s are the states of the student's tower, float [H], without its own head. The rows of X are the states of the known
texts less their mean x̄, the rows of T the teacher's vectors of them less their mean t̄ (Hoerl and Kennard, "Ridge
Regression", 1970). λ is the value of `RIDGES` that dev prefers. W and the means become the kernel and the bias of the
head, a dense layer, so nothing of the known texts stays in the model.

The known texts may be of one language: between two towers that know meaning the map carries the student's other
languages, as Mikolov et al., "Exploiting Similarities among Languages for Machine Translation" (2013), have it for
words. Into the space of a teacher that knows a few thousand names it carries little; there `neighbours` do.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from mural_tf.models.neighbours import KnownTexts

RIDGES = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # in mean variances of a state's number


def moments(states: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns float64 X'X / N [H, H], X'T / N [H, D], x̄ [H] and t̄ [D] of states [N, H] and vectors [N, D]."""
    states = states.astype(np.float64)
    vectors = vectors.astype(np.float64)
    mean_state = states.mean(axis=0)
    mean_vector = vectors.mean(axis=0)
    centred = states - mean_state
    covariance = centred.T @ centred / len(states)
    cross = centred.T @ (vectors - mean_vector) / len(states)
    return covariance, cross, mean_state, mean_vector


def ridge(covariance, cross, mean_state, mean_vector, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kernel W, float64 [H, D], and the bias t̄ - x̄ W, float64 [D].

    Args:
      covariance, cross, mean_state, mean_vector: the `moments` of the known texts.
      strength: λ.
    """
    size = len(covariance)
    penalty = strength * np.trace(covariance) / size
    kernel = np.linalg.solve(covariance + penalty * np.eye(size), cross)
    bias = mean_vector - mean_state @ kernel
    return kernel, bias


class Linear(KnownTexts):
    """A ridge regression from a student's states to a teacher's vectors: `method.student` and `method.teacher`."""

    title = "Linear: a student's states mapped into a teacher's space by a ridge regression"
    fields = dict(KnownTexts.fields, heads_of="align")  # whose head is one dense layer: `choose` sets it
    chooses = "ridge"
    choices = RIDGES

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        hidden = text_encoder.embedding_size
        size = config.embedding_size
        shapes = dict(covariance=[hidden, hidden], cross=[hidden, size], mean_state=[hidden], mean_vector=[size])
        self.moments = {}  # in the order in which `moments` returns them
        for name, shape in shapes.items():
            zeros = tf.zeros(shape, tf.float64)
            self.moments[name] = tf.Variable(zeros, trainable=False, name=name)

    def training_parts(self):
        return {**super().training_parts(), **self.moments}

    def learn_from(self, states, vectors):
        for variable, value in zip(self.moments.values(), moments(states, vectors)):
            variable.assign(value)
        self.choose(1e-2, self.image_text_head)  # until dev chooses one of `RIDGES`

    def choose(self, value, head):
        values = [variable.numpy() for variable in self.moments.values()]
        kernel, bias = ridge(*values, strength=value)
        head.kernel.assign(kernel.astype(np.float32))
        head.bias.assign(bias.astype(np.float32))
