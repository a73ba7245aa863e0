"""BERT (Devlin et al., 2019): MURAL's text tower ([MURAL] §3.2 and A.1), the final-layer [CLS] state.

Post-layer-norm transformer with exact GELU, learned positions and token types. BERT's pooler (a tanh layer on [CLS],
trained by next-sentence prediction) is off by default: MURAL's projection heads take its place, while LaBSE's vectors
are the pooler's. MURAL-large's factorised token embeddings (256, projected to 1024) are here too; its "24 attention
heads" do not divide 1024, see configs/.

Only the [CLS] state leaves the tower, so the last layer computes queries, output and feed-forward for [CLS] alone:
the same numbers for nearly half the work in a tower of two layers. Each layer keeps one fused [hidden, 3 hidden]
kernel for queries, keys and values, in that order; weights of other BERTs are concatenated into it.
"""

from __future__ import annotations

import functools
import math

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.encoders.kernels import add_and_normalize, dtype_policy, gelu, masked_softmax
from mural_tf.encoders.layers import Dropout
from mural_tf.encoders.packing import (
    POOLINGS,
    FirstAndMean,
    FirstPosition,
    MeanOfTokens,
    Packing,
    packed_first_and_mean,
    packed_mean,
)
from mural_tf.errors import UserError
from mural_tf.text.word_pieces import TOKENS

TOKEN_TYPES = 2
POOLER = "pooler"  # the layer's name


def initializer(hidden_size: int) -> keras.initializers.Initializer:
    """BERT-base's: normal with standard deviation 0.02, truncated at two of them.

    For other widths 0.02 is scaled by sqrt(768 / hidden_size), so that a layer's outputs keep BERT-base's scale (our
    choice: BERT has 0.02 throughout; narrow towers then take hundreds of steps to distinguish texts).
    """
    return keras.initializers.TruncatedNormal(stddev=0.02 * math.sqrt(768 / hidden_size))


@tf.autograph.experimental.do_not_convert  # saves a second of every start; no layer needs it
def build_bert(config: ConfigDict, vocabulary_size: int) -> keras.Model:
    """Builds the tower from `config.text_tower`: three int32 [B, T] inputs -> float32 [B, hidden_size].

    Inputs: `input_word_ids`, `input_mask` (1: token, 0: padding) and `input_type_ids`, T at most `max_length`. With
    `pooling` "mean" the output is the mean of the tokens' states; with "first_and_mean" it is [B, 2 hidden_size], see
    `FirstAndMean`.
    A frozen tower runs without dropout even in training.
    Raises `UserError` for values out of range.
    """
    _check(config, vocabulary_size)
    policy = dtype_policy(config.precision, "text")
    dropout = 0.0 if config.frozen else config.dropout
    inputs = {name: keras.Input(shape=(None,), dtype=tf.int32, name=name) for name in TOKENS}  # [B, T]
    x = BertEmbeddings(
        vocabulary_size,
        config.hidden_size,
        config.max_length,
        config.token_embedding_size or config.hidden_size,
        dropout,
        name="embeddings",
        dtype=policy,
    )([inputs["input_word_ids"], inputs["input_type_ids"]])  # [B, T, hidden]
    for index in range(config.layers):
        x = BertLayer(
            config.heads,
            config.feed_forward_size,
            dropout,
            first_position_only=config.pooling == "first" and index == config.layers - 1,
            name=f"layer_{index}",
            dtype=policy,
        )([x, inputs["input_mask"]])
    if config.pooling == "first":
        embeddings = FirstPosition(name="cls_state", dtype="float32")(x)  # [B, hidden]
    elif config.pooling == "mean":
        embeddings = MeanOfTokens(name="mean_state", dtype="float32")([x, inputs["input_mask"]])  # [B, hidden]
    else:
        embeddings = FirstAndMean(name="states", dtype="float32")([x, inputs["input_mask"]])  # [B, 2 hidden]
    if config.pooler:
        embeddings = _pooler(config)(embeddings)
    model = keras.Model(inputs, embeddings, name="text_encoder")
    model.embedding_size = embeddings.shape[-1]
    model.trainable = not config.frozen
    model.packed_states = functools.partial(packed_states, model, config.pooling)
    model.token_states = functools.partial(token_states, model)
    return model


def _pooler(config: ConfigDict) -> keras.layers.Layer:
    return keras.layers.Dense(
        config.hidden_size,
        activation="tanh",
        kernel_initializer=initializer(config.hidden_size),
        name=POOLER,
        dtype="float32",
    )


def packed_states(model: keras.Model, pooling: str, tokens: dict, groups: int, training: bool) -> tf.Tensor:
    """What `model(tokens)` returns, float32 [B, .], computed on the real tokens alone; see `Packing`."""
    check_length(tokens["input_word_ids"], model.get_layer("embeddings").max_length)
    packing = Packing(tokens["input_mask"], groups)
    packed = [packing.pack(tokens[name]) for name in ("input_word_ids", "input_type_ids")]  # [1, N] each
    x = model.get_layer("embeddings")(packed, training=training, packing=packing)
    for layer in model.layers:
        if isinstance(layer, BertLayer):
            x = layer([x, packed[0]], training=training, packing=packing)
    x = tf.cast(x, tf.float32)
    if pooling != "first":
        x = (packed_mean if pooling == "mean" else packed_first_and_mean)(x, packing)
    states = packing.in_batch_order(x)
    return model.get_layer(POOLER)(states) if model.layers[-1].name == POOLER else states


def token_states(model: keras.Model, tokens: dict, training: bool) -> tf.Tensor:
    """The final states of all tokens of a padded batch, [B, T, hidden] in the tower's compute dtype."""
    x = model.get_layer("embeddings")([tokens["input_word_ids"], tokens["input_type_ids"]], training=training)
    for layer in model.layers:
        if isinstance(layer, BertLayer):
            x = layer([x, tokens["input_mask"]], training=training, every_position=True)
    return x


class LayerNorm(keras.layers.Layer):
    """Layer normalisation of the sum of two tensors: two [B, T, hidden] -> [B, T, hidden]."""

    def build(self, shapes):
        self.gamma = self.add_weight("gamma", shape=(shapes[0][-1],), initializer="ones")
        self.beta = self.add_weight("beta", shape=(shapes[0][-1],), initializer="zeros")

    def call(self, inputs, training=None):
        gamma, beta = (tf.cast(w, self.compute_dtype) for w in (self.gamma, self.beta))
        return add_and_normalize(*inputs, gamma, beta, training=training)


class BertEmbeddings(keras.layers.Layer):
    """Sum of token, position and token-type embeddings, normalised: two int32 [B, T] -> [B, T, hidden].

    With a `packing` (a `Packing`) inputs and output are packed, [1, N] and [1, N, hidden].
    With `token_size` other than `hidden_size` the token table is [vocabulary, token_size] and a Dense layer takes it
    to `hidden_size` before the sum.
    """

    def __init__(self, vocabulary_size, hidden_size, max_length, token_size, dropout, **options):
        super().__init__(**options)
        self.vocabulary_size = vocabulary_size
        self.hidden_size = hidden_size
        self.max_length = max_length
        self.token_size = token_size
        self.projection = None
        if token_size != hidden_size:
            self.projection = keras.layers.Dense(
                hidden_size, kernel_initializer=initializer(hidden_size), name="projection", dtype=self.dtype_policy
            )
        self.layer_norm = LayerNorm(name="layer_norm", dtype=self.dtype_policy)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, shape):
        def table(name, *size):
            return self.add_weight(name, shape=size, initializer=initializer(self.hidden_size))

        self.token_table = table("token_embeddings", self.vocabulary_size, self.token_size)
        self.position_table = table("position_embeddings", self.max_length, self.hidden_size)
        self.type_table = table("type_embeddings", TOKEN_TYPES, self.hidden_size)

    def call(self, inputs, training=None, packing=None):
        word_ids, type_ids = inputs
        if packing is None:
            check_length(word_ids, self.max_length)
        x = tf.gather(self.token_table, word_ids)  # [B, T, token_size]
        x = tf.cast(x, self.compute_dtype)
        if self.projection is not None:
            x = self.projection(x)
        # One-hot times table: its gradient is a small dense matrix, a gather's would be B * T rows.
        types = tf.one_hot(type_ids, TOKEN_TYPES, dtype=self.compute_dtype)  # [B, T, 2]
        x = x + tf.tensordot(types, tf.cast(self.type_table, x.dtype), axes=1)
        if packing is None:
            positions = tf.cast(self.position_table[: tf.shape(word_ids)[1]], x.dtype)[tf.newaxis]
        else:
            positions = tf.one_hot(packing.positions, self.max_length, dtype=x.dtype)[tf.newaxis]  # [1, N, max_length]
            positions = tf.tensordot(positions, tf.cast(self.position_table, x.dtype), axes=1)
        return self.dropout(self.layer_norm([x, positions], training=training), training=training)


class BertLayer(keras.layers.Layer):
    """One post-norm transformer layer: ([B, T, hidden], int32 mask [B, T]) -> [B, T, hidden].

    With `first_position_only` the output is [B, 1, hidden], the first position alone, except in `every_position` calls.
    """

    def __init__(self, heads, feed_forward_size, dropout, first_position_only=False, **options):
        super().__init__(**options)
        self.heads = heads
        self.feed_forward_size = feed_forward_size
        self.rate = dropout
        self.first_position_only = first_position_only

    def build(self, shapes):
        hidden = shapes[0][-1]
        self.hidden_size = hidden

        def dense(size, name):
            return keras.layers.Dense(size, kernel_initializer=initializer(hidden), name=name, dtype=self.dtype_policy)

        def dropout():
            return Dropout(self.rate, dtype=self.dtype_policy)

        self.attention_kernel = self.add_weight(
            "qkv/kernel", shape=(hidden, 3 * hidden), initializer=initializer(hidden)
        )
        self.attention_bias = self.add_weight("qkv/bias", shape=(3 * hidden,), initializer="zeros")
        self.attention_output = dense(hidden, "attention_output")
        self.attention_norm = LayerNorm(name="attention_norm", dtype=self.dtype_policy)
        self.intermediate = dense(self.feed_forward_size, "intermediate")
        self.output_dense = dense(hidden, "output")
        self.output_norm = LayerNorm(name="output_norm", dtype=self.dtype_policy)
        self.attention_dropout, self.hidden_dropout, self.output_dropout = dropout(), dropout(), dropout()

    def call(self, inputs, training=None, packing=None, every_position=False):
        x, mask = inputs
        first_only = self.first_position_only and not every_position
        if packing is None:
            attended = self.attend(x, mask, training, first_only)
        else:
            attended = self.attend_packed(x, packing, training)
        attended = self.attention_output(attended)
        if first_only:
            x = first_tokens(x, packing)
        attended = self.hidden_dropout(attended, training=training)
        x = self.attention_norm([x, attended], training=training)
        y = self.output_dense(gelu(self.intermediate(x), training=training))
        return self.output_norm([x, self.output_dropout(y, training=training)], training=training)

    def attend(self, x, mask, training, first_only):
        """Multi-head attention before its output projection: [B, T, hidden] -> [B, T or 1, hidden]."""
        if first_only:
            parts = [part for y in self.project_first(x[:, :1], x) for part in self.by_head(y)]
        else:
            parts = self.by_head(self.project(x, *self.kernel_and_bias(x)))  # each [B, heads, T, size]
        attended = tf.transpose(self.attention(*parts, mask, training), [0, 2, 1, 3])
        return tf.reshape(attended, [tf.shape(x)[0], -1, self.hidden_size])

    def attend_packed(self, x, packing, training):
        """The same of packed texts: [1, N, hidden] -> [1, N, hidden], or [1, B, hidden] of the first tokens."""
        if self.first_position_only:
            queries, keys_values = self.project_first(first_tokens(x, packing), x)
            queries = packing.by_first_token(queries, self.heads)
            keys_values = packing.by_text(keys_values, 2, self.heads)
            parts = [(query, *tf.unstack(both, num=2)) for query, both in zip(queries, keys_values)]
        else:
            x = self.project(x, *self.kernel_and_bias(x))
            parts = [tf.unstack(group, num=3) for group in packing.by_text(x, 3, self.heads)]
        attended = [self.attention(*part, mask, training) for part, mask in zip(parts, packing.masks)]
        if self.first_position_only:
            return tf.reshape(tf.concat(attended, axis=0), [1, -1, self.hidden_size])
        return packing.by_token(attended)

    def attention(self, query, key, value, mask, training):
        """softmax(q k / sqrt(size) + mask) v: [B, heads, Q, size] and, with T for Q, keys and values -> as queries."""
        logits = tf.matmul(query * (1.0 / math.sqrt(self.hidden_size // self.heads)), key, transpose_b=True)
        weights = masked_softmax(logits, tf.cast(mask, tf.float32), training=training)  # [B, heads, Q, T]
        return tf.matmul(self.attention_dropout(weights, training=training), value)

    def project(self, x, kernel, bias):
        return tf.nn.bias_add(tf.tensordot(x, kernel, axes=1), bias)

    def project_first(self, first, x):
        """Queries of the first tokens alone, keys and values of all: [., ., hidden] and [., ., 2 hidden]."""
        sizes = [self.hidden_size, 2 * self.hidden_size]  # one split: every slice's gradient would fill a whole kernel
        (kernel, others), (bias, other_biases) = (tf.split(w, sizes, axis=-1) for w in self.kernel_and_bias(x))
        return self.project(first, kernel, bias), self.project(x, others, other_biases)

    def kernel_and_bias(self, x):
        return tf.cast(self.attention_kernel, x.dtype), tf.cast(self.attention_bias, x.dtype)

    def by_head(self, x):
        """[B, T, parts * hidden] -> a list of parts, each [B, heads, T, size]."""
        parts, size = x.shape[-1] // self.hidden_size, self.hidden_size // self.heads
        x = tf.reshape(x, [tf.shape(x)[0], tf.shape(x)[1], parts, self.heads, size])
        return tf.unstack(tf.transpose(x, [2, 0, 3, 1, 4]), axis=0, num=parts)


def first_tokens(x, packing):
    """The states of the texts' first tokens: [B, T, hidden] -> [B, 1, hidden], or packed [1, N, .] -> [1, B, .]."""
    return x[:, :1] if packing is None else packing.first_tokens(x)


def check_length(word_ids: tf.Tensor, max_length: int) -> None:
    """Raises `UserError` if a padded batch is known to be wider than the position table."""
    if word_ids.shape[1] is not None and word_ids.shape[1] > max_length:
        raise UserError(
            f"Texts of {word_ids.shape[1]} tokens for a text tower with text_tower.max_length={max_length}: "
            "shorten the texts or raise max_length."
        )


def _check(config: ConfigDict, vocabulary_size: int) -> None:
    if config.hidden_size % config.heads:
        divisors = [n for n in range(1, 65) if config.hidden_size % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - config.heads))
        raise UserError(
            f"text_tower.hidden_size={config.hidden_size} is not divisible by text_tower.heads={config.heads}; "
            f"the nearest number of heads that divides it is {nearest}."
        )
    if config.pooling not in POOLINGS:
        raise UserError(f"Unknown text_tower.pooling {config.pooling!r}; known: {', '.join(POOLINGS)}.")
    if config.pooler and config.pooling == "first_and_mean":
        raise UserError("text_tower.pooler takes one state of a text: set text_tower.pooling=first.")
    if not 0 <= config.dropout < 1:
        raise UserError(f"text_tower.dropout={config.dropout} must be at least 0 and below 1.")
    if vocabulary_size < 1:
        raise UserError(f"A vocabulary of {vocabulary_size} word pieces: expected at least 1.")
