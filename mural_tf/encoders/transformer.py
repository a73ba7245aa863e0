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
    """Returns BERT-base's initialiser, or zeros within `drawing.undrawn`.

    It is normal with standard deviation 0.02, truncated at two deviations. For other widths 0.02 is scaled by sqrt(768
    / hidden_size), so that a layer's outputs keep BERT-base's scale (our choice: BERT has 0.02 throughout; narrow
    towers then take hundreds of steps to distinguish texts).
    """
    if not is_drawn():
        return keras.initializers.Zeros()
    return keras.initializers.TruncatedNormal(stddev=0.02 * math.sqrt(768 / hidden_size))


def product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None, activation=None, training=False) -> tf.Tensor:
    """Returns activation(x kernel + bias), [..., units], for x [..., C], kernel [C, units] and bias [units] or `None`.

    `activation` is a function of `kernels.ACTIVATIONS` or `None`. All is computed in two axes, where TensorFlow joins
    product, bias and activation to one operation; with three axes, as in Keras' Dense, it does not.
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

    Without `center` there is no beta to learn: it is 0.
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

    The first half of the layer is attention, the second half a feed-forward network. With a `packing` (a `Packing`)
    a call takes packed texts, [1, N, hidden], without a mask; for padded texts `every_position` overrides `only`.

    Args:
      heads: how many heads attention has; they divide hidden.
      feed_forward_size: the width of the second half's hidden layer.
      dropout: rate for attention weights and for both halves' outputs, in [0, 1).
      only: "first" or "last": the output is the state of this position, [B, 1, hidden]; "": of all positions.
      norm_first: x + f(norm(x)) for both halves f, as in a ViT; else norm(x + f(x)), as in BERT.
      activation: one of `kernels.ACTIVATIONS`.
      epsilon: added to the variance in both norms.
      causal: whether a position sees only itself and the positions before it; this needs a mask.
    """

    has_bias = True  # whether products and norms add something
    has_norm = True  # whether attention has a norm

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
        self.intermediate_size = feed_forward_size
        self.rate = dropout
        self.only = only
        self.norm_first = norm_first
        self.activation = ACTIVATIONS[activation]
        self.epsilon = epsilon

    def build(self, shapes):
        hidden = _first_shape(shapes)[-1]
        self.hidden_size = hidden

        def dense(size, name):
            options = dict(kernel_initializer=initializer(hidden), name=name, dtype=self.dtype_policy)
            return Dense(size, use_bias=self.has_bias, **options)

        def norm(name):
            return LayerNorm(self.epsilon, self.has_bias, name=name, dtype=self.dtype_policy)

        def dropout():
            return Dropout(self.rate, dtype=self.dtype_policy)

        self.attention_kernel = self.add_weight(
            "qkv/kernel", shape=(hidden, 3 * hidden), initializer=initializer(hidden)
        )
        if self.has_bias:
            self.attention_bias = self.add_weight("qkv/bias", shape=(3 * hidden,), initializer="zeros")
        self.attention_output = dense(hidden, "attention_output")
        self.attention_norm = norm("attention_norm") if self.has_norm else _unchanged
        self.intermediate = dense(self.intermediate_size, "intermediate")
        self.output_dense = dense(hidden, "output")
        self.output_norm = norm("output_norm")
        self.attention_dropout = dropout()
        self.hidden_dropout = dropout()
        self.output_dropout = dropout()

    def call(self, inputs, training=None, packing=None, every_position=False):
        x, *masks = tf.nest.flatten(inputs)  # one mask or no mask
        only = "" if every_position else self.only
        attention_input = x
        if self.norm_first:
            attention_input = self.attention_norm(x, training=training)
        if packing is None:
            attended = self.attend(attention_input, masks, training, only)
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
        """Returns the second half of the layer, position by position: [B, T, hidden] -> [B, T, hidden]."""
        y = self.intermediate(x, self.activation, training=training)
        return self.output_dropout(self.output_dense(y, training=training), training=training)

    def attend(self, x, masks, training, only):
        """Returns attention before its output projection: x [B, T, hidden], [mask] or [] -> [B, T or 1, hidden]."""
        if only:
            return self.attend_once(one_token(x, only), x, masks, training)
        parts = self.by_head(product(x, *self.kernel_and_bias(x), training=training))  # each [B, heads, T, size]
        return self.join_heads(self.attention(*parts, masks, training))

    def attend_once(self, token, x, masks, training):
        """Returns `attend` with queries of `token`, [B, 1, hidden], and keys of x, [B, T, hidden]: [B, 1, hidden]."""
        queries, keys_values = self.project_one(token, x, training)
        parts = [*self.by_head(queries), *self.by_head(keys_values)]
        return self.join_heads(self.attention(*parts, masks, training))

    def attend_packed(self, x, packing, training):
        """Returns `attend` for packed texts: [1, N, hidden] -> the same, or with `only` [1, B, hidden]."""
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

    def attention(self, query, key, value, masks, training):
        """Returns softmax(query key / sqrt(size)) value over the tokens in each of a list of masks: as the query.

        Query is [B, heads, Q, size], key and value are [B, heads, T, size].
        """
        logits = tf.matmul(query * (1.0 / math.sqrt(self.hidden_size // self.heads)), key, transpose_b=True)
        masks = [tf.cast(mask, tf.float32) for mask in masks]
        if self.causal:
            (is_token,) = masks
            length = tf.shape(is_token)[1]
            is_not_later = tf.sequence_mask(tf.range(1, length + 1), length, tf.float32)  # [T, T]
            masks = [is_token[:, tf.newaxis] * is_not_later]  # [B, T, T]
        weights = softmax(logits, *masks, training=training)  # [B, heads, Q, T]
        return tf.matmul(self.attention_dropout(weights, training=training), value)

    def project_one(self, token, x, training):
        """Returns queries of `token`, [B, 1, hidden], and joined keys and values of all tokens x, [B, T, 2 hidden]."""
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
        """Returns the kernel and the bias, or `None`, of queries, keys and values in the dtype of x."""
        bias = tf.cast(self.attention_bias, x.dtype) if self.has_bias else None
        return tf.cast(self.attention_kernel, x.dtype), bias

    def by_head(self, x):
        """Returns x, [B, T, parts * hidden], as a list of parts, each [B, heads, T, size], size = hidden / heads."""
        part_count = x.shape[-1] // self.hidden_size
        x = tf.reshape(x, [*leading_sizes(x), part_count, self.heads, self.hidden_size // self.heads])
        x = tf.transpose(x, [2, 0, 3, 1, 4])  # [parts, B, heads, T, size]
        return tf.unstack(x, axis=0, num=part_count)

    def join_heads(self, x):
        """Returns x, [B, heads, T, size], as [B, T, hidden]."""
        x = tf.transpose(x, [0, 2, 1, 3])
        return tf.reshape(x, [*leading_sizes(x)[:2], self.hidden_size])


def _unchanged(x, training=None):
    """Returns x unchanged, in place of a norm that a layer lacks."""
    return x


def leading_sizes(x):
    """Returns all sizes of a tensor except the last, for the shape of a `tf.reshape`: numbers, -1 or tensors.

    A single unknown size after a known first size is -1: the shape is then a constant, as TensorFlow Lite's fast
    kernels need. If the first size is unknown it may be 0, and -1 would be ambiguous: unknown sizes are tensors.
    """
    sizes = x.shape[:-1].as_list()
    if sizes[0] is not None and sizes.count(None) == 1:
        return [-1 if size is None else size for size in sizes]
    return [tf.shape(x)[axis] if size is None else size for axis, size in enumerate(sizes)]


def one_token(x, which, packing=None):
    """Returns the states of the "first" or the "last" tokens: [B, T, hidden] -> [B, 1, hidden].

    With a `packing`, whose towers read only first tokens, `which` is ignored: [1, N, hidden] -> [1, B, hidden].
    """
    if packing is not None:
        return packing.first_tokens(x)
    return x[:, :1] if which == "first" else x[:, -1:]


def _first_shape(shapes):
    """Returns the shape of a layer's input, or of the first of several inputs."""
    return shapes[0] if isinstance(shapes, (list, tuple)) else shapes
