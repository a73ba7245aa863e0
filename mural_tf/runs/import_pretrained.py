"""Trained weights from elsewhere as a workdir: what evaluation, fine-tuning, export and search take.

[MURAL] A.1 trains from scratch or by "checkpoint initialization": ALIGN's towers, and the heads on top of the
text tower from scratch. Here an ALIGN with `config.model="mural"` keeps its image-text head, which its images were
trained with, and gets a fresh text-text head (our choice: the paper says that both are new).
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

from ml_collections import ConfigDict

from mural_lite.config import has_images
from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.remote_folders import display_name, local_copy, local_folder, local_model
from mural_lite.trust import settle_handles
from mural_tf.backend import keras
from mural_tf.export.saved_model import variables_of
from mural_tf.models import mount
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder, trainable_parameters
from mural_tf.pretrained.importers import (
    TEXT,
    building,
    configure,
    has_own_head,
    importers,
    kind_of,
    starting_config,
)
from mural_tf.pretrained.origin import origin_of
from mural_tf.pretrained.sentence_transformers import MODULES
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
    """Writes a workdir whose model has the weights; what is in neither the weights nor `onto` is fresh.

    Nothing is written unless all of the weights fit. The same command again completes a workdir that was interrupted.

    Args:
      source: a key of `importers.importers()`, or "workdir": another workdir, to change its method.
      weights: the folder or file.
      workdir: the folder to write; it must not hold a trained model.
      config: what the weights do not say; the default is `base_config()`.
      method: "align", "mural" and so on; "" is the weights' own, or else the configuration's.
      onto: a workdir whose towers, vocabulary and configuration are used where the weights bring none.
      text: the folder of a text tower in place of the weights' own, with a head of its own or a fresh one.
      as_trained: of SigLIP, see `import_weights`.

    Raises:
      UserError: files that are missing, damaged or do not fit, or a workdir that is in use.
    """
    _check_source(source)
    if config is not None:
        check_places(config)
    with local_folder(workdir) as folder:
        _import(source, weights, folder, config, method, onto, text, as_trained)


def _check_source(source: str) -> None:
    if source not in (*importers(), WORKDIR):
        raise UserError(f"What to import? Got {source!r}, expected one of {', '.join((*importers(), WORKDIR))}.")


def with_vocabulary(source: str, config: ConfigDict | None, vocabulary: str | pathlib.Path) -> ConfigDict:
    """Returns the configuration of an import that takes a vocabulary file: of big_vision's weights, which hold none."""
    _check_source(source)
    if source == WORKDIR:
        raise UserError("--vocabulary is for weights from elsewhere, and not for a workdir.")
    config = starting_config(source) if config is None else config.copy_and_resolve_references()
    config.vocabulary.file = str(local_copy(vocabulary))
    return config


def _import(source, weights, workdir: pathlib.Path, config, method, onto, text, as_trained) -> None:
    _check_empty(workdir)
    if source == WORKDIR:
        if onto:
            raise UserError("A workdir has all parts: leave --onto out.")
        for flag, given in {"text": text, "as_trained": as_trained}.items():
            if given:
                raise UserError(f"--{flag} is for weights from elsewhere, and not for a workdir.")
        onto = weights
    if onto and config is not None:
        raise UserError("--onto and --config exclude each other: the configuration is the workdir's.")
    model, config, pieces, fresh = _build(source, weights, config, method, onto, text, as_trained)
    config.vocabulary.sha256 = digest(pieces)
    with lock_workdir(workdir):
        _check_empty(workdir)  # another process may have been faster
        open_workdir(workdir, config)
        save_vocabulary(pieces, workdir / "vocabulary.txt")
        save_weights(model, workdir / "checkpoints", 0)
    taken = f"{weights} and {text}" if text else weights
    size = f"{config.model} with {trainable_parameters(model):,} parameters"
    print(f"Imported {taken} into {display_name(workdir)}: {size}.")
    if fresh:
        print(
            f"Not in the weights, so fresh: {', '.join(fresh)}. Train before use, for example with "
            "`python -m mural_tf finetune`."
        )


def _check_empty(workdir: pathlib.Path) -> None:
    if has_checkpoint(workdir):
        raise UserError(f"{display_name(workdir)} holds a trained model already; name another --workdir.")


def _build(source: str, weights, config: ConfigDict | None, method: str, onto, text, as_trained: bool):
    """Returns the model, its configuration, its word pieces, and the names of its parts that are fresh."""
    if source != WORKDIR:
        weights = local_model(weights)
        if source in SAVED_AS and not (weights / "config.json").is_file():
            raise UserError(f"{weights} has no config.json: expected the folder of Hugging Face's {SAVED_AS[source]}.")
        if source == "bert" and (weights / MODULES).is_file():
            raise UserError(
                f"{weights} has {MODULES} of Sentence-Transformers, and `import bert` would lose its pooling: import "
                "it with `python -m mural_tf import sentences`."
            )
    before, pieces = None, []
    if onto:
        before, tokenizer, config, _ = load_trained(local_model(onto))
        pieces = tokenizer.vocabulary
    elif config is None:
        config = starting_config(source)
    config = config.copy_and_resolve_references()
    settle_handles(config)
    mount(config, method or config.model)
    taken = [] if source == WORKDIR else _taken(source, weights, text, onto)
    size_before = config.embedding_size
    for family, folder, parts in taken:
        size = config.embedding_size
        if onto and "text_encoder" in parts:  # prompts are of the text tower that goes
            config.vocabulary.update(dict(prompt="", prompts=()))
        config, own_pieces = configure(family, folder, config, as_trained and family == source, parts)
        pieces = own_pieces or pieces
    brought = [part for _, _, parts in taken for part in parts]
    if config.embedding_size != size_before and "image_encoder" not in brought:
        if onto and has_images(config.image_tower):
            raise UserError(
                f"The head of {weights} leads to {config.embedding_size} numbers, the images of {onto} to "
                f"{size_before}: they are not in one space."
            )
        config.image_tower.projection = config.embedding_size  # it is fresh, and leads where the texts are
    if text and config.embedding_size != size:
        raise UserError(
            f"The head of {text} leads to {config.embedding_size} numbers, the images of {weights} to {size}: they are "
            "not of one space."
        )
    if taken:
        config.origin = "; ".join(str(origin_of(family, folder)) for family, folder, _ in taken)
        config.origin += "; pictures and casing as its trainers had them" * as_trained
    pieces = pieces or _vocabulary_of_data(config)
    keras.utils.set_random_seed(config.seed)
    with building(brought, only_texts=config.image_tower.name == "none"):
        model = build_model(config.copy_and_resolve_references(), len(pieces))
    for family, folder, parts in taken:
        importers()[family].load_weights(folder, model, config, parts)
    new_text = "text_encoder" in brought
    kept = _copy_parts(before, model, brought, new_text) if before is not None else ()
    there = (*brought, *kept, *(() if has_images(config.image_tower) else ("image_encoder",)))
    return model, config, pieces, [name for name in model.weights_by_part() if name not in there]


def workdir_of(source: str, workdir: str | os.PathLike, role: str = "source", part: str = "image_encoder") -> str:
    """Returns `source`, or for a published checkpoint the workdir next to `workdir` that it becomes.

    That is made once and called as `workdir`, with "_" and `role`. Raises `UserError` as `import_into_workdir`, and for
    a checkpoint without `part` or a vocabulary.
    """
    if "://" in source and source.startswith("http"):
        return source
    family = kind_of(local_model(source))
    if not family:
        return source
    if part not in importers()[family].parts or importers()[family].vocabulary is None:
        raise UserError(
            f"The {role} {source} is one tower alone ({family}): `python -m mural_tf import` makes a workdir of it and "
            "another one, see docs/checkpoints.md."
        )
    imported = as_path(f"{str(workdir).rstrip('/')}_{role}")
    if not imported.exists() or not has_checkpoint(local_copy(imported)):
        import_into_workdir(family, source, imported)
    return str(imported)


def _parts(source: str, text, onto) -> tuple[str, ...]:
    """Returns the parts that are taken of the weights; under a workdir's texts CLIP's, English alone, are left out."""
    leaves_texts = text or (onto and source == "clip")
    return tuple(part for part in importers()[source].parts if not (leaves_texts and part in TEXT))


def _taken(source: str, weights, text, onto) -> list[tuple[str, pathlib.Path, tuple[str, ...]]]:
    """Returns what fills the model: the source, its place, and the parts that are taken of it."""
    parts = importers()[source].parts
    if not text:
        return [(source, weights, _parts(source, text, onto))]
    folder = local_model(text)
    family = kind_of(folder)
    if "image_encoder" not in parts or not family or not set(importers()[family].parts) <= set(TEXT):
        raise UserError(
            f"--text={text} with {source}: expected the folder of a text tower (Hugging Face's BERT, LaBSE or "
            "XLM-RoBERTa, M-CLIP, Sentence-Transformers) with weights that have an image tower."
        )
    text_parts = TEXT if has_own_head(family, folder) else ("text_encoder",)
    return [(source, weights, _parts(source, text, onto)), (family, folder, text_parts)]


def _copy_parts(before: DualEncoder, model: DualEncoder, brought: Iterable[str], new_text: bool) -> list[str]:
    """Copies the parts that were not brought and fit; the heads of another text tower do not."""
    old, kept = before.weights_by_part(), []
    for name, part in model.weights_by_part().items():
        if name in brought or name not in old or (new_text and name.endswith("_head")):
            continue
        pairs = list(zip(variables_of(part), variables_of(old[name])))
        if all(new.shape == value.shape for new, value in pairs):
            for new, value in pairs:
                new.assign(value)
            kept.append(name)
    return kept


def _vocabulary_of_data(config: ConfigDict) -> list[str]:
    """The given vocabulary, or one of the training data, as pretraining would build it."""
    if not config.vocabulary.file and not config.data.directory:
        raise UserError(
            "An image tower brings no vocabulary: name a text tower with --text=…, a file with "
            "--config.vocabulary.file=…, training data to build one from with --config.data.directory=…, or a workdir "
            "with --onto=…."
        )
    if not config.vocabulary.file:
        prepare_data(config)
    return build_tokenizer(config, find_vocabulary(config)).vocabulary
