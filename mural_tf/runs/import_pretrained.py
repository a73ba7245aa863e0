"""Trained weights from elsewhere as a workdir, for evaluation, fine-tuning, export and search.

[MURAL] A.1 trains from scratch or by "checkpoint initialization": ALIGN's towers, and the heads on top of the
text tower from scratch. Here an ALIGN with `config.model="mural"` keeps its image-text head, which its images were
trained with, and gets a fresh text-text head (our choice: the paper says that both are new).
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from mural_lite.config import has_images
from mural_lite.errors import UserError
from mural_lite.files import as_path, exclusive_lock, read_json, storage_errors, write_whole
from mural_lite.remote_folders import display_name, local_copy, local_folder, local_model
from mural_lite.trust import settle_handles
from mural_lite.vectors import model_digest
from mural_tf.backend import keras
from mural_tf.export.saved_model import variables_of
from mural_tf.models import mount
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder, trainable_parameters
from mural_tf.pretrained.folders import MODULES
from mural_tf.pretrained.front_matter import origin_of
from mural_tf.pretrained.importer import TEXT
from mural_tf.pretrained.importers import building, configure, families, importer_of, kind_of, starting_config
from mural_tf.text import build_tokenizer
from mural_tf.text.vocabulary_file import digest, save_vocabulary
from mural_tf.training.checkpoints import has_checkpoint, save_weights
from mural_tf.training.prepare import check_places, find_vocabulary, prepare_data
from mural_tf.training.trained_model import load_trained
from mural_tf.training.workdir import lock_workdir, open_workdir

SAVED_AS = {"align": "AlignModel", "bert": "BertModel", "labse": "LaBSE"}
WORKDIR = "workdir"  # the source that is a workdir of this project


def import_into_workdir(
    source: str,
    weights: str | pathlib.Path,
    workdir: str | pathlib.Path,
    config: ConfigDict | None = None,
    method: str = "",
    onto: str | pathlib.Path = "",
    text: str | pathlib.Path = "",
    as_trained: bool = False,
) -> None:
    """Writes a workdir whose model has the weights; parts that are in neither the weights nor `onto` are fresh.

    Nothing is written unless all of the weights fit. The same command again completes a workdir that was interrupted.

    Args:
      source: a name of `importers.families()`, or "workdir": another workdir, to change its method.
      weights: the folder or file.
      workdir: the folder to write; it must not hold a trained model.
      config: settings that the weights lack; the default is `base_config()`.
      method: the model's method, for example "align"; "": the method of the weights or of `config`.
      onto: a workdir whose towers, vocabulary and configuration are used where the weights bring none.
      text: the folder of a text tower in place of the weights' own, with a head of its own or a fresh one.
      as_trained: for SigLIP: read pixels and casing as its trainers did, and not as Hugging Face does.

    Raises:
      UserError: files that are missing, damaged or do not fit, or a workdir that is in use.
    """
    _check_source(source)
    if config is not None:
        check_places(config)
    with local_folder(workdir) as folder:
        _import(source, weights, folder, config, method, onto, text, as_trained)


def _check_source(source: str) -> None:
    """Raises `UserError` for a source that `import_into_workdir` does not know."""
    if source not in (*families(), WORKDIR):
        raise UserError(f"What to import? Got {source!r}, expected one of {', '.join((*families(), WORKDIR))}.")


def with_vocabulary(source: str, config: ConfigDict | None, vocabulary: str | pathlib.Path) -> ConfigDict:
    """Returns the configuration of an import with a vocabulary file, for weights that bring no vocabulary.

    Raises `UserError` for a workdir or an unknown source.
    """
    _check_source(source)
    if source == WORKDIR:
        raise UserError("--vocabulary is for weights from elsewhere, and not for a workdir.")
    if config is None:
        config = starting_config(source)
    else:
        config = config.copy_and_resolve_references()
    config.vocabulary.file = str(local_copy(vocabulary))
    return config


def _import(source, weights, workdir: pathlib.Path, config, method, onto, text, as_trained) -> None:
    """As `import_into_workdir`, for a workdir on this machine."""
    _check_empty(workdir)
    if source == WORKDIR:
        _check_flags_of_workdir(onto=onto, text=text, as_trained=as_trained)
        onto = weights  # all parts are copied from it
    if onto and config is not None:
        raise UserError("--onto and --config exclude each other: the configuration is the workdir's.")
    model, config, pieces, fresh_parts = _build(source, weights, config, method, onto, text, as_trained)
    config.vocabulary.sha256 = digest(pieces)
    with lock_workdir(workdir):
        _check_empty(workdir)  # another process may have written it meanwhile
        open_workdir(workdir, config)
        save_vocabulary(pieces, workdir / "vocabulary.txt")
        save_weights(model, workdir / "checkpoints", 0)
    sources = weights
    if text:
        sources = f"{weights} and {text}"
    size = f"{config.model} with {trainable_parameters(model):,} parameters"
    print(f"Imported {sources} into {display_name(workdir)}: {size}.")
    if fresh_parts:
        print(
            f"Not in the weights, so fresh: {', '.join(fresh_parts)}. Train before use, for example with "
            "`python -m mural_tf finetune`."
        )


def _check_flags_of_workdir(onto, text, as_trained) -> None:
    """Raises `UserError` for flags that only weights from elsewhere take."""
    if onto:
        raise UserError("A workdir has all parts: leave --onto out.")
    for flag, value in {"text": text, "as_trained": as_trained}.items():
        if value:
            raise UserError(f"--{flag} is for weights from elsewhere, and not for a workdir.")


def _check_empty(workdir: pathlib.Path) -> None:
    """Raises `UserError` for a workdir with a trained model."""
    if has_checkpoint(workdir):
        raise UserError(f"{display_name(workdir)} holds a trained model already; name another --workdir.")


def _build(source: str, weights, config: ConfigDict | None, method: str, onto, text, as_trained: bool):
    """Returns the model, its configuration, its word pieces, and the names of its parts that are fresh.

    Arguments as in `import_into_workdir`.
    """
    parts_from = []  # of a workdir, whose parts are copied
    if source != WORKDIR:
        weights = local_model(weights)
        _check_folder(source, weights)
        parts_from = _parts_from(source, weights, text, onto)
    old_model = None  # whose other parts stay
    pieces = []
    if onto:
        old_model, tokenizer, config, _ = load_trained(local_model(onto))
        pieces = tokenizer.vocabulary
    elif config is None:
        config = starting_config(source)
    config = config.copy_and_resolve_references()
    settle_handles(config)
    mount(config, method or config.model)
    loaded = []  # names of parts
    for _, _, parts in parts_from:
        loaded += parts
    config, loaded_pieces = _configure(config, parts_from, loaded, weights, onto, text, as_trained)
    # The text tower's own vocabulary, else the old model's, else a file's or the data's.
    pieces = loaded_pieces or pieces or _vocabulary_of_data(config)
    keras.utils.set_random_seed(config.seed)
    with building(loaded, only_texts=config.image_tower.name == "none"):
        model = build_model(config.copy_and_resolve_references(), len(pieces))
    for family, folder, parts in parts_from:
        importer_of(family).load_weights(folder, model, config, parts)
    filled = set(loaded)
    if old_model is not None:
        filled.update(_copy_parts(old_model, model, loaded))
    if not has_images(config.image_tower):
        filled.add("image_encoder")  # it has no weights
    fresh_parts = [name for name in model.weights_by_part() if name not in filled]
    return model, config, pieces, fresh_parts


def _check_folder(source: str, weights: pathlib.Path) -> None:
    """Raises `UserError` for a folder of weights that needs another command, or lacks its configuration."""
    if source in SAVED_AS and not (weights / "config.json").is_file():
        raise UserError(f"{weights} has no config.json: expected the folder of Hugging Face's {SAVED_AS[source]}.")
    if source == "bert" and (weights / MODULES).is_file():
        raise UserError(
            f"{weights} has {MODULES} of Sentence-Transformers, and `import bert` would lose its pooling: import "
            "it with `python -m mural_tf import sentences`."
        )


def _configure(
    config: ConfigDict, parts_from: Sequence[PartsFrom], loaded: Collection[str], weights, onto, text, as_trained: bool
) -> tuple[ConfigDict, list[str]]:
    """Returns the configuration with the architecture of weights, and their vocabulary or [].

    Args:
      config: the configuration before.
      parts_from: the weights to load: the source's, then the weights of the text tower `text`, if it is given.
      loaded: the names of all parts that are loaded.
      weights, onto, text: the folders, as the user named them, for messages.
      as_trained: whether pixels and casing are read as the source's trainers read them.

    Raises:
      UserError: images and texts that are not embedded into one space.
    """
    pieces = []
    size_at_first = config.embedding_size
    for number, (family, folder, parts) in enumerate(parts_from):
        size_before = config.embedding_size
        if onto and "text_encoder" in parts:  # its prompts are for the text tower that is replaced
            config.vocabulary.update(prompt="", prompts=())
        is_from_source = number == 0  # else of the text tower, which is read as always
        config, loaded_pieces = configure(family, folder, config, as_trained and is_from_source, parts)
        pieces = loaded_pieces or pieces
    size = config.embedding_size
    if size != size_at_first and "image_encoder" not in loaded:
        if onto and has_images(config.image_tower):
            raise UserError(
                f"The head of {weights} leads to {size} numbers, the images of {onto} to "
                f"{size_at_first}: they are not in one space."
            )
        config.image_tower.projection = size  # the image tower is fresh, and leads into the texts' space
    if text and size != size_before:  # before the text tower, whose weights are the last
        raise UserError(
            f"The head of {text} leads to {size} numbers, the images of {weights} to {size_before}: they are "
            "not of one space."
        )
    if parts_from:
        config.origin = "; ".join(str(origin_of(family, folder)) for family, folder, _ in parts_from)
        if as_trained:
            config.origin += "; pictures and casing as its trainers had them"
    return config, pieces


IMPORTED = "imported.json"  # in the workdir of a published checkpoint: {"source", "digest"}


def workdir_of(source: str, workdir: str | os.PathLike, role: str = "source", part: str = "image_encoder") -> str:
    """Returns `source`; a published checkpoint is imported once, into a workdir next to `workdir` that is returned.

    Args:
      source: a path, a name on a hub, or an address.
      workdir: the folder of the run that starts from the source.
      role: the new workdir's name is the name of `workdir` with "_" and this word.
      part: a part of the model that the checkpoint must have.

    Raises:
      UserError: as `import_into_workdir`, for a checkpoint without `part` or a vocabulary, and if the workdir was made
        of another checkpoint.
    """
    if source.startswith(("http://", "https://")):
        return source
    family = kind_of(local_model(source))
    if not family:
        return source
    importer = importer_of(family)
    if part not in importer.parts or importer.vocabulary is None:
        raise UserError(
            f"The {role} {source} is one tower alone ({family}): `python -m mural_tf import` makes a workdir of it and "
            "another one, see docs/checkpoints.md."
        )
    imported = as_path(f"{str(workdir).rstrip('/')}_{role}")
    origin = {"source": source, "digest": model_digest(local_model(source))}
    # Workers of one run start together: the first imports, the others wait for it.
    with storage_errors(imported):
        imported.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(imported.with_name(f".{imported.name}.lock")):
        if not imported.exists() or not has_checkpoint(local_copy(imported)):
            import_into_workdir(family, source, imported)
            write_whole(imported / IMPORTED, json.dumps(origin, indent=2) + "\n")
            return str(imported)
    _check_origin(imported, origin, role)
    return str(imported)


def _check_origin(imported: pathlib.Path, origin: dict[str, str], role: str) -> None:
    """Raises `UserError` if a workdir was made of another checkpoint than `origin`, {"source", "digest"}."""
    if not (imported / IMPORTED).exists():  # it was made before origins were kept
        return
    recorded = read_json(imported / IMPORTED)
    if recorded.get("digest") != origin["digest"]:
        raise UserError(
            f"{imported} was made of {recorded.get('source')} as it was then, and the {role} is {origin['source']} as "
            f"it is now: delete {imported}, or name another --workdir."
        )


class PartsFrom(NamedTuple):
    """A folder of weights of a family, and the parts of the model that are loaded from it."""

    family: str
    folder: pathlib.Path
    parts: tuple[str, ...]


def _parts_from(source: str, weights: pathlib.Path, text, onto) -> list[PartsFrom]:
    """Returns the weights to load: the source's and, if it is given, the text tower's, `text`.

    Raises `UserError` for a `text` other than a text tower, and for a `text` with weights without an image tower.
    """
    parts = tuple(importer_of(source).parts)
    if text or (onto and source == "clip"):  # CLIP's texts are only English: the workdir's are kept
        parts = tuple(part for part in parts if part not in TEXT)
    own_weights = PartsFrom(source, weights, parts)
    if not text:
        return [own_weights]
    folder = local_model(text)
    family = kind_of(folder)
    if "image_encoder" not in parts or not family or not set(importer_of(family).parts) <= set(TEXT):
        raise UserError(
            f"--text={text} with {source}: expected the folder of a text tower (Hugging Face's BERT, LaBSE or "
            "XLM-RoBERTa, M-CLIP, Sentence-Transformers) with weights that have an image tower."
        )
    text_parts = TEXT if importer_of(family).has_own_head(folder) else ("text_encoder",)
    return [own_weights, PartsFrom(family, folder, text_parts)]


def _copy_parts(old_model: DualEncoder, model: DualEncoder, loaded: Collection[str]) -> list[str]:
    """Copies each part that was not loaded and has the same shapes in `old_model`; returns the copied parts' names."""
    old_parts = old_model.weights_by_part()
    copied = []
    for name, part in model.weights_by_part().items():
        if name in loaded or name not in old_parts:
            continue
        if "text_encoder" in loaded and name.endswith("_head"):  # a head fits only the text tower it was trained with
            continue
        variables = variables_of(part)
        old_variables = variables_of(old_parts[name])
        if [variable.shape for variable in variables] != [variable.shape for variable in old_variables]:
            continue
        for variable, old_variable in zip(variables, old_variables):
            variable.assign(old_variable)
        copied.append(name)
    return copied


def _vocabulary_of_data(config: ConfigDict) -> list[str]:
    """Returns the lines of `vocabulary.file` or, without it, of a vocabulary that is built of the training data.

    Raises `UserError` where neither is named.
    """
    if not config.vocabulary.file and not config.data.directory:
        raise UserError(
            "An image tower brings no vocabulary: name a text tower with --text=…, a file with "
            "--config.vocabulary.file=…, training data to build one from with --config.data.directory=…, or a workdir "
            "with --onto=…."
        )
    if not config.vocabulary.file:
        prepare_data(config)
    return build_tokenizer(config, find_vocabulary(config)).vocabulary
