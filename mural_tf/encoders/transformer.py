"""The transformer layer (Vaswani et al., 2017) of the BERT and the ViT: with its norms after or before its two halves.

Each layer keeps one fused [hidden, 3 hidden] kernel for queries, keys and values, in that order; weights of others are
concatenated into it.
"""

from __future__ import annotations

import math

import tensorflow as tf

from mural_tf.backend import keras
from mural_tf.encoders.drawing import is_drawn
from mural_tf.encoders.kernels import ACTIVATIONS, LAYER_NORM_EPSILON, compiles_fused, layer_norm, softmax
from mural_tf.encoders.layers import Dropout


def initializer(hidden_size: int) -> keras.initializers.Initializer:
    """Returns BERT-base's initialiser: normal with standard deviation 0.02, truncated at two deviations.

    For other widths 0.02 is scaled by sqrt(768 / hidden_size), so that a layer's outputs keep BERT-base's scale (our
    choice: BERT has 0.02 throughout; narrow towers then take hundreds of steps to distinguish texts).
    """
    if not is_drawn():
        return keras.initializers.Zeros()
    return keras.initializers.TruncatedNormal(stddev=0.02 * math.sqrt(768 / hidden_size))


def product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None, activation=None, training=False) -> tf.Tensor:
    """activation(x kernel + bias): [..., C] and [C, units], [units] or `None` -> [..., units].

    All in two axes, where TensorFlow joins them to one operation; in three, as Keras' Dense has them, it does not.
    """
    rows = tf.reshape(x, [-1, x.shape[-1]])
    shape = [*leading_sizes(x), kernel.shape[-1]]
    if activation is None and not training and rows.dtype == tf.bfloat16 and compiles_fused():
        # As a 1x1 convolution of a picture one pixel wide: the same sums by a CPU's faster kernel, see docs/speed.md.
        y = tf.nn.conv2d(rows[tf.newaxis, :, tf.newaxis], kernel[tf.newaxis, tf.newaxis], 1, "VALID")
        if bias is not None:
            y = tf.nn.bias_add(y, bias)
        return tf.reshape(y, shape)
    y = tf.matmul(rows, kernel)
    if bias is not None:
        # A bias that is a bfloat16 variable keeps TensorFlow from joining the exact GELU; a rounded float32 does not.
        y = tf.nn.bias_add(y, tf.cast(tf.cast(bias, tf.float32), rows.dtype))
    if activation is not None:
        y = activation(y, training=training)
    return tf.reshape(y, shape)


class Dense(keras.layers.Dense):
    """Keras' layer as a `product`: [..., C] -> [..., units]."""

    def call(self, x, activation=None, training=None):
        return product(x, self.kernel, self.bias, activation, training)


class LayerNorm(keras.layers.Layer):
    """Layer normalisation of a tensor, or of the sum of two: [B, T, hidden] each -> [B, T, hidden].

    Without `center` nothing is added: beta is 0.
    """

    def __init__(self, epsilon: float = LAYER_NORM_EPSILON, center: bool = True, **options):
        super().__init__(**options)
        self.epsilon = epsilon
        self.center = center
        self.beta = None

    def build(self, shapes):
        size = _first_shape(shapes)[-1]
        self.gamma = self.add_weight("gamma", shape=(size,), initializer="ones", experimental_autocast=False)
        if self.center:
            self.beta = self.add_weight("beta", shape=(size,), initializer="zeros", experimental_autocast=False)

    def call(self, inputs, training=None):
        gamma = tf.cast(self.gamma, tf.float32)
        beta = tf.zeros_like(gamma) if self.beta is None else tf.cast(self.beta, tf.float32)
        return layer_norm(self.epsilon)(*tf.nest.flatten(inputs), gamma, beta, training=training)


class TransformerLayer(keras.layers.Layer):
    """One layer: [[B, T, hidden], int32 mask [B, T]], or without a mask [B, T, hidden] -> [B, T, hidden].

    With `only` the output is that position's, [B, 1, hidden], except in `every_position` calls.

    Args:
      heads: how many heads attention has; they divide hidden.
      feed_forward_size: the width between the second half's two products.
      dropout: rate for attention weights and for both halves' outputs, in [0, 1).
      only: "first" or "last" position, see above; "": all positions.
      norm_first: x + f(norm(x)) for both halves f, as in a ViT; else norm(x + f(x)), as in BERT.
      activation: one of `kernels.ACTIVATIONS`.
      epsilon: added to the variance in both norms.
      causal: whether a position sees only itself and the positions before it; this needs a mask.
    """

    def __init__(
        self,
        heads,
        feed_forward_size,
        dropout=0.0,
        only="",
        norm_first=False,
        activation="gelu",
        epsilon=LAYER_NORM_EPSILON,
        causal=False,
        **options,
    ):
        super().__init__(**options)
        self.causal = causal
        self.heads = heads
        self.feed_forward_size = feed_forward_size
        self.rate = dropout
        self.only = only
        self.norm_first = norm_first
        self.activation = ACTIVATIONS[activation]
        self.epsilon = epsilon

    def build(self, shapes):
        hidden = _first_shape(shapes)[-1]
        self.hidden_size = hidden

        def dense(size, name):
            return Dense(size, kernel_initializer=initializer(hidden), name=name, dtype=self.dtype_policy)

        def norm(name):
            return LayerNorm(self.epsilon, name=name, dtype=self.dtype_policy)

        def dropout():
            return Dropout(self.rate, dtype=self.dtype_policy)

        self.attention_kernel = self.add_weight(
            "qkv/kernel", shape=(hidden, 3 * hidden), initializer=initializer(hidden)
        )
        self.attention_bias = self.add_weight("qkv/bias", shape=(3 * hidden,), initializer="zeros")
        self.attention_output = dense(hidden, "attention_output")
        self.attention_norm = norm("attention_norm")
        self.intermediate = dense(self.feed_forward_size, "intermediate")
        self.output_dense = dense(hidden, "output")
        self.output_norm = norm("output_norm")
        self.attention_dropout = dropout()
        self.hidden_dropout = dropout()
        self.output_dropout = dropout()

    def call(self, inputs, training=None, packing=None, every_position=False):
        x, *mask = tf.nest.flatten(inputs)
        only = "" if every_position else self.only
        attention_input = x
        if self.norm_first:
            attention_input = self.attention_norm(x, training=training)
        if packing is None:
            attended = self.attend(attention_input, mask, training, only)
        else:
            attended = self.attend_packed(attention_input, packing, training)
        attended = self.attention_output(attended, training=training)
        if only:
            x = one_token(x, only, packing)
        attended = self.hidden_dropout(attended, training=training)
        if self.norm_first:
            x = x + attended
            return x + self.feed_forward(self.output_norm(x, training=training), training)
        x = self.attention_norm([x, attended], training=training)
        return self.output_norm([x, self.feed_forward(x, training)], training=training)

    def feed_forward(self, x, training):
        """The second half, position by position: [B, T, hidden] -> [B, T, hidden]."""
        y = self.intermediate(x, self.activation, training=training)
        return self.output_dropout(self.output_dense(y, training=training), training=training)

    def attend(self, x, mask, training, only):
        """Multi-head attention before its output projection: [B, T, hidden] -> [B, T or 1, hidden].

        Args:
          mask: a list of one mask, or an empty list.
        """
        if only:
            return self.attend_once(one_token(x, only), x, mask, training)
        parts = self.by_head(product(x, *self.kernel_and_bias(x), training=training))  # each [B, heads, T, size]
        return self.join_heads(self.attention(*parts, mask, training))

    def attend_once(self, token, x, mask, training):
        """The same with queries of one token: [B, 1, hidden] and [B, T, hidden] -> [B, 1, hidden]."""
        queries, keys_values = self.project_one(token, x, training)
        parts = [*self.by_head(queries), *self.by_head(keys_values)]
        return self.join_heads(self.attention(*parts, mask, training))

    def attend_packed(self, x, packing, training):
        """The same of packed texts: [1, N, hidden] -> [1, N, hidden], or [1, B, hidden] of the first tokens."""
        if self.only:
            queries, keys_values = self.project_one(one_token(x, self.only, packing), x, training)
            queries = packing.by_first_token(queries, self.heads)
            keys_values = packing.by_text(keys_values, 2, self.heads)
            groups = []
            for query, key_and_value in zip(queries, keys_values):
                groups.append([query, *tf.unstack(key_and_value, num=2)])
        else:
            x = product(x, *self.kernel_and_bias(x), training=training)
            groups = [tf.unstack(parts, num=3) for parts in packing.by_text(x, 3, self.heads)]
        attended = []
        for (query, key, value), mask in zip(groups, packing.masks):
            attended.append(self.attention(query, key, value, [mask], training))
        if self.only:
            return tf.reshape(tf.concat(attended, axis=0), [1, -1, self.hidden_size])
        return packing.by_token(attended)

    def attention(self, query, key, value, mask, training):
        """softmax(q k / sqrt(size) + mask) v: [B, heads, Q, size] and, with T for Q, keys and values -> as queries."""
        logits = tf.matmul(query * (1.0 / math.sqrt(self.hidden_size // self.heads)), key, transpose_b=True)
        mask = [tf.cast(tokens, tf.float32) for tokens in mask]
        if self.causal:
            (tokens,) = mask
            length = tf.shape(tokens)[1]
            mask = [tokens[:, tf.newaxis] * tf.sequence_mask(tf.range(1, length + 1), length, tf.float32)]  # [B, T, T]
        weights = softmax(logits, *mask, training=training)  # [B, heads, Q, T]
        return tf.matmul(self.attention_dropout(weights, training=training), value)

    def project_one(self, token, x, training):
        """Returns queries of one token, keys and values of all tokens: [., ., hidden] and [., ., 2 hidden]."""
        kernel, bias = self.kernel_and_bias(x)
        sizes = [self.hidden_size, 2 * self.hidden_size]  # one split: every slice's gradient would fill a whole kernel
        query_kernel, other_kernels = tf.split(kernel, sizes, axis=-1)
        query_bias = None
        other_biases = None
        if bias is not None:
            query_bias, other_biases = tf.split(bias, sizes, axis=-1)
        queries = product(token, query_kernel, query_bias, training=training)
        return queries, product(x, other_kernels, other_biases, training=training)

    def kernel_and_bias(self, x):
        return tf.cast(self.attention_kernel, x.dtype), tf.cast(self.attention_bias, x.dtype)

    def by_head(self, x):
        """Splits [B, T, parts * hidden] into a list of parts, each [B, heads, T, size]."""
        part_count = x.shape[-1] // self.hidden_size
        x = tf.reshape(x, [*leading_sizes(x), part_count, self.heads, self.hidden_size // self.heads])
        x = tf.transpose(x, [2, 0, 3, 1, 4])  # [parts, B, heads, T, size]
        return tf.unstack(x, axis=0, num=part_count)

    def join_heads(self, x):
        """Joins [B, heads, T, size] to [B, T, hidden]."""
        x = tf.transpose(x, [0, 2, 1, 3])
        return tf.reshape(x, [*leading_sizes(x)[:2], self.hidden_size])


def leading_sizes(x):
    """Returns a tensor's sizes but the last, for a reshape: an unknown length of known rows is -1, which is a constant.

    TensorFlow Lite's fast kernels take no other shapes. With unknown rows, perhaps 0, -1 would be ambiguous.
    """
    sizes = x.shape[:-1].as_list()
    if sizes[0] is not None and sizes.count(None) == 1:
        return [-1 if size is None else size for size in sizes]
    return [tf.shape(x)[axis] if size is None else size for axis, size in enumerate(sizes)]


def one_token(x, which, packing=None):
    """Returns the states of first or last tokens: [B, T, hidden] -> [B, 1, hidden]; packed, of the first: [1, B, .]."""
    if packing is not None:
        return packing.first_tokens(x)
    return x[:, :1] if which == "first" else x[:, -1:]


def _first_shape(shapes):
    """Returns the shape of a layer's input, or of the first of several inputs."""
    return shapes[0] if isinstance(shapes, (list, tuple)) else shapes
