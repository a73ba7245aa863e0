"""The kinds of weights that can be imported, and the one way in: `import_weights`."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import pkgutil
from collections.abc import Collection

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.registry import load_registered, registered
from mural_lite.remote_folders import local_model
from mural_tf.encoders.drawing import undrawn
from mural_tf.encoders.towers import read_class_names
from mural_tf.models import mount
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained.folders import family_of
from mural_tf.pretrained.importer import TEXT, Importer

# Each family's `Importer`, in the family's own file, which is imported when weights of the family are.
FAMILIES = {
    "align": "mural_tf.pretrained.hugging_face_align:IMPORTER",
    "siglip": "mural_tf.pretrained.siglip:IMPORTER",
    "naflex": "mural_tf.pretrained.naflex:IMPORTER",
    "clip": "mural_tf.pretrained.clip_texts:IMPORTER",
    "xlm_roberta_clip": "mural_tf.pretrained.multilingual_clip:OPEN_CLIP",
    "mexma_siglip": "mural_tf.pretrained.mexma_siglip:IMPORTER",
    "m_clip": "mural_tf.pretrained.multilingual_clip:M_CLIP",
    "sentences": "mural_tf.pretrained.sentence_transformers:IMPORTER",
    "bert": "mural_tf.pretrained.hugging_face_bert:BERT",
    "labse": "mural_tf.pretrained.hugging_face_bert:LABSE",
    "modernbert": "mural_tf.pretrained.modernbert:IMPORTER",
    "efficientnet": "mural_tf.pretrained.efficientnet:IMPORTER",
}


def families() -> list[str]:
    """Returns the names of all families; other packages register theirs under the entry point `mural.importers`."""
    return [*{**FAMILIES, **registered("mural.importers")}]


@functools.cache
def importer_of(family: str) -> Importer:
    """Returns the importer of a family, a name in `families()`."""
    registered_importer = load_registered("mural.importers", family)
    if registered_importer is not None:
        return registered_importer
    return pkgutil.resolve_name(FAMILIES[family])


def kind_of(folder: str | pathlib.Path) -> str:
    """Returns the family that a folder or file of weights belongs to, a name in `families()`; "" for other files."""
    folder = pathlib.Path(folder)
    for family in registered("mural.importers"):
        if importer_of(family).recognises(folder):
            return family
    return family_of(folder)


def starting_config(source: str) -> ConfigDict:
    """Returns the configuration that a model is built from by default: `base_config()`, with its family's method.

    It computes in float32, so that its vectors are the original's on every machine. `source` is a name in `families()`.
    """
    config = base_config()
    method = importer_of(source).method
    config.image_tower.precision = config.text_tower.precision = "float32"
    if method == "labse":  # only texts
        config.image_tower.name = "none"
    return mount(config, method or config.model)


def configure(
    source: str, weights, config: ConfigDict, as_trained: bool = False, parts: Collection[str] = ()
) -> tuple[ConfigDict, list[str]]:
    """Returns (a copy of `config` with the settings of some weights, their vocabulary's lines by id).

    The vocabulary is [] for an image tower, or where `parts` lacks the text tower.

    Args:
      source: a name in `families()`.
      weights: the folder or file.
      config: the settings that are not in the files.
      as_trained: as in `import_weights`.
      parts: the parts of a model, as in `Importer.parts`, whose settings are taken; empty: all parts of the weights.

    Raises:
      UserError: an unknown source, `as_trained` of another source than siglip, a tower in bfloat16, or files that are
        missing, damaged or of another kind.
    """
    if source not in families():
        raise UserError(f"Unknown source {source!r}: expected one of {', '.join(families())}.")
    if as_trained and source != "siglip":
        raise UserError(f"as_trained={as_trained}: expected it with siglip only, got {source}.")
    importer = importer_of(source)
    given_config = config
    config = config.copy_and_resolve_references()
    parts = parts or importer.parts
    for tower in ("image_tower", "text_tower"):
        if config[tower].precision == "bfloat16":
            raise UserError(
                f"{tower}.precision=bfloat16 rounds the weights, which is for exports (--precision=bfloat16): expected "
                "float32, auto or mixed_bfloat16."
            )
    options = {"as_trained": True} if as_trained else {}
    importer.configure(weights, config, **options)
    for tower, part in TOWERS.items():  # a tower that the weights hold but `parts` does not name does not change
        if part in importer.parts and part not in parts:
            config[tower] = given_config[tower].copy_and_resolve_references()
    if not set(parts) & {"image_encoder", "image_text_head"}:  # a text tower has no head yet
        config.embedding_size = given_config.embedding_size
    if config.image_tower.name == "none":  # a model of only texts has the size of their embedding
        config.image_tower.projection = config.embedding_size
    pieces = []
    if importer.vocabulary is not None and "text_encoder" in parts:
        pieces = importer.vocabulary(weights, config, **options)
    _check_size(source, pathlib.Path(weights), config, parts)
    return config, pieces


TOWERS = {"image_tower": "image_encoder", "text_tower": "text_encoder"}  # {tower of a configuration: part of a model}


def configure_towers(config: ConfigDict) -> tuple[ConfigDict, list[str]]:
    """Returns (a copy of `config` with the settings of the weights that its towers name, the text tower's vocabulary).

    Of `text_tower.max_length` and the length of the text tower's weights, the smaller is taken. The vocabulary is [] if
    the text tower names no weights. `vocabulary.prompts` is emptied if a tower names weights: training reads all texts
    with the default prompt.

    Raises:
      UserError: weights that hold no such tower, or that `configure` refuses; `image_tower.class_names` without
        adapters on both towers, or whose file is not a list of texts.
    """
    vocabulary: list[str] = []
    configured = config.copy_and_resolve_references()
    class_names = configured.image_tower.class_names  # the path of a file
    if class_names:
        configured.image_tower.classes = len(read_class_names(class_names))
        if not (configured.image_tower.adapter_size and configured.text_tower.adapter_size):
            raise UserError("image_tower.class_names needs image_tower.adapter_size and text_tower.adapter_size.")
    for tower, part in TOWERS.items():
        weights = configured[tower].weights
        if weights:
            folder = local_model(weights)
            max_length = configured.text_tower.max_length
            configured, pieces = configure(_family_with(part, weights), folder, configured, parts=[part])
            configured.text_tower.max_length = min(max_length, configured.text_tower.max_length)
            configured.vocabulary.prompts = ()
            vocabulary = pieces or vocabulary  # an image tower's are []
    if class_names:
        configured.image_tower.class_name_size = configured.text_tower.hidden_size
    return configured, vocabulary


def fill_towers(model: DualEncoder, config: ConfigDict) -> None:
    """Fills the towers of a model of `configure_towers`' settings with the weights that they name; prints each name."""
    for tower, part in TOWERS.items():
        weights = config[tower].weights
        if weights:
            importer = importer_of(_family_with(part, weights))
            importer.load_weights(local_model(weights), model, config, [part])
            print(f"{part} starts with the weights of {weights}.", flush=True)


def _family_with(part: str, weights: str) -> str:
    """Returns the family of weights, a name of a folder or file; `part` is a part that they must hold.

    Raises `UserError` if they are missing, of no known family, or without the part.
    """
    folder = local_model(weights)
    if not folder.exists():
        raise UserError(f"{weights} does not exist: expected weights with {part}, a folder, a file or a name.")
    family = kind_of(folder)
    parts = importer_of(family).parts if family else ()
    if part not in parts:
        holds = f"holds {', '.join(parts)}" if parts else "is not listed in docs/checkpoints.md"
        raise UserError(f"{weights} {holds}: expected weights with {part}.")
    return family


def _check_size(source: str, weights: pathlib.Path, config: ConfigDict, parts: Collection[str]) -> None:
    """Raises `UserError` if the towers of a configuration have more numbers than the weights, before memory is taken.

    `source` is the family of `weights`, a folder or file; `parts` are the parts of the model that they fill.
    """
    importer = importer_of(source)
    towers = [config[tower] for tower, part in TOWERS.items() if part in parts and part in importer.parts]
    needed = sum(map(_count_numbers, towers))
    if importer.open_weights is None or not needed:
        return
    file = importer.open_weights(weights)
    if needed > file.size:
        raise UserError(
            f"{weights}: its configuration asks for {needed:,} numbers in the layers, and {file.path} holds "
            f"{file.size:,}: they are not of one model."
        )


def _count_numbers(tower: ConfigDict) -> int:
    """Returns about how many weights a transformer of this configuration has: its kernels and positions; 0 for others.

    Biases, norms and the vocabulary's table are not counted, so that it is never more than in truth.
    """
    if tower.name not in ("bert", "modernbert", "vit", "naflex"):
        return 0
    hidden = tower.hidden_size
    # 4: queries, keys, values and output of attention; 2: both kernels of the feed-forward network.
    layers = tower.layers * (4 * hidden**2 + 2 * hidden * tower.feed_forward_size)
    if tower.name == "modernbert":
        return layers + tower.layers * hidden * tower.feed_forward_size  # its feed-forward layers have a gate
    if tower.name == "bert":
        return layers + hidden * tower.max_length
    if tower.name == "naflex":
        positions = tower.position_grid**2
    else:
        positions = (tower.image_size // tower.patch_size) ** 2
    return layers + hidden * (positions + 3 * tower.patch_size**2 + tower.projection)  # 3 colours


def building(filled: Collection[str], only_texts: bool = False) -> contextlib.AbstractContextManager:
    """Returns the context to build a model in: no initial values are drawn if weights will replace the large parts.

    `filled` are the parts that get weights afterwards; `only_texts` says that the model has no image tower.
    """
    large_parts = set(TEXT) if only_texts else {"image_encoder", "text_encoder"}
    if large_parts <= set(filled):
        return undrawn()
    return contextlib.nullcontext()


def import_weights(
    source: str, weights, config: ConfigDict, vocabulary_size: int = 0, as_trained: bool = False
) -> tuple[DualEncoder, ConfigDict, list[str]]:
    """Builds a model whose parts come from files; parts that are not in them start at random.

    Args:
      source: a name in `families()`.
      weights: the folder or file.
      config: all settings that are not in the files, for example `base_config()`. `config.model="mural"` gives an
        imported ALIGN the second head of MURAL's checkpoint initialisation (Jain et al., 2021, A.1).
      vocabulary_size: how many pieces there are, for image towers, which bring no vocabulary.
      as_trained: whether a SigLIP's pictures and casing are as its trainers had them, not as Hugging Face reads them.

    Returns:
      The model, its whole configuration, and its vocabulary by id.

    Raises:
      UserError: an unknown source, files that are missing, damaged or of another kind, or tensors that do not fit.
    """
    config, pieces = configure(source, weights, config, as_trained)
    importer = importer_of(source)
    with building(importer.parts, only_texts=config.image_tower.name == "none"):
        model = build_model(config, len(pieces) or vocabulary_size)
    importer.load_weights(weights, model, config, importer.parts)
    return model, config, pieces
