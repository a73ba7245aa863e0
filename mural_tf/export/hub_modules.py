"""The encoders as reusable SavedModels, TF-Hub's interface for using and fine-tuning them elsewhere.

A module has `__call__(inputs, training=False)`, traced for both values of `training`; `variables`,
`trainable_variables` and `regularization_losses`. `hub.load` runs it, `hub.KerasLayer(path, trainable=True)` trains
it. Text comes in two modules, as LaBSE's: a preprocessor, strings to tokens, for the host; and an encoder, tokens to
embeddings, which also runs on a TPU. The encoder's sentence embedding is "default", so that it can be a text tower.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from mural_tf.encoders import fused
from mural_tf.models.contrastive import TOKENS, ContrastiveModel
from mural_tf.text.tokenizer import WordPieceTokenizer

IMAGE_ENCODER = "hub/image_encoder"
TEXT_PREPROCESSOR = "hub/text_preprocessor"
TEXT_ENCODER = "hub/text_encoder"


def save_hub_modules(model: ContrastiveModel, tokenizer: WordPieceTokenizer, directory: str | pathlib.Path) -> None:
    """Writes the three modules below `directory`; `tokenizer` must be built on a file, which becomes an asset."""
    directory = pathlib.Path(directory)
    with _without_fusion():
        for name, module in (
            (IMAGE_ENCODER, image_encoder_module(model)),
            (TEXT_PREPROCESSOR, text_preprocessor_module(tokenizer)),
            (TEXT_ENCODER, text_encoder_module(model)),
        ):
            tf.saved_model.save(module, str(directory / name))


@contextlib.contextmanager
def _without_fusion() -> Iterator[None]:
    """Keeps XLA out of what is traced for training: who fine-tunes a module decides what to compile."""
    before = fused.enable_fusion(False)
    try:
        yield
    finally:
        fused.enable_fusion(before)


def text_variables(model: ContrastiveModel) -> list[tf.Variable]:
    """Returns the variables of the text tower and its heads."""
    return [v for part in (model.text_encoder, *map(model.text_head, model.head_names)) for v in part.variables]


def image_encoder_module(model: ContrastiveModel) -> tf.train.Checkpoint:
    """Float32 [B, S, S, 3] RGB in [0, 1], or features [B, F] → float32 [B, D], L2-normalised."""

    def encode(inputs, training=False):
        return model.embed_images(inputs, training=training)

    images = tf.TensorSpec([None, *model.image_shape], tf.float32, name="inputs")
    return _reusable(encode, images, model.image_encoder.variables)


def text_encoder_module(model: ContrastiveModel) -> tf.train.Checkpoint:
    """Dict of int32 [B, T] `input_word_ids`, `input_mask`, `input_type_ids` → dict of float32:

    "default": [B, D], L2-normalised, comparable with image embeddings; "text_text", if the model has that head:
    likewise, trained to compare texts with texts; "sentence": [B, H], the tower's own output before any head.
    """

    def encode(inputs, training=False):
        sentence = tf.cast(model.text_encoder({name: inputs[name] for name in TOKENS}, training=training), tf.float32)
        outputs = {"sentence": sentence}
        for name in model.head_names:
            key = "default" if name == model.head_names[0] else name
            outputs[key] = tf.math.l2_normalize(tf.cast(model.text_head(name)(sentence), tf.float32), axis=-1)
        return outputs

    tokens = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in TOKENS}
    return _reusable(encode, tokens, text_variables(model))


def _reusable(encode: Callable, inputs, variables: Sequence[tf.Variable]) -> tf.train.Checkpoint:
    # Only variables and functions are attached: attaching the Keras model would save every layer's functions too.
    module = tf.train.Checkpoint()
    module.variables = list(variables)
    module.trainable_variables = [v for v in variables if v.trainable]
    module.regularization_losses = []
    module.__call__ = tf.function(encode)
    for training in (True, False):
        module.__call__.get_concrete_function(inputs, training=training)
    return module


def text_preprocessor_module(tokenizer: WordPieceTokenizer) -> tf.train.Checkpoint:
    """String [B] → dict of int32 [B, T] `input_word_ids`, `input_mask`, `input_type_ids`, T = `max_length`.

    As LaBSE's preprocessor it also has `tokenize`, string [B] → int32 [B, (words), (pieces)], and
    `bert_pack_inputs([tokens], seq_length)`, which adds [CLS], [SEP] and padding to another length.
    """

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def preprocess(inputs):
        return tokenizer(inputs)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def tokenize(inputs):
        return tokenizer.tokenize(inputs)

    @tf.function
    def bert_pack_inputs(inputs, seq_length):
        pieces = inputs[0].merge_dims(1, 2) if inputs[0].ragged_rank == 2 else inputs[0]
        return tokenizer.pack(pieces, seq_length)

    length = tf.TensorSpec([], tf.int32, name="seq_length")
    for ragged_rank in (1, 2):
        pieces = tf.RaggedTensorSpec([None] * (ragged_rank + 1), tf.int32, ragged_rank)
        bert_pack_inputs.get_concrete_function([pieces], seq_length=length)

    module = tf.train.Checkpoint(tokenizer=tokenizer)
    module.variables, module.trainable_variables, module.regularization_losses = [], [], []
    module.__call__, module.tokenize, module.bert_pack_inputs = preprocess, tokenize, bert_pack_inputs
    return module
