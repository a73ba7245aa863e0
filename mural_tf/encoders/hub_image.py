"""A TF-Hub image encoder as image tower: another trainer's module, or one of our own exports.

Interface: a reusable SavedModel called with float32 [B, S, S, 3] RGB in [0, 1] that returns float [B, D]; S is fixed by
the module or free. It keeps its own BatchNorm statistics, over whatever batch it is given, and moves their averages
in every training step, those that are left out for a loss that is not finite included; a chunk that is encoded twice
(`train.micro_batches`) runs in inference mode. `batch_norm_*` and `drop_connect_rate` are the module's own. Build it
inside the distribution strategy's scope, like every model.
"""

from __future__ import annotations

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.encoders.hub_text import HubEncoder, load_module
from mural_tf.encoders.image_tower import finish_tower

INTERFACE = (
    "expected a TF2 SavedModel that maps float32 [batch, side, side, 3] images in [0, 1] to float [batch, size] "
    "(TF-Hub's interface for image features)"
)


def build_hub_image(config: ConfigDict) -> tf.keras.Model:
    """Builds the tower from `config.image_tower`: float32 [B, S, S, 3] RGB in [0, 1] -> float32 [B, D].

    With `projection` a Dense layer maps the module's output to that size. `frozen=False` fine-tunes every trainable
    variable of the module; frozen, it always runs in inference mode.
    Raises `ConfigurationError` if `handle` cannot be loaded, has another interface, or takes another `image_size`.
    """
    if config.precision not in ("auto", "float32"):
        raise ConfigurationError(
            f"image_tower.precision={config.precision!r} with a TF-Hub image tower: a SavedModel keeps the precision "
            "it was exported with; set image_tower.precision=float32."
        )
    encoder = HubEncoder(
        load_module(config.handle, "image_tower", INTERFACE), trainable=not config.frozen, name="hub_encoder"
    )
    side = config.image_size
    try:
        example = encoder(tf.zeros([2, side, side, 3]), training=False)
    except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(
            f"{config.handle!r} does not take images of image_tower.image_size={side} pixels ({reason}); {INTERFACE}."
        ) from error
    if not isinstance(example, tf.Tensor) or example.shape.rank != 2 or not example.dtype.is_floating:
        raise ConfigurationError(f"{config.handle!r} returns {_describe(example)} for 2 images; {INTERFACE}.")
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
