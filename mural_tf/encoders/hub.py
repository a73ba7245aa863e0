"""TF-Hub modules as towers: reusable SavedModels of other trainers or of our own exports, by handle or local folder.

Text, with LaBSE's interface (`google/LaBSE/2` and every BERT encoder like it): called with a dict of int32 [B, T]
`input_word_ids`, `input_mask` and `input_type_ids`, a module returns a dict with "default" (or, in older encoders,
"pooled_output"), float [B, D]. Texts are tokenised here, with its vocabulary: see `settle_vocabulary`.

Images: called with float32 [B, S, S, 3] RGB in [0, 1], a module returns float [B, D]; S is fixed by the module or free.
It keeps its own BatchNorm statistics, over the batch that it is given, and moves their averages in every training step,
steps that are left out for a loss that is not finite included; a chunk that is encoded twice (`train.micro_batches`)
runs in inference mode. `batch_norm_*` and `drop_connect_rate` are the module's own.

Build towers inside the distribution strategy's scope, like every model.
"""

from __future__ import annotations

import pathlib

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError, first_line
from mural_lite.paths import CLIENTS
from mural_lite.remote_folders import local_copy
from mural_tf.backend import keras, tensorflow_hub
from mural_tf.encoders.layers import current_pass
from mural_tf.encoders.saved_models import check_graph
from mural_tf.encoders.towers import image_input, token_inputs, tower_with_projection
from mural_tf.text.tokens import TOKENS
from mural_tf.text.vocabulary_file import read_lines

hub = tensorflow_hub()
OUTPUTS = ("default", "pooled_output")  # the first output that a module has is the sentence embedding
TEXT_INTERFACE = (
    f"expected a TF2 SavedModel that maps a dict of int32 [batch, tokens] {', '.join(TOKENS)} to a dict with "
    f"{' or '.join(map(repr, OUTPUTS))} (LaBSE's interface), float [batch, size]"
)
IMAGE_INTERFACE = (
    "expected a TF2 SavedModel that maps float32 [batch, side, side, 3] images in [0, 1] to float [batch, size] "
    "(TF-Hub's interface for image features)"
)


def build_hub_text(config: ConfigDict, vocabulary_size: int) -> keras.Model:
    """Builds the tower that `config`, a `text_tower`, describes: three int32 [B, T] inputs -> float32 [B, D].

    `frozen=False` fine-tunes every trainable variable of the SavedModel and passes `training` on to it; frozen, it
    always runs in inference mode. The SavedModel determines its layers, sizes, dropout and longest text: these fields
    of the configuration, and `vocabulary_size`, are ignored.
    Raises `UserError` if `handle` cannot be loaded or has another interface.
    """
    encoder = _load_encoder(config, "text_tower", TEXT_INTERFACE)
    example = {name: tf.ones([2, 4], tf.int32) for name in TOKENS}  # two texts of four tokens
    size = _embedding_size(encoder, example, config.handle, "texts", "these inputs", TEXT_INTERFACE)
    inputs = token_inputs()
    embeddings = Embedding(size, name="sentence_embedding", dtype="float32")(encoder(inputs))  # [B, D]
    model = keras.Model(inputs, embeddings, name="text_encoder")
    model.embedding_size = size
    model.trainable = not config.frozen
    return model


def build_hub_image(config: ConfigDict) -> keras.Model:
    """Builds the tower that `config`, an `image_tower`, describes: float32 [B, S, S, 3] RGB in [0, 1] -> [B, D].

    The output is float32. With `projection` a Dense layer maps the module's output to that size. `frozen=False`
    fine-tunes every trainable variable of the module; frozen, it always runs in inference mode.
    Raises `UserError` if `handle` cannot be loaded, has another interface, or takes another `image_size`.
    """
    encoder = _load_encoder(config, "image_tower", IMAGE_INTERFACE)
    side = config.image_size
    example = tf.zeros([2, side, side, 3])
    example_name = f"images of image_tower.image_size={side} pixels"
    size = _embedding_size(encoder, example, config.handle, "images", example_name, IMAGE_INTERFACE)
    images = image_input(side)
    embeddings = Embedding(size, name="image_embedding", dtype="float32")(encoder(images))  # [B, D]
    return tower_with_projection(images, embeddings, config)


def settle_vocabulary(config: ConfigDict) -> None:
    """Sets the vocabulary and the casing of a configuration with a hub text tower by the module, which it downloads.

    `vocabulary.file` may be a .txt file: then nothing changes. Otherwise it is the handle of the module that prepares
    the tower's texts, "" for the tower's own handle, and the vocabulary is the .txt file among that module's assets.
    Texts are lower-cased, and lose their accents, unless a piece has a capital letter.
    Raises `UserError` if the module cannot be fetched or does not have exactly one vocabulary.
    """
    if config.vocabulary.file.endswith(".txt"):
        return
    file = _vocabulary_file(config.vocabulary.file or config.text_tower.handle)
    pieces = read_lines(file)
    is_cased = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))  # not [CLS] and the like
    config.vocabulary.update(file=str(file), size=len(pieces), builder="tokenizers")
    config.vocabulary.update(lower_case=not is_cased, strip_accents=not is_cased)


def _vocabulary_file(handle: str) -> pathlib.Path:
    """Downloads a module if need be and returns the only .txt file of its assets; `UserError` if that fails."""
    try:
        folder = pathlib.Path(hub.resolve(_local_handle(handle)))
    except Exception as error:  # network and archive errors have no common base
        raise UserError(f"The TF-Hub module {handle!r} could not be fetched ({first_line(error)}).") from error
    files = sorted(folder.glob("assets*/*.txt"))
    if len(files) != 1:
        raise UserError(
            f"{handle!r} has {len(files) or 'no'} vocabularies (.txt) among its assets, and one is needed: name the "
            "module that prepares its texts, or the file, with --config.vocabulary.file."
        )
    return files[0]


class HubEncoder(hub.KerasLayer):
    """`hub.KerasLayer`, but in inference mode for a chunk that is encoded twice: its dropout would differ."""

    def call(self, inputs, training=None):
        current = current_pass()
        is_repeated = current is not None and current.repeated
        return super().call(inputs, training=training and not is_repeated)


class Embedding(keras.layers.Layer):
    """A module's output, a tensor or a dict with a key of `OUTPUTS` -> the embedding, float32 [B, size]."""

    def __init__(self, size: int, **options):
        super().__init__(**options)
        self.size = size

    def call(self, outputs):
        return tf.ensure_shape(tf.cast(_embedding(outputs), tf.float32), [None, self.size])


def _embedding(outputs):
    """Returns the embedding in a text module's dict, `None` if no key of `OUTPUTS` is there; any other output as is."""
    if not isinstance(outputs, dict):
        return outputs
    for name in OUTPUTS:
        if name in outputs:
            return outputs[name]
    return None


def _load_encoder(config: ConfigDict, tower: str, interface: str) -> HubEncoder:
    """Returns the layer that runs a tower's module; `UserError` for another precision, or as `load_module`."""
    if config.precision not in ("auto", "float32"):
        raise UserError(
            f"{tower}.precision={config.precision!r} with a TF-Hub {tower.replace('_', ' ')}: a SavedModel keeps the "
            f"precision it was exported with; set {tower}.precision=float32."
        )
    return HubEncoder(load_module(config.handle, tower, interface), trainable=not config.frozen, name="hub_encoder")


def _local_handle(handle: str) -> str:
    """Copies a module's folder in a store to this machine and returns the copy's path; returns other handles as is."""
    if handle.startswith(tuple(f"{scheme}://" for scheme in CLIENTS)):
        return str(local_copy(handle))
    return handle


def load_module(handle: str, tower: str, interface: str):
    """Downloads a module if need be and returns it, a callable; `handle` is TF-Hub's, or a folder, also in a store.

    Raises `UserError` if it is damaged or cannot be loaded or called. Messages name the `tower`, such as "text_tower",
    and the expected `interface`, such as `TEXT_INTERFACE`.
    """
    if not handle:
        raise UserError(
            f"{tower}.name='hub' needs {tower}.handle: a TF-Hub handle such as https://tfhub.dev/google/LaBSE/2, or a "
            "local folder with a SavedModel."
        )
    handle = _local_handle(handle)
    if "://" not in handle:
        if not pathlib.Path(handle).is_dir():
            raise UserError(f"{tower}.handle={handle!r} is neither a local folder nor a URL.")
        check_graph(handle)
    options = None
    if isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy):
        options = tf.saved_model.LoadOptions(experimental_io_device="/job:localhost")  # a TPU cannot see local files
    try:
        loaded = hub.load(handle, options=options)
    except Exception as error:  # network, archive, protobuf and TensorFlow errors have no common base
        raise UserError(
            f"The TF-Hub encoder {handle!r} could not be loaded ({first_line(error)}); {interface}. Where the hub "
            "cannot be reached, download it elsewhere and give the local folder."
        ) from error
    if not callable(loaded):
        raise UserError(
            f"{handle!r} is a SavedModel that can only be run through signatures (TF1 Hub format or a serving export); "
            f"{interface}."
        )
    return loaded


def _embedding_size(encoder: HubEncoder, example, handle: str, inputs: str, example_name: str, interface: str) -> int:
    """Returns D, the width of the embeddings that an encoder gives for an `example` of two inputs.

    For `inputs` "texts" a module returns a dict, for "images" a tensor; `handle`, `example_name` and `interface` are
    for messages. Raises `UserError` if the encoder does not take the example or does not return embeddings.
    """
    try:
        outputs = encoder(example, training=False)
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        raise UserError(f"{handle!r} does not take {example_name} ({first_line(error)}); {interface}.") from error
    embedding = _embedding(outputs)
    is_dict_as_expected = isinstance(outputs, dict) == (inputs == "texts")
    if not is_dict_as_expected or not isinstance(embedding, tf.Tensor):
        unexpected = outputs
    elif embedding.shape.rank != 2 or embedding.shape[0] != 2 or not embedding.dtype.is_floating:
        unexpected = embedding
    else:
        return embedding.shape[1]
    raise UserError(f"{handle!r} returns {_describe(unexpected)} for 2 {inputs}; {interface}.")


def _describe(output) -> str:
    """Returns a module's output in words: "float32 (2, 768)", "a dict with ['pooled_output']", or its type's name."""
    if isinstance(output, tf.Tensor):
        return f"{output.dtype.name} {tuple(output.shape)}"
    if isinstance(output, dict):
        return f"a dict with {sorted(output)}"
    return type(output).__name__
