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
    """Decodes a batch of encoded images as in evaluation, and passes over images that do not decode.

    Args:
      data: JPEG or PNG bytes, or features, string [B]; B may be 0.
      tower: the configuration's `image_tower`.

    Returns:
      (The images, uint8 [B + 1, S, S, 3] or float32 [B + 1, F], with zeros for images that do not decode and in the
      last row; whether each image decodes, bool [B]).
    """
    count = tf.size(data, out_type=tf.int64)
    spec = prepared_spec(tower)

    def decode(index, image):
        return index, prepare_image(image, tower)

    # A graph cannot catch an error, but tf.data can leave out elements that fail.
    examples = tf.data.Dataset.from_tensor_slices((tf.range(count), data))
    decoded = examples.map(decode, num_parallel_calls=DECODED_AT_ONCE).ignore_errors()
    last = (count, tf.zeros(spec.shape, spec.dtype))  # a data set without any element would be an error
    decoded = decoded.concatenate(tf.data.Dataset.from_tensors(last)).batch(count + 1)
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False  # tuning would cost a thread per request
    indices, images = decoded.with_options(options).get_single_element()  # [K + 1], [K + 1, …]
    indices = indices[:, tf.newaxis]
    counts = tf.scatter_nd(indices, tf.ones_like(indices[:, 0], tf.int32), [count + 1])  # 1 for an image that decodes
    is_decoded = counts[:-1] > 0
    return tf.scatter_nd(indices, images, tf.stack([count + 1, *spec.shape])), is_decoded


def fold_batch_norm(tower: keras.Model) -> keras.Model:
    """Returns a copy of an image tower for inference whose convolutions include the BatchNorm after them.

    At inference BatchNorm is y = x s + t, with s = gamma / sqrt(variance + epsilon) and t = beta - mean s for each
    channel. A convolution before it can do both: its kernel times s, with t as its bias. TF-Hub modules are not folded,
    because they can be trained.

    The copy's output is the tower's with `training=False`, to float32 rounding. Only a BatchNorm that directly follows
    a convolution is folded, and its convolution's kernel and bias are the copy's own variables; all other layers are
    shared with `tower`. A tower without such a BatchNorm is returned itself.
    """
    norm_after = {}  # {name of a convolution: the BatchNorm after it}
    for norm in tower.layers:
        if isinstance(norm, keras.layers.BatchNormalization) and norm.inbound_nodes:
            layer_before = norm.inbound_nodes[0].inbound_layers  # the layer itself, if it is a single layer
            if _is_foldable(layer_before):
                norm_after[layer_before.name] = norm
    if not norm_after:
        return tower
    folded_norms = {norm.name for norm in norm_after.values()}

    def copy(layer):
        """Returns the folded copy's layer in place of a layer of the tower."""
        if layer.name in norm_after:
            return _with_bias(layer)
        if layer.name in folded_norms:  # a plain layer passes its input on
            return keras.layers.Layer(name=layer.name, dtype=layer.compute_dtype)
        return layer

    folded = keras.models.clone_model(tower, clone_function=copy)
    for name, norm in norm_after.items():
        _fold(tower.get_layer(name), norm, folded.get_layer(name))
    return folded


def _is_foldable(layer) -> bool:
    """Whether a layer is a convolution without bias and activation whose output only one layer reads."""
    if not isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)):
        return False
    is_linear = not layer.use_bias and layer.activation is keras.activations.linear
    return is_linear and len(layer.outbound_nodes) == 1


def _with_bias(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Returns a layer like a convolution, with a bias; its weights are not set.

    It is Keras' own layer, of which TensorFlow computes convolution and bias in one operation.
    """
    options = dict(strides=layer.strides, padding=layer.padding, name=layer.name, dtype=layer.dtype_policy)
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return keras.layers.DepthwiseConv2D(layer.kernel_size, **options)
    return keras.layers.Conv2D(layer.filters, layer.kernel_size, **options)


def _fold(convolution, norm, target) -> None:
    """Sets the weights of `target`, as `_with_bias` returns it, so that it computes `convolution` and then `norm`."""
    (kernel,) = convolution.get_weights()  # [k, k, inputs, outputs], or [k, k, channels, 1] of a depthwise one
    scale = (norm.gamma * tf.math.rsqrt(norm.moving_variance + norm.epsilon)).numpy()
    shift = (norm.beta - norm.moving_mean * scale).numpy()
    kernel_scale = scale[:, None] if isinstance(target, keras.layers.DepthwiseConv2D) else scale
    target.set_weights([kernel * kernel_scale, shift])


@tf.autograph.experimental.do_not_convert  # for Keras' layers: saves seconds, and nothing here needs it
def traced_once(function: Callable, *inputs) -> tf.types.experimental.ConcreteFunction:
    """Returns a function, traced for inputs of these `tf.TensorSpec`s, to be called in functions that are saved.

    Saving traces every `tf.function` again, which takes seconds for an encoder and forgets the settings that held when
    it was traced first; a concrete function is called as it is.
    """
    return tf.function(function, autograph=False).get_concrete_function(*inputs)


def text_variables(model: DualEncoder) -> list[tf.Variable]:
    """Returns the variables of a model's text tower and of all its text heads."""
    parts = [model.text_encoder, *map(model.text_head, model.head_names)]
    return list(itertools.chain.from_iterable(part.variables for part in parts))


# Texts are packed without padding, and attention runs in this many groups of similar length; see `encode_by_length`.
LENGTH_GROUPS = 4


def image_signatures(model: DualEncoder, config: ConfigDict) -> tuple[tf.Module, dict]:
    """Returns (a module for `tf.saved_model.save`, {signature: function}) for a model's image encoder.

    "serving_default" takes "image_bytes", encoded images, string [B]; an image that does not decode becomes zeros.
    "image" takes "image", pixels, float32 [B, S, S, 3] in [0, 1], or features, float32 [B, F]. Both return
    {"embedding": float32 [B, D]}, L2-normalised. `config` is the configuration that the model was built by.
    """
    tower = fold_batch_norm(model.image_encoder)
    pixels = tf.TensorSpec([None, *model.image_shape], tf.float32, name="image")
    embed = traced_once(lambda image: image_embeddings(tower, image), pixels)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")], autograph=False)
    def from_bytes(image_bytes):
        """Returns the embeddings of encoded images, zeros for images that do not decode."""
        images, is_decoded = decode_batch(image_bytes, config.image_tower)  # [B + 1, …] and bool [B]
        # oneDNN's depthwise convolution fails on an empty batch, so an empty batch keeps the additional row.
        count = tf.size(image_bytes)
        images = unit_range(images[: tf.maximum(count, 1)])
        embeddings = embed(tf.ensure_shape(images, pixels.shape))[:count]
        return {"embedding": tf.where(is_decoded[:, tf.newaxis], embeddings, 0.0)}

    @tf.function(input_signature=[pixels], autograph=False)
    def from_pixels(image):
        embeddings = embed(tf.ensure_shape(_at_least_one(image), pixels.shape))
        return {"embedding": embeddings[: tf.shape(image)[0]]}

    # Only the variables are attached: attaching the Keras model would save every layer's functions too.
    module = tf.Module()
    module.model_variables = list(tower.variables)
    return module, {"serving_default": from_bytes, "image": from_pixels}


def text_signatures(model: DualEncoder, tokenizer: WordPieceTokenizer) -> tuple[tf.Module, dict]:
    """Returns (a module for `tf.saved_model.save`, {signature: function}) for a model's text encoder.

    "tokens" takes int32 [B, T]. "serving_default" and MURAL's "text_text" take "text", string [B], and put the
    tokenizer's prompt before each text; with a prompt, "prompted" (and "prompted_text_text") takes "prompted_text",
    texts that begin with another prompt. All return embeddings, float32 [B, D], L2-normalised, as "embedding", or as
    "text_text_embedding" by MURAL's second head.
    """
    token_specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in TOKENS]

    def encode(*tokens):
        return encode_by_length(model.text_encoder, dict(zip(TOKENS, tokens)), LENGTH_GROUPS, training=False)

    traced_encode = traced_once(encode, *token_specs)

    def embed(tokens, count, head):
        """Returns the first `count` embeddings by a head, float32 [count, D]; `tokens` are in the order of `TOKENS`."""
        return model.project_texts(traced_encode(*tokens), head)[:count]

    def from_strings(tokenizer, head, input_name, output_name):
        """Returns a concrete function from {input name: string [B]} to {output name: embeddings by a head}."""

        def from_text(**inputs):  # by keyword, because the input's name becomes the signature's
            texts = inputs[input_name]
            tokens = tokenizer(_at_least_one(texts), pad="longest")
            return {output_name: embed([tokens[name] for name in TOKENS], tf.size(texts), head)}

        spec = tf.TensorSpec([None], tf.string, name=input_name)
        return tf.function(from_text, autograph=False).get_concrete_function(**{input_name: spec})

    @tf.function(input_signature=token_specs, autograph=False)
    def from_tokens(input_word_ids, input_mask, input_type_ids):
        """Returns the embeddings of tokens; fails for more tokens than the tower takes."""
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
    """Returns a batch [B, …], or for B = 0 one row of zeros (or ""), because encoders fail on empty batches."""
    missing_rows = tf.cast(tf.equal(tf.shape(batch)[0], 0), tf.int32)  # 1 or 0
    shape = tf.concat([[missing_rows], tf.shape(batch)[1:]], axis=0)
    return tf.concat([batch, tf.zeros(shape, batch.dtype)], axis=0)
