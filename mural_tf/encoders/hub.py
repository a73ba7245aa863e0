"""TF-Hub modules as towers: reusable SavedModels of other trainers or of our own exports, by handle or local folder.

Text, with LaBSE's interface (`google/LaBSE/2` and every BERT encoder like it): called with a dict of int32 [B, T]
`input_word_ids`, `input_mask` and `input_type_ids`, a module returns a dict with "default" (or, in older encoders,
"pooled_output"), float [B, D]. Its vocabulary must be the one the texts are tokenised with (`vocabulary.file`).

Images: called with float32 [B, S, S, 3] RGB in [0, 1], a module returns float [B, D]; S is fixed by the module or free.
It keeps its own BatchNorm statistics, over whatever batch it is given, and moves their averages in every training step,
those that are left out for a loss that is not finite included; a chunk that is encoded twice (`train.micro_batches`)
runs in inference mode. `batch_norm_*` and `drop_connect_rate` are the module's own.

Build towers inside the distribution strategy's scope, like every model.
"""

from __future__ import annotations

import pathlib

import tensorflow as tf
import tensorflow_hub as hub
from ml_collections import ConfigDict

from mural_tf.encoders.layers import current_pass
from mural_tf.encoders.towers import finish_tower
from mural_tf.errors import UserError
from mural_tf.text.word_pieces import TOKENS

OUTPUTS = ("default", "pooled_output")  # the first one present is the sentence embedding
TEXT_INTERFACE = (
    f"expected a TF2 SavedModel that maps a dict of int32 [batch, tokens] {', '.join(TOKENS)} to a dict with "
    f"{' or '.join(map(repr, OUTPUTS))} (LaBSE's interface)"
)


def build_hub_text(config: ConfigDict) -> tf.keras.Model:
    """Builds the tower from `config.text_tower`: three int32 [B, T] inputs -> float32 [B, D].

    `frozen=False` fine-tunes every trainable variable of the SavedModel and passes `training` on to it; frozen, it
    always runs in inference mode. Layer counts and sizes, `dropout` and `max_length` of the configuration are the
    SavedModel's own and ignored here.
    Raises `UserError` if `handle` cannot be loaded or has another interface.
    """
    if config.precision not in ("auto", "float32"):
        raise UserError(
            f"text_tower.precision={config.precision!r} with a TF-Hub text tower: a SavedModel keeps the precision it "
            "was exported with; set text_tower.precision=float32."
        )
    loaded = load_module(config.handle, "text_tower", TEXT_INTERFACE)
    encoder = HubEncoder(loaded, trainable=not config.frozen, name="hub_encoder")
    size = _embedding_size(encoder, config.handle)
    inputs = {name: tf.keras.Input(shape=(None,), dtype=tf.int32, name=name) for name in TOKENS}  # [B, T]
    embeddings = SentenceEmbedding(size, name="sentence_embedding", dtype="float32")(encoder(inputs))  # [B, D]
    model = tf.keras.Model(inputs, embeddings, name="text_encoder")
    model.embedding_size = size
    model.trainable = not config.frozen
    return model


class HubEncoder(hub.KerasLayer):
    """`hub.KerasLayer`, but for chunks that are encoded twice: the module's own dropout would differ, so it is off."""

    def call(self, inputs, training=None):
        current = current_pass()
        return super().call(inputs, training=training and not (current is not None and current.repeated))


class SentenceEmbedding(tf.keras.layers.Layer):
    """Picks the sentence embedding from an encoder's dict of outputs: -> float32 [B, size]."""

    def __init__(self, size: int, **options):
        super().__init__(**options)
        self.size = size

    def call(self, outputs):
        return tf.ensure_shape(tf.cast(_sentence_output(outputs), tf.float32), [None, self.size])


def _sentence_output(outputs) -> tf.Tensor | None:
    if not isinstance(outputs, dict):
        return None
    return next((outputs[name] for name in OUTPUTS if name in outputs), None)


def load_module(handle: str, tower: str, interface: str):
    """Loads the module of `config[tower].handle`; `interface` says in an error what was expected.

    Raises `UserError` if there is none or it cannot be called.
    """
    if not handle:
        raise UserError(
            f"{tower}.name='hub' needs {tower}.handle: a TF-Hub handle such as https://tfhub.dev/google/LaBSE/2, or a "
            "local folder with a SavedModel."
        )
    if "://" not in handle and not pathlib.Path(handle).is_dir():
        raise UserError(f"{tower}.handle={handle!r} is neither a local folder nor a URL.")
    try:
        loaded = hub.load(handle)
    except Exception as error:  # network, archive, protobuf and TensorFlow errors have no common base
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"The TF-Hub encoder {handle!r} could not be loaded ({reason}); {interface}. Where the hub cannot be "
            "reached, download it elsewhere and give the local folder."
        ) from error
    if not callable(loaded):
        raise UserError(
            f"{handle!r} is a SavedModel that can only be run through signatures (TF1 Hub format or a serving export); "
            f"{interface}."
        )
    return loaded


def _embedding_size(encoder: hub.KerasLayer, handle: str) -> int:
    """Runs two empty texts through the encoder: the interface is as expected, or the message says what differs."""
    example = {name: tf.ones([2, 4], tf.int32) for name in TOKENS}
    try:
        outputs = encoder(example, training=False)
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{handle!r} does not take these inputs ({reason}); {TEXT_INTERFACE}.") from error
    embedding = _sentence_output(outputs)
    if embedding is None:
        found = f"a dict with {sorted(outputs)}" if isinstance(outputs, dict) else type(outputs).__name__
        raise UserError(f"{handle!r} returns {found}; {TEXT_INTERFACE}.")
    if embedding.shape.rank != 2 or embedding.shape[0] != 2 or not embedding.dtype.is_floating:
        raise UserError(
            f"{handle!r} returns {embedding.dtype.name} {tuple(embedding.shape)} for 2 texts; {TEXT_INTERFACE}, "
            "float [batch, size]."
        )
    return embedding.shape[1]


IMAGE_INTERFACE = (
    "expected a TF2 SavedModel that maps float32 [batch, side, side, 3] images in [0, 1] to float [batch, size] "
    "(TF-Hub's interface for image features)"
)


def build_hub_image(config: ConfigDict) -> tf.keras.Model:
    """Builds the tower from `config.image_tower`: float32 [B, S, S, 3] RGB in [0, 1] -> float32 [B, D].

    With `projection` a Dense layer maps the module's output to that size. `frozen=False` fine-tunes every trainable
    variable of the module; frozen, it always runs in inference mode.
    Raises `UserError` if `handle` cannot be loaded, has another interface, or takes another `image_size`.
    """
    if config.precision not in ("auto", "float32"):
        raise UserError(
            f"image_tower.precision={config.precision!r} with a TF-Hub image tower: a SavedModel keeps the precision "
            "it was exported with; set image_tower.precision=float32."
        )
    encoder = HubEncoder(
        load_module(config.handle, "image_tower", IMAGE_INTERFACE), trainable=not config.frozen, name="hub_encoder"
    )
    side = config.image_size
    try:
        example = encoder(tf.zeros([2, side, side, 3]), training=False)
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{config.handle!r} does not take images of image_tower.image_size={side} pixels ({reason}); "
            f"{IMAGE_INTERFACE}."
        ) from error
    if not isinstance(example, tf.Tensor) or example.shape.rank != 2 or not example.dtype.is_floating:
        raise UserError(f"{config.handle!r} returns {_describe(example)} for 2 images; {IMAGE_INTERFACE}.")
    images = tf.keras.Input(shape=(side, side, 3), name="images", dtype=tf.float32)  # [B, S, S, 3]
    embeddings = ImageEmbedding(example.shape[1], name="image_embedding", dtype="float32")(encoder(images))  # [B, D]
    return finish_tower(images, embeddings, config)


class ImageEmbedding(tf.keras.layers.Layer):
    """Gives a module's output its static size: -> float32 [B, size]."""

    def __init__(self, size: int, **options):
        super().__init__(**options)
        self.size = size

    def call(self, outputs):
        return tf.ensure_shape(tf.cast(outputs, tf.float32), [None, self.size])


def _describe(output) -> str:
    if isinstance(output, tf.Tensor):
        return f"{output.dtype.name} {tuple(output.shape)}"
    return type(output).__name__
