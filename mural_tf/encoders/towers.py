"""Properties of towers for other rooms, the last layers of image towers, and towers that compute little or nothing.

Only `encoders` and `text` know towers by name; all other rooms call the functions below.
"""

from __future__ import annotations

import json

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_tf.backend import keras
from mural_tf.encoders.kernels import dtype_policy
from mural_tf.encoders.layers import BatchNormalization
from mural_tf.text.tokens import TOKENS


def keeps_precision(tower: ConfigDict) -> bool:
    """Whether an image or text tower computes in the precision that its file has, as only a TF-Hub module does."""
    return tower.name == "hub"


def computed_in(tower: ConfigDict, modality: str) -> str:
    """Returns the name of the dtype that a tower computes in on this machine; `modality` is "image" or "text"."""
    precision = "float32" if keeps_precision(tower) else tower.precision
    if tower.name in ("vit", "naflex"):
        modality = "text"  # image towers that are transformers have the precision of text towers
    return dtype_policy(precision, modality).compute_dtype


# The least and the greatest value of numbers that towers are built with. With values beyond them, building would end in
# one of TensorFlow's many errors, or not at all.
RANGES = {
    "width": (0.01, 100.0),
    "depth": (0.01, 100.0),
    "patch_size": (1, 1024),
    "patches": (1, 2**14),
    "position_grid": (1, 1024),
    "epsilon": (1e-12, 1.0),
    "image_size": (1, 4096),
    "resize": (1, 8192),
    "head_size": (0, 2**16),
    "adapter_size": (0, 2**16),
    "adapter_dropout": (0.0, 0.99),
    "adapter_noise": (0.0, 100.0),
    "branch_size": (0, 2**16),
    "feature_size": (0, 2**20),
    "projection": (0, 2**16),
    "layers": (1, 1000),
    "hidden_size": (1, 2**16),
    "heads": (1, 2**16),
    "feed_forward_size": (1, 2**18),
    "token_embedding_size": (0, 2**16),
    "word_size": (1, 2**16),
    "language_size": (1, 2**16),
    "attention_every": (1, 1000),
    "attention_window": (1, 2**16),
    "max_length": (2, 2**16),
}
# Choices that `data.images` implements.
CHOICES = {
    "resize_mode": ("squash", "shorter_side", "patches"),
    "interpolation": ("bilinear", "bicubic", "big_vision"),
    "jpeg": ("fast", "accurate"),
}


def preparation(tower: ConfigDict) -> dict[str, int | str]:
    """Returns {field: value}, as JSON takes it, of an image tower's fields that decide how pictures become pixels."""
    return {name: tower[name] for name in ("resize", "image_size", *CHOICES)}


def check_ranges(tower: ConfigDict, name: str) -> None:
    """Raises `UserError` for a field of a tower outside of its range in `RANGES`, or not among its `CHOICES`.

    `name` is the tower's part of a configuration, "image_tower" or "text_tower", for messages.
    """
    for field, choices in CHOICES.items():
        if field in tower and tower[field] not in choices:
            raise UserError(f"Unknown {name}.{field} {tower[field]!r}: expected one of {', '.join(choices)}.")
    for field, (least, most) in RANGES.items():
        if field in tower and not least <= tower[field] <= most:  # as written it also refuses NaN
            raise UserError(f"{name}.{field}={tower[field]}: expected {least} to {most}.")


def read_class_names(path: str) -> list[str]:
    """Reads a classifier's class names, in its order, from a JSON list of texts; raises `UserError` for other files."""
    try:
        names = json.loads(as_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"image_tower.class_names={path} cannot be read: {error}.") from None
    is_list_of_names = isinstance(names, list) and all(isinstance(name, str) and name.strip() for name in names)
    if not names or not is_list_of_names:
        raise UserError(f"image_tower.class_names={path}: expected a JSON list of texts, the name of each class.")
    return names


def image_input(side: int | None = None) -> tf.Tensor:
    """Returns the Keras input of an image tower, float32 [B, S, S, 3]: S is `side`, or any size without `side`."""
    return keras.Input(shape=(side, side, 3), name="images", dtype=tf.float32)


def token_inputs() -> dict[str, tf.Tensor]:
    """Returns the Keras inputs of a text tower, {name: int32 [B, T]}."""
    return {name: keras.Input(shape=(None,), dtype=tf.int32, name=name) for name in TOKENS}


def tower_with_projection(images: tf.Tensor, embeddings: tf.Tensor, config: ConfigDict) -> keras.Model:
    """Builds an image tower from its Keras input, [B, S, S, 3], and its output before the projection, float32 [B, D].

    With `config.projection` a Dense layer maps the output to that size; the model's `embedding_size` is the width of
    the result. With `config.frozen` nothing in the model is trained, and it always runs in inference mode.
    """
    if config.projection:
        embeddings = keras.layers.Dense(config.projection, name="projection", dtype="float32")(embeddings)
    model = keras.Model(images, embeddings, name="image_encoder")
    model.embedding_size = embeddings.shape[-1]
    model.trainable = not config.frozen
    return model


def build_features(config: ConfigDict) -> keras.Model:
    """Builds the `feature_input` of `config.feature_size` numbers; raises `UserError` if the size is not set."""
    if config.feature_size < 1:
        raise UserError("image_tower.name='features' needs image_tower.feature_size, how many numbers an image has.")
    return feature_input(config.feature_size)


def feature_input(size: int) -> keras.Model:
    """Returns an image tower for features made beforehand, which returns its input: float32 [B, size]."""
    features = keras.Input(shape=(size,), name="features", dtype=tf.float32)
    model = keras.Model(features, keras.layers.Layer(name="given", dtype="float32")(features))
    model.embedding_size = size
    return model


def add_branch(tower: keras.Model, config: ConfigDict) -> keras.Model:
    """Returns a model of a tower, whose output is [B, F], with EmbN's and MULE's branch on top of it.

    Its input is the tower's, its output is float32 [B, `projection`]. [MULE], figure 2, after Wang et al. (2019):
    features (2048 of ResNet-152) -> Dense 2048, BatchNorm, ReLU -> Dense 512. The branch computes in float32 and is
    trained even where the tower is frozen. Raises `UserError` without a `projection`.
    """
    if config.projection < 1:
        raise UserError(
            f"image_tower.branch_size={config.branch_size} needs image_tower.projection, the size of the embedding."
        )
    x = keras.layers.Dense(config.branch_size, name="branch_hidden", dtype="float32")(tower.output)
    # [B, 1, 1, C], because our BatchNormalization takes the axes of images.
    x = keras.layers.Reshape((1, 1, config.branch_size), name="branch_columns", dtype="float32")(x)
    x = BatchNormalization(
        config.batch_norm_group, momentum=config.batch_norm_momentum, name="branch_bn", dtype="float32"
    )(x)
    x = keras.layers.Reshape((config.branch_size,), name="branch_rows", dtype="float32")(x)
    x = keras.layers.ReLU(name="branch_activation", dtype="float32")(x)
    x = keras.layers.Dense(config.projection, name="branch_projection", dtype="float32")(x)
    model = keras.Model(tower.input, x, name="image_encoder")
    model.embedding_size = config.projection
    return model


def build_no_image(config: ConfigDict) -> keras.Model:
    """Builds the image tower of a model of only texts: float32 [B, S, S, 3] -> zeros, float32 [B, projection].

    It has no variables. With it, a model of only texts trains, resumes, exports and embeds texts as other models do;
    evaluations of images leave the model out. Raises `UserError` if `image_tower.projection`, which must be the
    embedding size, is not set.
    """
    if config.projection < 1:
        raise UserError(
            f"image_tower.name=none with image_tower.projection={config.projection}: set it to embedding_size."
        )
    images = image_input()
    model = keras.Model(images, ZeroVector(config.projection, name="zeros")(images), name="image_encoder")
    model.embedding_size = config.projection
    return model


class ZeroVector(keras.layers.Layer):
    """float32 [B, ...] -> zeros [B, size]."""

    def __init__(self, size: int, **options):
        super().__init__(dtype="float32", **options)
        self.size = size

    def call(self, x):
        return tf.zeros([tf.shape(x)[0], self.size])
