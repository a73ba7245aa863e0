"""Methods: `ContrastiveModel` with the one training step, then one file per method."""

from __future__ import annotations

from ml_collections import ConfigDict

from mural_tf.encoders import build_image_encoder, build_text_encoder
from mural_tf.errors import UserError
from mural_tf.models.align import Align
from mural_tf.models.dual_encoder import ContrastiveModel
from mural_tf.models.embn import EmbN, ParallelEmbN
from mural_tf.models.etcl import Etcl
from mural_tf.models.globetrotter import Globetrotter
from mural_tf.models.labse import Labse
from mural_tf.models.mule import Mule
from mural_tf.models.mural import Mural

METHODS = {
    "align": Align,
    "mural": Mural,
    "etcl": Etcl,
    "globetrotter": Globetrotter,
    "labse": Labse,
    "mule": Mule,
    "embn": EmbN,
    "parallel_embn": ParallelEmbN,
}

__all__ = [
    "METHODS",
    "Align",
    "ContrastiveModel",
    "Etcl",
    "Globetrotter",
    "Labse",
    "Mural",
    "build_model",
    "method_class",
]


def method_class(config: ConfigDict) -> type[ContrastiveModel]:
    """Returns the configured method's class; raises `UserError` if there is none of that name."""
    if config.model not in METHODS:
        raise UserError(f"Unknown model {config.model!r}; known: {', '.join(METHODS)}.")
    return METHODS[config.model]


def build_model(config: ConfigDict, vocabulary_size: int) -> ContrastiveModel:
    """Builds the configured method with its towers and all variables; raises `UserError` if it cannot."""
    model = method_class(config)(
        build_image_encoder(config.image_tower), build_text_encoder(config.text_tower, vocabulary_size), config
    )
    model.build_variables()
    return model
