"""The kinds of weights that can be imported, and the one way in: `import_weights`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Collection

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.files import read_json
from mural_lite.registry import registered
from mural_lite.remote_folders import local_model
from mural_tf.encoders.towers import read_class_names
from mural_tf.encoders.transformer import undrawn
from mural_tf.models import mount
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import (
    clip,
    clip_texts,
    efficientnet,
    hugging_face_align,
    hugging_face_bert,
    multilingual_clip,
    open_clip_siglip,
    sentence_transformers,
    siglip,
    weight_files,
)
from mural_tf.pretrained.vocabularies import read_vocabulary, token_rows

TEXT = ("text_encoder", "image_text_head", "text_text_head")


@dataclasses.dataclass(frozen=True)
class Importer:
    """One kind of weights.

    Args:
      parts: the parts that it fills, as `DualEncoder.weights_by_part` names them.
      configure: (weights, config) sets `config` by the files.
      load_weights: (weights, model, config, parts) fills the parts that are asked for.
      vocabulary: (weights, config) returns the lines by id and sets how they are used; `None` for an image tower.
      method: of such a model, by default; "": the configuration's.
      recognises: whether a folder or file is of this kind; asked of importers that are registered from outside.
    """

    parts: tuple[str, ...]
    configure: Callable
    load_weights: Callable
    vocabulary: Callable | None
    method: str = ""
    recognises: Callable[[pathlib.Path], bool] = lambda folder: False


def _load_tower(load: Callable) -> Callable:
    """Makes `Importer.load_weights` of a function (weights, encoder, its configuration) that fills a text tower."""
    return lambda weights, model, config, parts: load(weights, model.text_encoder, config.text_tower)


def _vocabulary(weights, config: ConfigDict) -> list[str]:
    """The vocabulary in a folder of Hugging Face."""
    return read_vocabulary(weights, config, token_rows(weight_files.open_safetensors(weights)))


def _of_modules(weights, config: ConfigDict) -> list[str]:
    lines = _vocabulary(sentence_transformers.text_folder(weights), config)
    sentence_transformers.configure_texts(weights, config)
    return lines


def _of_open_clip(weights, config: ConfigDict) -> list[str]:
    file = weight_files.open_safetensors(pathlib.Path(weights) / clip.OPEN_CLIP_WEIGHTS)
    return read_vocabulary(weights, config, token_rows(file))


_OWN = {
    "align": Importer(
        ("image_encoder", "text_encoder", "image_text_head", "log_temperature"),
        hugging_face_align.configure,
        hugging_face_align.load_weights,
        _vocabulary,
        method="align",
    ),
    "siglip": Importer(
        ("image_encoder", "text_encoder", "image_text_head", "log_temperature", "bias"),
        siglip.configure,
        siglip.load_weights,
        siglip.read_vocabulary,
        method="siglip",
    ),
    "clip": Importer(
        ("image_encoder", "text_encoder", "image_text_head", "log_temperature"),
        clip.configure,
        clip_texts.load_weights,
        clip_texts.read_vocabulary,
        method="align",
    ),
    "xlm_roberta_clip": Importer(
        ("image_encoder", "text_encoder", "image_text_head", "log_temperature"),
        multilingual_clip.configure_open_clip,
        multilingual_clip.load_open_clip,
        _of_open_clip,
        method="align",
    ),
    "m_clip": Importer(
        TEXT, multilingual_clip.configure_m_clip, multilingual_clip.load_m_clip, _vocabulary, method="labse"
    ),
    "sentences": Importer(
        TEXT, sentence_transformers.configure, sentence_transformers.load_weights, _of_modules, method="labse"
    ),
    "bert": Importer(
        ("text_encoder",),
        hugging_face_bert.configure,
        _load_tower(hugging_face_bert.load_weights),
        _vocabulary,
    ),
    "labse": Importer(
        ("text_encoder",), hugging_face_bert.configure_labse, _load_tower(hugging_face_bert.load_labse), _vocabulary
    ),
    "efficientnet": Importer(
        ("image_encoder",),
        efficientnet.configure,
        lambda weights, model, config, parts: efficientnet.load_weights(weights, model.image_encoder),
        None,
    ),
}


@functools.cache
def importers() -> dict[str, Importer]:
    """Returns an importer for each kind; other packages register theirs under the entry point `mural.importers`."""
    further = {name: entry.load() for name, entry in registered("mural.importers").items()}
    return {**_OWN, **further}


def kind_of(folder: str | pathlib.Path) -> str:
    """Returns the source, a key of `importers()`, that a folder or file of weights from elsewhere is; "" for none.

    A folder without `model_type` in its config.json, such as a workdir, is not a checkpoint.
    """
    folder = pathlib.Path(folder)
    if folder.suffix == ".npz":
        return "siglip"
    for name, importer in importers().items():
        if importer.recognises(folder):
            return name
    if folder.suffix == ".pth":
        return "efficientnet"
    if (folder / sentence_transformers.MODULES).is_file():
        return _kind_of_modules(folder)
    if (folder / clip.OPEN_CLIP_CONFIG).is_file():
        if open_clip_siglip.is_siglip(folder):
            return "siglip"
        return "xlm_roberta_clip" if multilingual_clip.has_xlm_roberta(folder) else "clip"
    if not (folder / "config.json").is_file():
        return "efficientnet" if folder.is_dir() and efficientnet.find_file(folder) else ""
    model_type = read_json(folder / "config.json").get("model_type")
    kinds = {"align": "align", "siglip": "siglip", "siglip2": "siglip", "clip": "clip", "M-CLIP": "m_clip"}
    return "" if model_type is None else kinds.get(model_type, "bert")


def _kind_of_modules(folder: pathlib.Path) -> str:
    """As `kind_of`: Sentence-Transformers saves models of images and texts, too."""
    for _, first_folder in sentence_transformers.read_rows(folder)[:1]:
        path = first_folder / "config.json"
        if path.is_file() and read_json(path).get("model_type") in ("clip", "siglip"):
            return read_json(path)["model_type"]
    return "sentences"


def has_own_head(family: str, folder: str | pathlib.Path) -> bool:
    """Whether texts of a folder end in a layer that leads to another model's space."""
    return family == "m_clip" or (family == "sentences" and sentence_transformers.read_modules(folder).head is not None)


def starting_config(source: str) -> ConfigDict:
    """Returns the configuration that a source's model is built of by default: `base_config()`, with its method.

    It computes in float32, so that its vectors are the original's on every machine.
    """
    config = base_config()
    method = importers()[source].method
    config.image_tower.precision = config.text_tower.precision = "float32"
    if method == "labse":  # only texts
        config.image_tower.name = "none"
    return mount(config, method or config.model)


def configure(
    source: str, weights, config: ConfigDict, as_trained: bool = False, parts: Collection[str] = ()
) -> tuple[ConfigDict, list[str]]:
    """Returns `config` with the weights' settings of their part, and their vocabulary.

    The vocabulary is empty for an image tower, or where `parts` lacks the text tower; `parts` by default are all.

    Raises `UserError` for an unknown source or files that are missing, damaged or of another kind.
    """
    if source not in importers():
        raise UserError(f"Unknown source {source!r}: expected one of {', '.join(importers())}.")
    if as_trained and source != "siglip":
        raise UserError(f"as_trained={as_trained}: expected it with siglip only, got {source}.")
    importer = importers()[source]
    before = config
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
            config[tower] = before[tower].copy_and_resolve_references()
    if not set(parts) & {"image_encoder", "image_text_head"}:  # a text tower has no head yet
        config.embedding_size = before.embedding_size
    if config.image_tower.name == "none":  # a model of only texts has the size of their embedding
        config.image_tower.projection = config.embedding_size
    pieces = []
    if importer.vocabulary is not None and "text_encoder" in parts:
        pieces = importer.vocabulary(weights, config, **options)
    _check_size(source, pathlib.Path(weights), config, parts)
    return config, pieces


TOWERS = {"image_tower": "image_encoder", "text_tower": "text_encoder"}  # of a configuration: parts of a model


def configure_towers(config: ConfigDict) -> tuple[ConfigDict, list[str]]:
    """Returns `config` with the settings of the weights that its towers name, and the text tower's vocabulary.

    `text_tower.max_length` may only fall. The vocabulary is empty where no weights are named for texts. The text
    tower's named prompts are dropped: training reads every text with the default prompt, and no other is learned.
    Raises `UserError` for weights that hold no such tower, or that `configure` refuses, and for a file of
    `image_tower.class_names` that is not a list of texts.
    """
    vocabulary: list[str] = []
    config = config.copy_and_resolve_references()
    if config.image_tower.class_names:
        config.image_tower.classes = len(read_class_names(config.image_tower.class_names))
        if not (config.image_tower.adapter_size and config.text_tower.adapter_size):
            raise UserError("image_tower.class_names needs image_tower.adapter_size and text_tower.adapter_size.")
    for tower, part in TOWERS.items():
        if config[tower].weights:
            folder = local_model(config[tower].weights)
            length = config.text_tower.max_length
            family = _kind_with(part, config[tower].weights)
            config, lines = configure(family, folder, config, parts=[part])
            config.text_tower.max_length = min(length, config.text_tower.max_length)
            config.vocabulary.prompts = ()
            vocabulary = lines or vocabulary
    if config.image_tower.class_names:
        config.image_tower.class_name_size = config.text_tower.hidden_size
    return config, vocabulary


def fill_towers(model: DualEncoder, config: ConfigDict) -> None:
    """Fills the towers of a model, built as `configure_towers` says, with the weights that they name."""
    for tower, part in TOWERS.items():
        if weights := config[tower].weights:
            importers()[_kind_with(part, weights)].load_weights(local_model(weights), model, config, [part])
            print(f"{part} starts with the weights of {weights}.", flush=True)


def _kind_with(part: str, weights: str) -> str:
    folder = local_model(weights)
    if not folder.exists():
        raise UserError(f"{weights} does not exist: expected weights with {part}, a folder, a file or a name.")
    family = kind_of(folder)
    if not family or part not in importers()[family].parts:
        holds = f"holds {', '.join(importers()[family].parts)}" if family else "is not listed in docs/checkpoints.md"
        raise UserError(f"{weights} {holds}: expected weights with {part}.")
    return family


OPENERS: dict[str, Callable] = {  # of each source, the file that holds its layers
    "siglip": lambda weights: siglip.open_weights(sentence_transformers.folder_of_two_towers(weights)),
    "sentences": lambda weights: weight_files.open_safetensors(sentence_transformers.text_folder(weights)),
    "clip": clip.open_weights,
    "xlm_roberta_clip": lambda weights: weight_files.open_safetensors(weights / clip.OPEN_CLIP_WEIGHTS),
    **dict.fromkeys(("align", "m_clip", "bert", "labse"), weight_files.open_safetensors),
}


def _check_size(source: str, weights: pathlib.Path, config: ConfigDict, parts: Collection[str]) -> None:
    """Raises `UserError` where a configuration asks for more numbers than the weights hold, before memory is taken."""
    taken = [tower for tower, part in TOWERS.items() if part in parts and part in importers()[source].parts]
    asked = sum(_numbers(config[tower]) for tower in taken)
    if source not in OPENERS or not asked:
        return
    file = OPENERS[source](weights)
    if asked > file.size:
        raise UserError(
            f"{weights}: its configuration asks for {asked:,} numbers in the layers, and {file.path} holds "
            f"{file.size:,}: they are not of one model."
        )


def _numbers(tower: ConfigDict) -> int:
    """How many numbers the layers of a transformer have, about: a little fewer than in truth; 0 of other towers."""
    if tower.name not in ("bert", "vit"):
        return 0
    hidden = tower.hidden_size
    layers = tower.layers * (4 * hidden**2 + 2 * hidden * tower.feed_forward_size)
    if tower.name == "bert":
        return layers + hidden * tower.max_length
    positions = (tower.image_size // tower.patch_size) ** 2
    return layers + hidden * (positions + 3 * tower.patch_size**2 + tower.projection)


def building(filled: Collection[str], only_texts: bool = False) -> contextlib.AbstractContextManager:
    """Inside, a model is built whose `filled` parts get weights: if all large parts are filled, nothing is drawn.

    `only_texts`: whether the model has no image tower.
    """
    large = set(TEXT) if only_texts else {"image_encoder", "text_encoder"}
    return undrawn() if large <= set(filled) else contextlib.nullcontext()


def import_weights(
    source: str, weights, config: ConfigDict, vocabulary_size: int = 0, as_trained: bool = False
) -> tuple[DualEncoder, ConfigDict, list[str]]:
    """Builds a model whose parts come from files; parts that are not in them are fresh.

    Args:
      source: a key of `importers()`.
      weights: the folder or file.
      config: all settings that are not in the files, for example `base_config()`. `config.model="mural"` gives an
        imported ALIGN the second head of MURAL's checkpoint initialisation (Jain et al., 2021, A.1).
      vocabulary_size: for image towers, which bring none.
      as_trained: of SigLIP, pictures and casing as its trainers had them, not as Hugging Face reads them.

    Returns:
      The model, its whole configuration, and its vocabulary by id.

    Raises:
      UserError: names in the files that are missing, unexpected or of another shape.
    """
    config, pieces = configure(source, weights, config, as_trained)
    with building(importers()[source].parts, only_texts=config.image_tower.name == "none"):
        model = build_model(config, len(pieces) or vocabulary_size)
    importers()[source].load_weights(weights, model, config, importers()[source].parts)
    return model, config, pieces
