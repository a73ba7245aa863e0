"""The text tower of EmbN, PARALLEL-EmbN and MULE: word vectors, a projection per language, a recurrent sentence branch.

[MULE] (Kim et al., 2020), figure 2. Each language has its own word vectors and one Dense layer from them into the
universal language embedding. The mean of a sentence's words there is u; the last state of a recurrent layer over them
goes through a Dense layer and gives s. The tower returns both, [s, u], not normalised.

    MULE, and EmbN with one language     one sentence branch for all languages
    PARALLEL-EmbN                        each language has its own

The recurrent layer is the paper's LSTM; the released code has a GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.kernels import dtype_policy
from mural_tf.encoders.towers import token_inputs


class PerLanguage(keras.layers.Layer):
    """A layer for each language; each row of the inputs goes through its language's layer, or the only layer.

    Two ways give the same numbers. By parts: a layer computes only the rows of its language; sizes then depend on the
    data, which a CPU or GPU allows. By masks: each layer computes all rows, and each row takes the result of its
    language; this is more work, but sizes are fixed, as a TPU needs.

    Args:
      languages: the languages' names, in the order of their numbers.
      build_layer: builds the layer of a language's name; it takes one tensor per input, rows first, and returns one.
      fixed_sizes: whether rows go by masks, instead of by parts.
    """

    def __init__(self, languages: Sequence[str], build_layer: Callable, fixed_sizes: bool, **options):
        super().__init__(**options)
        self.fixed_sizes = fixed_sizes
        self.layers_by_language = [build_layer(language) for language in languages]

    def call(self, inputs, training=None):
        """Returns [B, …] for `inputs`: the rows' languages, int32 [B], then tensors [B, …] that the layers take.

        With several languages, a row with a number that no language has gives 0.
        """
        language, *values = inputs
        if len(self.layers_by_language) == 1:
            return self.layers_by_language[0](*values)
        if self.fixed_sizes:
            return self._by_masks(language, values)
        return self._by_parts(language, values)

    def _by_masks(self, language: tf.Tensor, values: list[tf.Tensor]) -> tf.Tensor:
        """Returns [B, …]: each row's output, of its language's layer, where all layers compute all rows."""
        outputs = []
        for number, layer in enumerate(self.layers_by_language):
            output = layer(*values)
            is_in_language = tf.equal(language, number)  # [B]
            is_in_language = tf.reshape(is_in_language, [-1] + [1] * (output.shape.rank - 1))  # [B, 1, …]
            outputs.append(tf.where(is_in_language, output, tf.zeros([], output.dtype)))
        return tf.add_n(outputs)

    def _by_parts(self, language: tf.Tensor, values: list[tf.Tensor]) -> tf.Tensor:
        """Returns [B, …]: each row's output, of its language's layer, which computes only these rows."""
        outputs = []
        rows_by_language = []
        for number, layer in enumerate(self.layers_by_language):
            rows = tf.cast(tf.where(tf.equal(language, number))[:, 0], tf.int32)
            rows_by_language.append(rows)
            outputs.append(layer(*(tf.gather(value, rows) for value in values)))
        outputs = tf.concat(outputs, axis=0)
        # A sum in which each row of B has one term; a row without a language has no term, which gives 0.
        return tf.math.unsorted_segment_sum(outputs, tf.concat(rows_by_language, axis=0), tf.shape(language)[0])


BRANCHES = ("shared", "parallel")
VECTOR_DEVIATION = 0.1  # of random word vectors


def build_recurrent(config: ConfigDict, vocabulary_size: int) -> keras.Model:
    """Builds the tower that `config`, a `text_tower`, describes: three int32 [B, T] inputs -> float32 [B, P + U].

    `input_type_ids` holds the number of each row's language in `languages`. The output is [s, u] as above: s has P,
    `projection`, numbers and u has U, `language_size`. With `length_groups` above 1, `PerLanguage` goes by parts, else
    by masks. `frozen_words` keeps the word vectors as they are. Raises `UserError` for values that cannot be built.
    """
    _check(config)
    policy = dtype_policy(config.precision, "text")
    fixed_sizes = config.length_groups == 1  # as a TPU's configuration has it
    inputs = token_inputs()
    language = inputs["input_type_ids"][:, 0]  # [B]
    mask = inputs["input_mask"]
    word_vectors = keras.layers.Embedding(  # a word's id says its language too: one table for all
        vocabulary_size,
        config.word_size,
        embeddings_initializer=keras.initializers.TruncatedNormal(stddev=VECTOR_DEVIATION),
        name="word_vectors",
        dtype="float32",
    )(inputs["input_word_ids"])  # [B, T, word_size]

    def build_projection(name):
        return keras.layers.Dense(config.language_size, name=f"language_{name}", dtype=policy)

    def build_branch(name):
        return SentenceBranch(config, name=f"sentence_branch_{name}", dtype=policy)

    words = PerLanguage(config.languages, build_projection, fixed_sizes, name="universal_embedding", dtype=policy)(
        [language, tf.cast(word_vectors, policy.compute_dtype)]
    )  # [B, T, U]
    if config.language_branches == "shared":
        sentence = SentenceBranch(config, name="sentence_branch", dtype=policy)(words, mask)  # [B, P]
    else:
        sentence = PerLanguage(config.languages, build_branch, fixed_sizes, name="sentence_branches", dtype=policy)(
            [language, words, mask]
        )  # [B, P]
    mean = _mean_of_words(words, mask)  # [B, U]
    states = tf.concat([tf.cast(sentence, tf.float32), mean], axis=1)  # [B, P + U]
    model = keras.Model(inputs, states, name="text_encoder")
    model.embedding_size = states.shape[-1]
    model.trainable = not config.frozen
    if config.frozen_words:
        model.get_layer("word_vectors").trainable = False
    return model


def _mean_of_words(words: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns the mean over each text's words, [B, T, U] with an int32 mask [B, T]: float32 [B, U]; 0 without words."""
    word_weights = tf.cast(mask, tf.float32)[:, :, None]  # [B, T, 1], 1 for a word, 0 for padding
    total = tf.reduce_sum(tf.cast(words, tf.float32) * word_weights, axis=1)
    return total / tf.maximum(tf.reduce_sum(word_weights, axis=1), 1.0)


class SentenceBranch(keras.layers.Layer):
    """An LSTM over words [B, T, U] with int32 mask [B, T] -> [B, P]: the last word's state, through a Dense layer."""

    def __init__(self, config: ConfigDict, **options):
        super().__init__(**options)
        # A cell, not cuDNN's layer: it is traced faster, and PARALLEL-EmbN has one for each language.
        cell = keras.layers.LSTMCell(config.hidden_size, name="cell", dtype=self.dtype_policy)
        self.recurrent = keras.layers.RNN(cell, name="lstm", dtype=self.dtype_policy)
        self.projection = keras.layers.Dense(config.projection, name="projection", dtype=self.dtype_policy)

    def call(self, words, mask):
        return self.projection(self.recurrent(words, mask=tf.cast(mask, tf.bool)))


def _check(config: ConfigDict) -> None:
    """Raises `UserError` for values of a `text_tower` that cannot be built with word vectors."""
    if not config.languages:
        raise UserError("text_tower.name='words' needs text_tower.languages, such as en,de,fr,cs.")
    if config.language_branches not in BRANCHES:
        raise UserError(
            f"Unknown text_tower.language_branches {config.language_branches!r}: expected one of {', '.join(BRANCHES)}."
        )
    if config.projection < 1:
        raise UserError(f"text_tower.projection={config.projection} must be at least 1 with word vectors.")
