"""The two encoders' serving signatures: from the wire to the vector in one graph.

No request can spoil its neighbours: an image that does not decode gets a row of zeros (a vector of length 0 where all
others have length 1), any bytes are a text, and an empty batch gives an empty answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.data.images import prepare_image, prepared_spec
from mural_tf.encoders.by_length import encode_by_length
from mural_tf.encoders.layers import unit_range
from mural_tf.models.dual_encoder import DualEncoder, image_embeddings
from mural_tf.text.tokens import TOKENS
from mural_tf.text.word_pieces import WordPieceTokenizer

# How many images of a batch are decoded at once, at most; the server's threads limit it further. Fixed, because
# tf.data's own choice starts at one and is forgotten after every batch.
DECODED_AT_ONCE = 16


def decode_batch(data: tf.Tensor, tower: ConfigDict) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns encoded images, string [B], decoded as in evaluation, [B + 1, …], and bool [B]: which could be decoded.

    Rows are uint8 [S, S, 3] or features, float32 [F], as `tower`, the `image_tower` part of a configuration, takes
    them. Images that could not be decoded, and the last row, are zeros. A graph cannot catch an error, but tf.data can
    leave out elements that fail.
    """
    count = tf.size(data, out_type=tf.int64)
    spec = prepared_spec(tower)

    def decode(index, image):
        return index, prepare_image(image, tower)

    examples = tf.data.Dataset.from_tensor_slices((tf.range(count), data))
    decoded = examples.map(decode, num_parallel_calls=DECODED_AT_ONCE).ignore_errors()
    last = (count, tf.zeros(spec.shape, spec.dtype))  # a data set without any element would be an error
    decoded = decoded.concatenate(tf.data.Dataset.from_tensors(last)).batch(count + 1)
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False  # tuning would cost a thread per request
    indices, images = decoded.with_options(options).get_single_element()  # [K + 1], [K + 1, …]
    indices = indices[:, tf.newaxis]
    marks = tf.ones_like(indices[:, 0], tf.int32)
    readable = tf.scatter_nd(indices, marks, [count + 1])[:-1] > 0
    return tf.scatter_nd(indices, images, tf.stack([count + 1, *spec.shape])), readable


def fold_batch_norm(tower: keras.Model) -> keras.Model:
    """Returns a copy of an image tower for inference whose convolutions include the BatchNorm after them.

    At inference BatchNorm is y = x s + t, with s = gamma / sqrt(variance + epsilon) and t = beta - mean s for each
    channel. A convolution before it can do both: its kernel times s, with t as its bias. TF-Hub modules are not folded,
    because they can be trained.

    Its output is the tower's with `training=False`, to float32 rounding. A BatchNorm that does not directly follow a
    convolution of its own stays, and so does everything else; such layers are shared with `tower`. Kernels and biases
    are the copy's own variables. A tower without such a BatchNorm is returned itself.
    """
    followed = {}  # {name of a convolution: the BatchNorm after it}
    for norm in tower.layers:
        if isinstance(norm, keras.layers.BatchNormalization) and norm.inbound_nodes:
            before = norm.inbound_nodes[0].inbound_layers
            if _is_foldable(before):
                followed[before.name] = norm
    if not followed:
        return tower
    dropped = {norm.name for norm in followed.values()}

    def copy(layer):
        if layer.name in followed:
            return _with_bias(layer)
        if layer.name in dropped:  # a plain layer passes its input on
            return keras.layers.Layer(name=layer.name, dtype=layer.compute_dtype)
        return layer

    folded = keras.models.clone_model(tower, clone_function=copy)
    for name, norm in followed.items():
        _fold(tower.get_layer(name), norm, folded.get_layer(name))
    return folded


def _is_foldable(layer) -> bool:
    """Whether a layer is a convolution without bias and activation whose output only one layer reads."""
    if not isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)):
        return False
    is_linear = not layer.use_bias and layer.activation is keras.activations.linear
    return is_linear and len(layer.outbound_nodes) == 1


def _with_bias(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Returns Keras' own layer for a convolution, with a bias: TensorFlow computes both in one operation."""
    options = dict(strides=layer.strides, padding=layer.padding, name=layer.name, dtype=layer.dtype_policy)
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return keras.layers.DepthwiseConv2D(layer.kernel_size, **options)
    return keras.layers.Conv2D(layer.filters, layer.kernel_size, **options)


def _fold(convolution, norm, target) -> None:
    """Sets the weights of `target` to `convolution` followed by `norm`."""
    (kernel,) = convolution.get_weights()  # [k, k, inputs, outputs], or [k, k, channels, 1] of a depthwise one
    scale = (norm.gamma * tf.math.rsqrt(norm.moving_variance + norm.epsilon)).numpy()
    shift = (norm.beta - norm.moving_mean * scale).numpy()
    kernel_scale = scale[:, None] if isinstance(target, keras.layers.DepthwiseConv2D) else scale
    target.set_weights([kernel * kernel_scale, shift])


@tf.autograph.experimental.do_not_convert  # for Keras' layers: saves seconds, and nothing here needs it
def traced_once(function: Callable, *inputs) -> tf.types.experimental.ConcreteFunction:
    """Returns `function` for tensors of these specs, for use in functions that are saved.

    Saving traces every `tf.function` again, which takes seconds for an encoder and forgets what held when it was
    traced first; a concrete function is called as it is.
    """
    return tf.function(function, autograph=False).get_concrete_function(*inputs)


def text_variables(model: DualEncoder) -> list[tf.Variable]:
    """Returns the variables of the text tower and its heads."""
    parts = [model.text_encoder, *map(model.text_head, model.head_names)]
    return list(itertools.chain.from_iterable(part.variables for part in parts))


# Texts are packed without padding, and attention runs in this many groups of similar length; see `encode_by_length`.
LENGTH_GROUPS = 4


def image_signatures(model: DualEncoder, config: ConfigDict) -> tuple[tf.Module, dict]:
    """Returns a module for `tf.saved_model.save` and its signatures, each to {"embedding": float32 [B, D]}.

    "serving_default" takes encoded images, string [B]; an image that does not decode becomes zeros. "image" takes
    pixels or features, float32 [B, …].
    """
    tower = fold_batch_norm(model.image_encoder)
    pixels = tf.TensorSpec([None, *model.image_shape], tf.float32, name="image")
    embed = traced_once(lambda image: image_embeddings(tower, image), pixels)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")], autograph=False)
    def from_bytes(image_bytes):
        images, readable = decode_batch(image_bytes, config.image_tower)  # [B + 1, …] and bool [B]
        # oneDNN's depthwise convolution fails on an empty batch, so an empty one keeps the additional row.
        count = tf.size(image_bytes)
        images = unit_range(images[: tf.maximum(count, 1)])
        embeddings = embed(tf.ensure_shape(images, pixels.shape))[:count]
        return {"embedding": tf.where(readable[:, tf.newaxis], embeddings, 0.0)}

    @tf.function(input_signature=[pixels], autograph=False)
    def from_pixels(image):
        embeddings = embed(tf.ensure_shape(_at_least_one(image), pixels.shape))
        return {"embedding": embeddings[: tf.shape(image)[0]]}

    # Only the variables are attached: attaching the Keras model would save every layer's functions too.
    module = tf.Module()
    module.model_variables = list(tower.variables)
    return module, {"serving_default": from_bytes, "image": from_pixels}


def text_signatures(model: DualEncoder, tokenizer: WordPieceTokenizer) -> tuple[tf.Module, dict]:
    """Returns a module for `tf.saved_model.save` and its signatures, each to float32 [B, D].

    "tokens" takes int32 [B, T]. "serving_default" and MURAL's "text_text" take texts, string [B], and put the
    tokenizer's prompt before each of them; with a prompt, "prompted" (and "prompted_text_text") takes texts that begin
    with another prompt.
    """
    token_specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in TOKENS]

    def encode(*tokens):
        return encode_by_length(model.text_encoder, dict(zip(TOKENS, tokens)), LENGTH_GROUPS, training=False)

    states = traced_once(encode, *token_specs)

    def embed(tokens, count, head):
        return model.project_texts(states(*tokens), head)[:count]

    def from_strings(tokenizer, head, input_name, output_name):
        """Returns a concrete function of {input name: string [B]} to {output name: vectors by a head}."""

        def from_text(**inputs):  # by keyword, because the input's name becomes the signature's
            texts = inputs[input_name]
            tokens = tokenizer(_at_least_one(texts), pad="longest")
            return {output_name: embed(map(tokens.get, TOKENS), tf.size(texts), head)}

        spec = tf.TensorSpec([None], tf.string, name=input_name)
        return tf.function(from_text, autograph=False).get_concrete_function(**{input_name: spec})

    @tf.function(input_signature=token_specs, autograph=False)
    def from_tokens(input_word_ids, input_mask, input_type_ids):
        length = tf.shape(input_word_ids)[1]
        message = f"This encoder takes 1 to {tokenizer.max_length} tokens a text, [CLS] and [SEP] included."
        fits = (length >= 1) & (length <= tokenizer.max_length)
        with tf.control_dependencies([tf.debugging.Assert(fits, [message, length])]):
            tokens = [_at_least_one(ids) for ids in (input_word_ids, input_mask, input_type_ids)]
        return {"embedding": embed(tokens, tf.shape(input_word_ids)[0], model.head_names[0])}

    signatures = {"tokens": from_tokens}
    outputs = {"serving_default": (model.head_names[0], "embedding")}
    if "text_text" in model.head_names:
        outputs["text_text"] = ("text_text", "text_text_embedding")
    for name, (head, output) in outputs.items():
        signatures[name] = from_strings(tokenizer, head, "text", output)
        if tokenizer.prompt:
            prompted_name = "prompted" if name == "serving_default" else f"prompted_{name}"
            signatures[prompted_name] = from_strings(tokenizer.with_prompt(""), head, "prompted_text", output)
    module = tf.Module()
    module.model_variables = text_variables(model)
    module.tokenizer = tokenizer
    return module, signatures


def _at_least_one(batch: tf.Tensor) -> tf.Tensor:
    """Returns a batch, and for an empty batch a row of zeros (or ""), because encoders fail on empty batches."""
    missing_rows = tf.cast(tf.equal(tf.shape(batch)[0], 0), tf.int32)  # 1 or 0
    shape = tf.concat([[missing_rows], tf.shape(batch)[1:]], axis=0)
    return tf.concat([batch, tf.zeros(shape, batch.dtype)], axis=0)
