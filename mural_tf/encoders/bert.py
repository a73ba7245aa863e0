"""BERT (Devlin et al., 2019): MURAL's text tower ([MURAL] §3.2 and A.1), the final-layer [CLS] state; its relatives.

Post-layer-norm transformer with exact GELU, learned positions and token types. BERT's pooler (a tanh layer on [CLS],
trained by next-sentence prediction) is off by default: MURAL's projection heads take its place, while LaBSE's vectors
are the pooler's. MURAL-large's factorised token embeddings (256, projected to 1024) are here too; its "24 attention
heads" do not divide 1024, see configs/.

Only the [CLS] state leaves the tower, so the last layer computes queries, output and feed-forward only for [CLS]:
the same numbers for nearly half the work in a tower of two layers.

Relatives differ by fields of `config.text_tower`: XLM-RoBERTa (Conneau et al., 2020) by `epsilon`; SigLIP's text
tower (Zhai et al., 2023) has `norm="before"` (no norm after the embeddings, a norm after the last layer), a tanh GELU,
`attention="full"` (padding is attended to, so all rows are of one length and nothing is skipped) and the last
position's state, for any token there; CLIP's (Radford et al., 2021) has `norm="before"`, `attention="causal"` (a token
sees only the tokens before it) and the state of the last token, which sees the whole text. Token types, which
both lack, are a table of zeros.
"""

from __future__ import annotations

import functools

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.kernels import ACTIVATIONS, dtype_policy
from mural_tf.encoders.layers import Dropout, rows_of_table
from mural_tf.encoders.packing import Packing
from mural_tf.encoders.pooling import (
    POOLINGS,
    EndOfText,
    FirstAndMean,
    MeanOfTokens,
    OnePosition,
    packed_first_and_mean,
    packed_mean,
)
from mural_tf.encoders.towers import token_inputs
from mural_tf.encoders.transformer import LayerNorm, TransformerLayer, initializer

TOKEN_TYPES = 2
POOLER = "pooler"  # names of layers
FINAL_NORM = "final_norm"
CHOICES = {
    "norm": ("after", "before"),
    "activation": tuple(ACTIVATIONS),
    "pooling": POOLINGS,
    "attention": ("masked", "full", "causal"),
}
# Poolings that fit only one attention: padding is the last position, or only the last token sees all.
POOLING_OF = {"full": "last", "causal": "end"}


@tf.autograph.experimental.do_not_convert  # saves a second of every start; no layer needs it
def build_bert(config: ConfigDict, vocabulary_size: int) -> keras.Model:
    """Builds the tower that `config`, a `text_tower`, describes: three int32 [B, T] inputs -> float32 [B, hidden_size].

    Inputs: `input_word_ids`, `input_mask` (1: token, 0: padding) and `input_type_ids`, T at most `max_length`; with
    `attention` "full" T is `max_length`, and the mask is ignored. With `pooling` "first_and_mean" the output is
    [B, 2 hidden_size], see `FirstAndMean`; with `pooler_size` it is [B, pooler_size].
    A frozen tower runs without dropout even in training. The model has `embedding_size`, the width of its output,
    `attends_to_padding`, a bool, and `token_states(tokens, training)`; with `attention` "masked" also
    `packed_states(tokens, groups, training)`. Raises `UserError` for values that cannot be built.
    """
    _check(config, vocabulary_size)
    policy = dtype_policy(config.precision, "text")
    inputs = token_inputs()
    x = BertEmbeddings(
        vocabulary_size,
        config.hidden_size,
        config.max_length,
        token_size=config.token_embedding_size or config.hidden_size,  # 0: not factorised
        dropout=dropout_rate(config),
        epsilon=config.epsilon if config.norm == "after" else None,
        name="embeddings",
        dtype=policy,
    )([inputs["input_word_ids"], inputs["input_type_ids"]])  # [B, T, hidden]
    for index in range(config.layers):
        layer = _transformer_layer(config, index, policy)
        if config.attention == "full":
            x = layer([x])
        else:
            x = layer([x, inputs["input_mask"]])
    if config.norm == "before":
        x = LayerNorm(config.epsilon, name=FINAL_NORM, dtype=policy)(x)
    embeddings = _pool(config, x, inputs["input_mask"])
    if config.pooler_size:
        embeddings = _pooler(config)(embeddings)
    model = keras.Model(inputs, embeddings, name="text_encoder")
    model.embedding_size = embeddings.shape[-1]
    model.trainable = not config.frozen
    model.attends_to_padding = config.attention == "full"
    if config.attention == "masked":
        model.packed_states = functools.partial(packed_states, model, config.pooling)
    model.token_states = functools.partial(token_states, model)
    return model


def dropout_rate(config: ConfigDict) -> float:
    """Returns the dropout of a tower's layers; 0 for a frozen tower, whose states must always be the same."""
    if config.frozen:
        return 0.0
    return config.dropout


def _transformer_layer(config: ConfigDict, index: int, policy: keras.mixed_precision.Policy) -> TransformerLayer:
    """Returns the tower's layer number `index`, counted from 0."""
    only = ""
    if config.pooling in ("first", "last") and index == config.layers - 1:
        only = config.pooling  # the last layer computes only the position that is read
    return TransformerLayer(
        config.heads,
        config.feed_forward_size,
        dropout_rate(config),
        only=only,
        norm_first=config.norm == "before",
        activation=config.activation,
        epsilon=config.epsilon,
        causal=config.attention == "causal",
        name=f"layer_{index}",
        dtype=policy,
    )


def _pool(config: ConfigDict, x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Pools tokens' states x to a state per text, float32 [B, hidden] or [B, 2 hidden], as `config.pooling` says.

    x is [B, T, hidden], or [B, 1, hidden] where the last layer computes only the position that is read.
    """
    if config.pooling in ("first", "last"):
        return OnePosition(name="cls_state", dtype="float32")(x)  # [B, hidden]
    if config.pooling == "mean":
        return MeanOfTokens(name="mean_state", dtype="float32")([x, mask])  # [B, hidden]
    if config.pooling == "end":
        return EndOfText(name="end_state", dtype="float32")([x, mask])  # [B, hidden]
    return FirstAndMean(name="states", dtype="float32")([x, mask])  # [B, 2 hidden]


def _pooler(config: ConfigDict) -> keras.layers.Layer:
    """Returns BERT's tanh layer on top of the [CLS] state: [B, hidden] -> float32 [B, pooler_size]."""
    return keras.layers.Dense(
        config.pooler_size,
        activation="tanh",
        kernel_initializer=initializer(config.hidden_size),
        name=POOLER,
        dtype="float32",
    )


def packed_states(model: keras.Model, pooling: str, tokens: dict, groups: int, training: bool) -> tf.Tensor:
    """Returns the embeddings `model(tokens)`, float32 [B, D], computed only on the real tokens; see `Packing`.

    Args:
      model: a tower of `build_bert` or `build_modernbert`, whose pooling is `pooling`.
      tokens: {name of `TOKENS`: int32 [B, T]}; raises `UserError` for T above the tower's `max_length`.
      groups: in how many groups of similar length attention runs.
    """
    embeddings = model.get_layer("embeddings")
    check_length(tokens["input_word_ids"], embeddings.max_length)
    packing = Packing(tokens["input_mask"], groups)
    packed_ids = [packing.pack(tokens[name]) for name in ("input_word_ids", "input_type_ids")]  # [1, N] each
    x = embeddings(packed_ids, training=training, packing=packing)
    for layer in model.layers:
        if isinstance(layer, TransformerLayer):
            x = layer([x], training=training, packing=packing)
        elif layer.name == FINAL_NORM:
            x = layer(x, training=training)
    x = tf.cast(x, tf.float32)
    if pooling == "mean":
        x = packed_mean(x, packing)
    elif pooling == "first_and_mean":
        x = packed_first_and_mean(x, packing)
    states = packing.in_batch_order(x)
    if model.layers[-1].name == POOLER:
        states = model.get_layer(POOLER)(states)
    return states


def token_states(model: keras.Model, tokens: dict, training: bool) -> tf.Tensor:
    """Returns all tokens' final states, [B, T, hidden] in the tower's compute dtype, for {name: int32 [B, T]}."""
    masks = [] if model.attends_to_padding else [tokens["input_mask"]]
    x = model.get_layer("embeddings")([tokens["input_word_ids"], tokens["input_type_ids"]], training=training)
    for layer in model.layers:
        if isinstance(layer, TransformerLayer):
            x = layer([x, *masks], training=training, every_position=True)
        elif layer.name == FINAL_NORM:
            x = layer(x, training=training)
    return x


class BertEmbeddings(keras.layers.Layer):
    """Sum of token, position and token-type embeddings: ids of tokens and of types, int32 [B, T] -> [B, T, hidden].

    With a `packing` (a `Packing`) inputs and output are packed, [1, N] and [1, N, hidden]. Without it, a call raises
    `UserError` for T above `max_length`.

    Args:
      vocabulary_size, hidden_size, max_length: the sizes of the tables.
      token_size: width of the token table; if it is not `hidden_size`, a Dense layer projects tokens to `hidden_size`.
      dropout: rate, in [0, 1).
      epsilon: of the layer normalisation of the sum; `None`: the sum is not normalised.
    """

    def __init__(self, vocabulary_size, hidden_size, max_length, token_size, dropout, epsilon, **options):
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
        self.layer_norm = None
        if epsilon is not None:
            self.layer_norm = LayerNorm(epsilon, name="layer_norm", dtype=self.dtype_policy)
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
        x = rows_of_table(self.token_table, word_ids)  # [B, T, token_size]
        x = tf.cast(x, self.compute_dtype)
        if self.projection is not None:
            x = self.projection(x)
        # A one-hot product, because its gradient is a small dense matrix; `tf.gather`'s would have B * T rows.
        types = tf.one_hot(type_ids, TOKEN_TYPES, dtype=self.compute_dtype)  # [B, T, 2]
        x = x + tf.tensordot(types, tf.cast(self.type_table, x.dtype), axes=1)
        positions = self._position_embeddings(word_ids, packing)
        if self.layer_norm is None:
            x = x + positions
        else:
            x = self.layer_norm([x, positions], training=training)  # of their sum
        return self.dropout(x, training=training)

    def _position_embeddings(self, word_ids, packing):
        """Returns positions' embeddings for ids, [B, T] or packed [1, N]: [1, T, hidden] or [1, N, hidden]."""
        if packing is None:
            length = tf.shape(word_ids)[1]
            return tf.cast(self.position_table[:length], self.compute_dtype)[tf.newaxis]
        # [N, max_length]; a one-hot product for the same reason as types.
        one_hot = tf.one_hot(packing.positions, self.max_length, dtype=self.compute_dtype)
        return tf.tensordot(one_hot[tf.newaxis], tf.cast(self.position_table, self.compute_dtype), axes=1)


def check_length(word_ids: tf.Tensor, max_length: int) -> None:
    """Raises `UserError` if a batch of ids, [B, T], has a static T above `max_length`; an unknown T passes."""
    length = word_ids.shape[1]
    if length is not None and length > max_length:
        raise UserError(
            f"Texts of {length} tokens for a text tower with text_tower.max_length={max_length}: "
            "shorten the texts or raise max_length."
        )


def _check(config: ConfigDict, vocabulary_size: int) -> None:
    """Raises `UserError` for values of a `text_tower`, or a size of the vocabulary, that cannot be built."""
    if config.hidden_size % config.heads:
        divisors = [heads for heads in range(1, 65) if config.hidden_size % heads == 0]  # up to 64 are proposed
        nearest = min(divisors, key=lambda heads: abs(heads - config.heads))
        raise UserError(
            f"text_tower.hidden_size={config.hidden_size} is not divisible by text_tower.heads={config.heads}; "
            f"the nearest number of heads that divides it is {nearest}."
        )
    for field, choices in CHOICES.items():
        if config[field] not in choices:
            raise UserError(f"Unknown text_tower.{field} {config[field]!r}; known: {', '.join(choices)}.")
    for attention, pooling in POOLING_OF.items():
        if (config.attention == attention) != (config.pooling == pooling):  # each is taken only with the other
            raise UserError(
                f"text_tower.pooling={config.pooling} with attention={config.attention}: attention=full needs "
                "pooling=last (the last position, even of padding) and attention=causal needs pooling=end (the last "
                "token, which sees the whole text); neither pooling goes with another attention."
            )
    if config.pooler_size and config.pooling == "first_and_mean":
        raise UserError(f"text_tower.pooler_size with pooling={config.pooling}: set text_tower.pooling=first.")
    if not 0 <= config.dropout < 1:
        raise UserError(f"text_tower.dropout={config.dropout} must be at least 0 and below 1.")
    if vocabulary_size < 1:
        raise UserError(f"A vocabulary of {vocabulary_size} word pieces: expected at least 1.")
