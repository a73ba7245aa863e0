"""BERT's cheap functions (Devlin et al., 2019), each one pass over memory in training: see `fused`."""

from __future__ import annotations

import math

import tensorflow as tf

from mural_tf.encoders.fused import fused

LAYER_NORM_EPSILON = 1e-12
MASKED = -1e9  # added to the attention logits of padding


@fused
def gelu(x: tf.Tensor) -> tf.Tensor:
    """x times the standard normal's distribution function at x (exact, by erf)."""
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


@fused
def add_and_normalize(x, y, gamma, beta):
    """Layer normalisation of x + y over the last axis; moments in float32 whatever the compute dtype."""
    total = tf.cast(x + y, tf.float32)
    centred = total - tf.reduce_mean(total, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    return tf.cast(centred * tf.math.rsqrt(variance + LAYER_NORM_EPSILON), x.dtype) * gamma + beta


@fused
def masked_softmax(logits, mask):
    """Attention weights: softmax over the last axis of [B, heads, Q, T], in float32, of the tokens in mask [B, T]."""
    bias = (1.0 - mask)[:, tf.newaxis, tf.newaxis, :] * MASKED
    return tf.cast(tf.nn.softmax(tf.cast(logits, tf.float32) + bias), logits.dtype)
