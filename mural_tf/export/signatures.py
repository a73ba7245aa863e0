"""The two encoders' serving signatures: from the wire to the vector in one graph.

No request can spoil its neighbours: an image that does not decode gets a row of zeros (a vector of length 0 where all
others have length 1), any bytes are a text, and an empty batch gives an empty answer.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.encoders.by_length import encode_by_length
from mural_tf.export.decoding import decode_batch
from mural_tf.export.folding import fold_batch_norm
from mural_tf.export.hub_modules import text_variables, traced_once
from mural_tf.models.contrastive import TOKENS, ContrastiveModel, image_embeddings, unit_range
from mural_tf.text.tokenizer import WordPieceTokenizer

# Texts are packed without padding, and attention runs in this many groups of similar length; see `encode_by_length`.
LENGTH_GROUPS = 4


def image_encoder(model: ContrastiveModel, config: ConfigDict) -> tuple[tf.Module, dict]:
    """Returns what to save and its signatures, "serving_default" from bytes, "image" from pixels or features."""
    preprocessing, tower = config.image_tower, fold_batch_norm(model.image_encoder)
    pixels = tf.TensorSpec([None, *model.image_shape], tf.float32, name="image")
    embed = traced_once(lambda image: image_embeddings(tower, image), pixels)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")], autograph=False)
    def from_bytes(image_bytes):
        images, readable = decode_batch(image_bytes, preprocessing)
        # oneDNN's depthwise convolution fails on an empty batch: there is always at least one row.
        images = unit_range(images[: tf.maximum(tf.size(image_bytes), 1)])
        embeddings = embed(tf.ensure_shape(images, pixels.shape))
        return {"embedding": tf.where(readable[:, tf.newaxis], embeddings[: tf.size(image_bytes)], 0.0)}

    @tf.function(input_signature=[pixels], autograph=False)
    def from_pixels(image):
        return {"embedding": embed(tf.ensure_shape(_at_least_one(image), pixels.shape))[: tf.shape(image)[0]]}

    # Only the variables are attached: attaching the Keras model would save every layer's functions too.
    module = tf.Module()
    module.model_variables = list(tower.variables)
    return module, {"serving_default": from_bytes, "image": from_pixels}


def text_encoder(model: ContrastiveModel, tokenizer: WordPieceTokenizer) -> tuple[tf.Module, dict]:
    """Returns what to save and its signatures: "serving_default" and, of MURAL, "text_text" from strings; "tokens"."""
    text = tf.TensorSpec([None], tf.string, name="text")
    token_specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in TOKENS]

    def encode(*tokens):
        return encode_by_length(model.text_encoder, dict(zip(TOKENS, tokens)), LENGTH_GROUPS, training=False)

    states = traced_once(encode, *token_specs)

    def embed(tokens, count, head):
        return model.project_texts(states(*(tokens[name] for name in TOKENS)), head)[:count]

    @tf.function(input_signature=[text], autograph=False)
    def from_text(text):
        return {"embedding": embed(tokenizer(_at_least_one(text), pad="longest"), tf.size(text), model.head_names[0])}

    @tf.function(input_signature=token_specs, autograph=False)
    def from_tokens(input_word_ids, input_mask, input_type_ids):
        length = tf.shape(input_word_ids)[1]
        message = f"This encoder takes 1 to {tokenizer.max_length} tokens a text, [CLS] and [SEP] included."
        fits = tf.logical_and(length >= 1, length <= tokenizer.max_length)
        with tf.control_dependencies([tf.debugging.Assert(fits, [message, length])]):
            tokens = [_at_least_one(ids) for ids in (input_word_ids, input_mask, input_type_ids)]
        return {"embedding": embed(dict(zip(TOKENS, tokens)), tf.shape(input_word_ids)[0], model.head_names[0])}

    signatures = {"serving_default": from_text, "tokens": from_tokens}
    if "text_text" in model.head_names:

        @tf.function(input_signature=[text], autograph=False)
        def for_texts(text):
            tokens = tokenizer(_at_least_one(text), pad="longest")
            return {"text_text_embedding": embed(tokens, tf.size(text), "text_text")}

        signatures["text_text"] = for_texts
    module = tf.Module()
    module.model_variables = text_variables(model)
    module.tokenizer = tokenizer
    return module, signatures


def _at_least_one(batch: tf.Tensor) -> tf.Tensor:
    """Adds one row of zeros (or "") to an empty batch; encoders fail on empty ones."""
    missing = tf.cast(tf.equal(tf.shape(batch)[0], 0), tf.int32)
    row = tf.concat([[missing], tf.shape(batch)[1:]], axis=0)
    empty = tf.constant("" if batch.dtype == tf.string else 0, batch.dtype)
    return tf.concat([batch, tf.fill(row, empty)], axis=0)
