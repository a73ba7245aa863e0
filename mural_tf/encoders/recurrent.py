"""The text tower of EmbN, PARALLEL-EmbN and MULE: word vectors, a projection per language, a recurrent sentence branch.

[MULE] (Kim et al., 2020), figure 2. Each language has its own word vectors and one Dense layer from them into the
universal language embedding. The mean of a sentence's words there is u; a recurrent layer over them, of which the
last state goes through a Dense layer, gives s. The tower returns both, [s, u], not normalised.

    MULE, and EmbN with one language     one sentence branch for all languages
    PARALLEL-EmbN                        each language has its own

The released code has a GRU where the paper has an LSTM: `recurrent` says which.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.encoders.per_language import PerLanguage
from mural_tf.encoders.precision import dtype_policy

# Cells, not cuDNN's layers: one of these is traced faster, and there is one a language in PARALLEL-EmbN.
CELLS = {"lstm": tf.keras.layers.LSTMCell, "gru": tf.keras.layers.GRUCell}
BRANCHES = ("shared", "parallel")
VECTOR_DEVIATION = 0.1  # of random word vectors


def build_recurrent(config: ConfigDict, vocabulary_size: int) -> tf.keras.Model:
    """Builds the tower from `config.text_tower`: the int32 [B, T] inputs of every text tower → float32 [B, P + U].

    `input_type_ids` holds the language of each row. P is `projection` (s), U is `language_size` (u). With more than
    one length group, rows are computed by parts of one language each, see per_language.py.
    Raises `ConfigurationError` for values that cannot be built.
    """
    _check(config)
    policy = dtype_policy(config.precision, "text")
    fixed = config.length_groups == 1
    names = ("input_word_ids", "input_mask", "input_type_ids")
    inputs = {name: tf.keras.Input(shape=(None,), dtype=tf.int32, name=name) for name in names}  # [B, T]
    language = inputs["input_type_ids"][:, 0]  # [B]
    mask = inputs["input_mask"]
    vectors = tf.keras.layers.Embedding(  # a word's id says its language too: one table for all
        vocabulary_size,
        config.word_size,
        embeddings_initializer=tf.keras.initializers.TruncatedNormal(stddev=VECTOR_DEVIATION),
        name="word_vectors",
        dtype="float32",
    )(inputs["input_word_ids"])  # [B, T, word_size]

    def projection(name):
        return tf.keras.layers.Dense(config.language_size, name=f"language_{name}", dtype=policy)

    words = PerLanguage(config.languages, projection, fixed, name="universal_embedding", dtype=policy)(
        [language, tf.cast(vectors, policy.compute_dtype)]
    )  # [B, T, U]
    branch = SentenceBranch(config, name="sentence_branch", dtype=policy)
    if config.language_branches == "shared":
        sentence = branch(words, mask)  # [B, P]
    else:

        def parallel(name):
            return SentenceBranch(config, name=f"sentence_branch_{name}", dtype=policy)

        sentence = PerLanguage(config.languages, parallel, fixed, name="sentence_branches", dtype=policy)(
            [language, words, mask]
        )
    real = tf.cast(mask, tf.float32)[:, :, None]
    mean = tf.reduce_sum(tf.cast(words, tf.float32) * real, axis=1) / tf.maximum(tf.reduce_sum(real, axis=1), 1.0)
    states = tf.concat([tf.cast(sentence, tf.float32), mean], axis=1)  # [B, P + U]
    model = tf.keras.Model(inputs, states, name="text_encoder")
    model.embedding_size = states.shape[-1]
    model.trainable = not config.frozen
    if config.frozen_words:
        model.get_layer("word_vectors").trainable = False
    return model


class SentenceBranch(tf.keras.layers.Layer):
    """(words [B, T, U], mask int32 [B, T]) → [B, P]: the last real word's state, through a Dense layer."""

    def __init__(self, config: ConfigDict, **options):
        super().__init__(**options)
        cell = CELLS[config.recurrent](config.hidden_size, name="cell", dtype=self.dtype_policy)
        self.recurrent = tf.keras.layers.RNN(cell, name=config.recurrent, dtype=self.dtype_policy)
        self.projection = tf.keras.layers.Dense(config.projection, name="projection", dtype=self.dtype_policy)

    def call(self, words, mask):
        return self.projection(self.recurrent(words, mask=tf.cast(mask, tf.bool)))


def _check(config: ConfigDict) -> None:
    if not config.languages:
        raise ConfigurationError("text_tower.name='words' needs text_tower.languages, such as en,de,fr,cs.")
    if config.recurrent not in CELLS:
        raise ConfigurationError(
            f"Unknown text_tower.recurrent {config.recurrent!r}: expected one of {', '.join(CELLS)}."
        )
    if config.language_branches not in BRANCHES:
        raise ConfigurationError(
            f"Unknown text_tower.language_branches {config.language_branches!r}: expected one of {', '.join(BRANCHES)}."
        )
    for name in ("projection", "word_size", "language_size", "hidden_size"):
        if config[name] < 1:
            raise ConfigurationError(f"text_tower.{name}={config[name]} must be at least 1 with word vectors.")
