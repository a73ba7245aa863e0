"""The kinds of weights that can be imported, and the one way in: `import_weights`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

from ml_collections import ConfigDict

from mural_tf.errors import UserError
from mural_tf.models import build_model
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import (
    hugging_face_align,
    hugging_face_bert,
    keras_efficientnet,
    sentence_transformers,
    tensorflow_bert,
)
from mural_tf.pretrained.weight_files import read_casing, read_pieces


@dataclasses.dataclass(frozen=True)
class Source:
    """One kind of weights.

    Args:
      parts: what it brings, as `DualEncoder.weights_by_part` calls it.
      configure: (weights, config) sets what the files say in `config`.
      load: (weights, model, config) fills the parts.
    """

    parts: tuple[str, ...]
    configure: Callable
    load: Callable


def _bert(weights):
    return tensorflow_bert if (pathlib.Path(weights) / tensorflow_bert.CONFIG).exists() else hugging_face_bert


SOURCES = {
    "align": Source(
        ("image_encoder", "text_encoder", "image_text_head", "log_temperature"),
        hugging_face_align.configure,
        hugging_face_align.load,
    ),
    "bert": Source(
        ("text_encoder",),
        lambda weights, config: _bert(weights).configure(weights, config),
        lambda weights, model, config: _bert(weights).load(weights, model.text_encoder, config.text_tower),
    ),
    "labse": Source(
        ("text_encoder",),
        hugging_face_bert.configure_labse,
        lambda weights, model, config: hugging_face_bert.load_labse(weights, model.text_encoder, config.text_tower),
    ),
    "sentences": Source(
        ("text_encoder", "image_text_head", "text_text_head"),
        sentence_transformers.configure,
        sentence_transformers.load,
    ),
    "efficientnet": Source(
        ("image_encoder",),
        keras_efficientnet.configure,
        lambda weights, model, config: keras_efficientnet.load(weights, model.image_encoder),
    ),
}


def configure(source: str, weights, config: ConfigDict) -> tuple[ConfigDict, list[str]]:
    """Returns `config` with what the weights say of their part, and their word pieces (none for an image tower).

    Raises `UserError` for an unknown source or files that are missing, damaged or of another kind.
    """
    if source not in SOURCES:
        raise UserError(f"Unknown source {source!r}: expected one of {', '.join(SOURCES)}.")
    config = config.copy_and_resolve_references()
    SOURCES[source].configure(weights, config)
    if "text_encoder" not in SOURCES[source].parts:  # no vocabulary comes with it
        return config, []
    weights = sentence_transformers.text_folder(weights) if source == "sentences" else weights
    pieces = read_pieces(weights)
    config.vocabulary.update(dict(size=len(pieces), file="", **read_casing(weights, pieces)))
    return config, pieces


def import_weights(
    source: str, weights, config: ConfigDict, vocabulary_size: int = 0
) -> tuple[DualEncoder, ConfigDict, list[str]]:
    """Builds a model whose parts come from files; parts that are not in them are fresh.

    Args:
      source: "align", "bert", "labse", "sentences" or "efficientnet".
      weights: the folder or file.
      config: everything that the files do not say, `base_config()` for a start. `config.model="mural"` gives an
        imported ALIGN the second head of MURAL's checkpoint initialisation (Jain et al., 2021, §3.1).
      vocabulary_size: for "efficientnet", which brings none.

    Returns:
      The model, its whole configuration, and its word pieces by id.

    Raises:
      UserError: what is missing, unexpected or of another shape in the files.
    """
    config, pieces = configure(source, weights, config)
    model = build_model(config, len(pieces) or vocabulary_size)
    SOURCES[source].load(weights, model, config)
    return model, config, pieces
