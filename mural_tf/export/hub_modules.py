"""The encoders as reusable SavedModels, TF-Hub's interface for using and fine-tuning them elsewhere.

A module has `__call__(inputs, training=False)`, traced for both values of `training`; `variables`,
`trainable_variables` and `regularization_losses`. `hub.load` runs it, `hub.KerasLayer(path, trainable=True)` trains
it. Text comes in two modules, as LaBSE's: a preprocessor, strings to tokens, for the host; and an encoder, tokens to
embeddings, which also runs on a TPU. The encoder's sentence embedding is "default", so that it can be a text tower.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.files import as_path, json_field, read_json
from mural_tf.backend import tf_text
from mural_tf.encoders.kernels import set_fusion
from mural_tf.encoders.saved_models import seal_graph
from mural_tf.encoders.towers import CHOICES, preparation
from mural_tf.export.signatures import text_variables, traced_once
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.text.language_words import WordTokenizer
from mural_tf.text.tokens import TOKENS
from mural_tf.text.word_pieces import WordPieceTokenizer

IMAGE_ENCODER = "hub/image_encoder"
TEXT_PREPROCESSOR = "hub/text_preprocessor"
TEXT_ENCODER = "hub/text_encoder"
SETTINGS = "settings.json"


def save_hub_modules(
    model: DualEncoder, tokenizer: WordPieceTokenizer, config: ConfigDict, directory: str | pathlib.Path
) -> None:
    """Writes the three modules of a model below `directory`.

    The image encoder and the preprocessor have an asset `settings.json`, with the values that a fine-tuner must keep.

    Args:
      model: the trained model.
      tokenizer: its tokenizer, built on a file, which becomes an asset of the preprocessor.
      config: the configuration that the model was built by.
      directory: the export's folder.
    """
    directory = pathlib.Path(directory)
    with _without_fusion():
        _save(image_encoder_module(model), directory / IMAGE_ENCODER, image_settings(model, config))
        _save(text_preprocessor_module(tokenizer), directory / TEXT_PREPROCESSOR, text_settings(tokenizer, config))
        _save(text_encoder_module(model), directory / TEXT_ENCODER, {})


def _save(module: tf.train.Checkpoint, folder: pathlib.Path, settings: Mapping) -> None:
    """Saves a module into a folder, with the digests of its files, and with `settings` as an asset if there are any."""
    with tempfile.TemporaryDirectory() as temporary:
        if settings:
            path = pathlib.Path(temporary) / SETTINGS
            path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
            module.settings = tf.saved_model.Asset(str(path))
        tf.saved_model.save(module, str(folder))
    seal_graph(folder)


def image_settings(model: DualEncoder, config: ConfigDict) -> dict[str, object]:
    """Returns the contents of an image encoder's `settings.json`: its `preparation`, and settings of the model."""
    return {
        **preparation(config.image_tower),
        "embedding_size": int(config.embedding_size),
        "model": config.model,
        "learned_numbers": numbers_of(model),
    }


def stored_preparation(module: str | pathlib.Path) -> dict[str, int | str]:
    """Returns the `preparation` of images that an image encoder's `settings.json` states; {} without that file.

    Modules from elsewhere have no such file. Raises `UserError` if it is damaged.
    """
    path = as_path(module) / "assets" / SETTINGS
    if not path.is_file():
        return {}
    settings = read_json(path)
    fields = {name: json_field(settings, name, int, path) for name in ("resize", "image_size")}
    for name, choices in CHOICES.items():
        fields[name] = json_field(settings, name, str, path, choices[0])  # older modules lack these
    return fields


def text_settings(tokenizer: WordPieceTokenizer | WordTokenizer, config: ConfigDict) -> dict[str, object]:
    """Returns the contents of a preprocessor's `settings.json`: how it makes tokens of texts."""
    return {
        "max_length": tokenizer.max_length,
        "lower_case": bool(tokenizer.lower_case),
        "strip_accents": bool(tokenizer.strip_accents),
        "builder": config.vocabulary.builder,
        "layout": config.vocabulary.layout,
        "cleaning": list(config.vocabulary.cleaning),
        "size": int(config.vocabulary.size),
        "prompt": config.vocabulary.prompt,
        "prompts": list(config.vocabulary.prompts),
    }


@contextlib.contextmanager
def _without_fusion() -> Iterator[None]:
    """Keeps XLA out of functions that are traced in the `with` block: the user of a module decides on compilation."""
    before = set_fusion("off")
    try:
        yield
    finally:
        set_fusion(before)


@contextlib.contextmanager
def _statistics_of_the_batch(model: DualEncoder) -> Iterator[None]:
    """Makes BatchNorm take the statistics of the whole batch in the `with` block, for all groups of the model."""
    groups = [(layer, layer.group) for layer in model.normalization_layers()]
    try:
        for layer, _ in groups:
            layer.group = "local"
        yield
    finally:
        for layer, group in groups:
            layer.group = group


def image_encoder_module(model: DualEncoder) -> tf.train.Checkpoint:
    """Returns the module of a model's image encoder.

    It maps images, float32 [B, S, S, 3] RGB in [0, 1], or features, float32 [B, F], to embeddings, float32 [B, D],
    L2-normalised. In training, BatchNorm takes the statistics of the batch it is given, for any group the model was
    trained with: another trainer's batch need not divide into such groups.
    """

    def encode(inputs, training=False):
        return model.embed_images(inputs, training=training)

    images = tf.TensorSpec([None, *model.image_shape], tf.float32, name="inputs")
    with _statistics_of_the_batch(model):
        return _reusable_module(encode, images, model.image_encoder.variables)


def text_encoder_module(model: DualEncoder) -> tf.train.Checkpoint:
    """Returns the module of a model's text encoder.

    It maps {"input_word_ids", "input_mask", "input_type_ids": int32 [B, T]} to a dictionary of float32:

        default     [B, D], L2-normalised, comparable with image embeddings
        text_text   [B, D], L2-normalised, of a further head of this name, which compares texts with texts
        sentence    [B, H], the tower's own output before any head
    """

    def encode(inputs, training=False):
        """Returns the module's outputs for {name: int32 [B, T]}; the model's first head gives "default"."""
        tokens = {name: inputs[name] for name in TOKENS}
        sentence = tf.cast(model.text_encoder(tokens, training=training), tf.float32)
        outputs = {"sentence": sentence}
        for name in model.head_names:
            key = "default" if name == model.head_names[0] else name
            embeddings = tf.cast(model.text_head(name)(sentence), tf.float32)
            outputs[key] = tf.math.l2_normalize(embeddings, axis=-1)
        return outputs

    tokens = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in TOKENS}
    return _reusable_module(encode, tokens, text_variables(model))


def _reusable_module(encode: Callable, inputs, variables: Sequence[tf.Variable]) -> tf.train.Checkpoint:
    """Returns a module of TF-Hub's interface, see above.

    Args:
      encode: a function of (inputs, training).
      inputs: the `tf.TensorSpec`s of its inputs, in the structure of the inputs.
      variables: the variables that it uses.
    """
    # Only variables and functions are attached: attaching the Keras model would save every layer's functions too.
    module = tf.train.Checkpoint()
    module.variables = list(variables)
    module.trainable_variables = [variable for variable in variables if variable.trainable]
    module.regularization_losses = []
    traced = {
        True: traced_once(lambda inputs: encode(inputs, training=True), inputs),
        False: traced_once(lambda inputs: encode(inputs, training=False), inputs),
    }
    module.__call__ = tf.function(lambda inputs, training=False: traced[bool(training)](inputs), autograph=False)
    for training in (True, False):
        module.__call__.get_concrete_function(inputs, training=training)
    return module


def text_preprocessor_module(tokenizer: WordPieceTokenizer | WordTokenizer) -> tf.train.Checkpoint:
    """Returns the module of a tokenizer, with the functions of LaBSE's preprocessor.

    It maps texts, string [B], to {"input_word_ids", "input_mask", "input_type_ids": int32 [B, `max_length`]}. Its
    function `tokenize` maps texts, string [B], to the pieces of their words, int32 [B, (words), (pieces)], and
    `bert_pack_inputs` is as `_packing_function` says.
    """
    signature = [tf.TensorSpec([None], tf.string, name="inputs")]

    @tf.function(input_signature=signature, autograph=False)
    def preprocess(inputs):
        return tokenizer(inputs)

    @tf.function(input_signature=signature, autograph=False)
    def tokenize(inputs):
        return tokenizer.tokenize(tokenizer.prompted(inputs))

    bert_pack_inputs = _packing_function(tokenizer)
    module = tf.train.Checkpoint(tokenizer=tokenizer)
    module.variables = []
    module.trainable_variables = []
    module.regularization_losses = []
    module.__call__ = preprocess
    module.tokenize = tokenize
    module.bert_pack_inputs = bert_pack_inputs
    return module


def _packing_function(tokenizer: WordPieceTokenizer | WordTokenizer) -> Callable:
    """Returns `bert_pack_inputs(segments, seq_length)`, a `tf.function` traced for all inputs that a tokenizer takes.

    Segments are one or two ragged tensors of pieces, int32 [B, (pieces)] or [B, (words), (pieces)]; a `WordTokenizer`
    takes one. They become {"input_word_ids", "input_mask", "input_type_ids": int32 [B, `seq_length`]}, as
    `pack_segments` says.
    """
    if isinstance(tokenizer, WordPieceTokenizer):
        pack = functools.partial(pack_segments, tokenizer.vocabulary)
        segment_counts = (1, 2)
    else:
        pack = functools.partial(_pack_words, tokenizer)
        segment_counts = (1,)
    length = tf.TensorSpec([], tf.int32, name="seq_length")
    pieces = tf.RaggedTensorSpec([None, None], tf.int32, 1)
    words = tf.RaggedTensorSpec([None, None, None], tf.int32, 2)
    traced = {count: traced_once(pack, [pieces] * count, length) for count in segment_counts}

    @functools.partial(tf.function, autograph=False)
    def bert_pack_inputs(inputs, seq_length):
        segments = [segment.merge_dims(1, 2) if segment.ragged_rank == 2 else segment for segment in inputs]
        return traced[len(segments)](segments, seq_length)

    for count, spec in itertools.product(segment_counts, (pieces, words)):
        bert_pack_inputs.get_concrete_function([spec] * count, seq_length=length)
    return bert_pack_inputs


def _pack_words(tokenizer: WordTokenizer, inputs: list[tf.RaggedTensor], seq_length: tf.Tensor) -> dict:
    """Returns the tokens of a single segment by a `WordTokenizer`; arguments and result as in `pack_segments`."""
    (words,) = inputs
    return tokenizer.pack(words, seq_length)


def pack_segments(vocabulary: Sequence[str], inputs: list[tf.RaggedTensor], seq_length: tf.Tensor) -> dict:
    """Returns the tokens of one or two segments as BERT has them: [CLS], a [SEP] after each segment, padding.

    Segments that do not fit lose their ends in turns, the shorter segment last.

    Args:
      vocabulary: the pieces by id.
      inputs: the segments, int32 [B, (pieces)] each.
      seq_length: T, an int32 scalar.

    Returns:
      {"input_word_ids", "input_mask", "input_type_ids": int32 [B, T]}; types are 0 for the first segment, 1 for the
      second.
    """
    pad, start, end = (vocabulary.index(piece) for piece in ("[PAD]", "[CLS]", "[SEP]"))
    special_tokens = len(inputs) + 1  # [CLS], and a [SEP] for each segment
    trimmed = tf_text.RoundRobinTrimmer(seq_length - special_tokens).trim(inputs)
    word_ids, type_ids = tf_text.combine_segments(trimmed, start, end)  # int32 [B, (T)] each
    shape = tf.stack([-1, seq_length])
    return {
        "input_word_ids": word_ids.to_tensor(pad, shape=shape),
        "input_mask": tf.ones_like(word_ids).to_tensor(0, shape=shape),
        "input_type_ids": type_ids.to_tensor(0, shape=shape),
    }


def learned_numbers(model: DualEncoder) -> dict[str, tf.Variable]:
    """Returns {name: variable} of a trained model's parts that are one number, such as the temperature's logarithm."""
    parts = model.weights_by_part().items()
    return {name: part for name, part in parts if not isinstance(part, tf.Module) and part.shape.rank == 0}


def numbers_of(model: DualEncoder) -> dict[str, float]:
    """Returns {name: value} of a model's `learned_numbers`, for JSON."""
    return {name: float(number.numpy()) for name, number in learned_numbers(model).items()}
