"""BatchNorm folded into the convolutions before it, for inference: fewer passes over memory, the same numbers.

At inference BatchNorm is y = x s + t, with s = gamma / sqrt(variance + epsilon) and t = beta - mean s for each
channel. A convolution before it can do both: its kernel times s, with t as its bias. The served image encoder is
folded; the TF-Hub modules are not, because they can be trained.
"""

from __future__ import annotations

import tensorflow as tf


def fold_batch_norm(tower: tf.keras.Model) -> tf.keras.Model:
    """Returns a copy of an image tower for inference in which convolutions hold what BatchNorm did after them.

    Its output is the tower's with `training=False`, to float32 rounding. A BatchNorm that does not directly follow a
    convolution of its own stays, and so does all else; such layers are shared with `tower`. Kernels and biases are the
    copy's own variables. A tower without any is returned as it is.
    """
    followed = {}  # name of a convolution -> the BatchNorm after it
    for norm in tower.layers:
        before = norm.inbound_nodes[0].inbound_layers if norm.inbound_nodes else None
        if isinstance(norm, tf.keras.layers.BatchNormalization) and _is_foldable(before):
            followed[before.name] = norm
    if not followed:
        return tower
    dropped = {norm.name for norm in followed.values()}

    def copy(layer):
        if layer.name in followed:
            return _with_bias(layer)
        return tf.keras.layers.Layer(name=layer.name, dtype=layer.compute_dtype) if layer.name in dropped else layer

    folded = tf.keras.models.clone_model(tower, clone_function=copy)
    for name, norm in followed.items():
        _fold(tower.get_layer(name), norm, folded.get_layer(name))
    return folded


def _is_foldable(layer) -> bool:
    if not isinstance(layer, (tf.keras.layers.Conv2D, tf.keras.layers.DepthwiseConv2D)):
        return False
    is_linear = not layer.use_bias and layer.activation is tf.keras.activations.linear
    return is_linear and len(layer.outbound_nodes) == 1  # nothing else reads it


def _with_bias(layer: tf.keras.layers.Layer) -> tf.keras.layers.Layer:
    """Keras' own layer, with which TensorFlow computes bias and convolution in one operation."""
    options = dict(strides=layer.strides, padding=layer.padding, name=layer.name, dtype=layer.dtype_policy)
    if isinstance(layer, tf.keras.layers.DepthwiseConv2D):
        return tf.keras.layers.DepthwiseConv2D(layer.kernel_size, **options)
    return tf.keras.layers.Conv2D(layer.filters, layer.kernel_size, **options)


def _fold(convolution, norm, target) -> None:
    """Sets the weights of `target` to `convolution` followed by `norm`."""
    (kernel,) = convolution.get_weights()  # [k, k, inputs, outputs], or [k, k, channels, 1] of a depthwise one
    scale = (norm.gamma * tf.math.rsqrt(norm.moving_variance + norm.epsilon)).numpy()
    shift = (norm.beta - norm.moving_mean * scale).numpy()
    depthwise = isinstance(target, tf.keras.layers.DepthwiseConv2D)
    target.set_weights([kernel * (scale[:, None] if depthwise else scale), shift])
