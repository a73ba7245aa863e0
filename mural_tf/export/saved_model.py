"""Exports a trained model: two encoders for serving, three TF-Hub modules, and their description.

    image_encoder/1/    SavedModel; signatures below
    text_encoder/1/     SavedModel; signatures below
    hub/                image_encoder, text_preprocessor, text_encoder: see hub_modules.py
    serving/            TensorFlow Serving's files: see serving.py
    model_card.json, config.json, vocabulary.txt
    README.md           for people, and for the Hugging Face Hub: see readme.py

An export can hold several versions of the encoders: see versions.py.

| encoder | signature | input | output |
|---|---|---|---|
| image | `serving_default` | `image_bytes` string [B], JPEG or PNG | `embedding` float32 [B, D] |
| image | `image` | `image` float32 [B, S, S, 3] RGB in [0, 1], or features [B, F] | `embedding` |
| text | `serving_default` | `text` string [B], UTF-8 | `embedding` float32 [B, D] |
| text | `tokens` | `input_word_ids`, `input_mask`, `input_type_ids` int32 [B, T] | `embedding` |
| text | `text_text` (MURAL) | `text` string [B] | `text_text_embedding` float32 [B, D] |

All embeddings are L2-normalised float32; an image that does not decode gets zeros. A model with `vocabulary.prompt`
puts it before each text; its further signatures `prompted` and `prompted_text_text` take `prompted_text`, texts with
another prompt before them. Loading them takes `tensorflow` and `import tensorflow_text`, not this library.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import tempfile
from collections.abc import Mapping

import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict
from tensorflow.core.protobuf import saved_model_pb2

from mural_lite.config_file import save_config
from mural_lite.errors import UserError
from mural_lite.files import as_path, exclusive_lock, scratch_folder, whole_folder
from mural_lite.paths import RemotePath
from mural_lite.progress import announce
from mural_lite.versions import GRAPH, MODEL_CARD, VERSIONS
from mural_tf.backend import keras
from mural_tf.encoders.saved_models import seal_graph
from mural_tf.encoders.towers import keeps_precision
from mural_tf.export import signatures
from mural_tf.export.hub_modules import save_hub_modules
from mural_tf.export.model_card import describe_model
from mural_tf.export.readme import README, check_license, readme_of
from mural_tf.export.serving import (
    IMAGE_ENCODER,
    TEXT_ENCODER,
    nodes_of,
    unlisted_operations,
    write_serving_files,
    write_warmup_requests,
)
from mural_tf.export.versions import add_version, check_export_folder, choose_number
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.text import build_tokenizer
from mural_tf.text.vocabulary_file import digest
from mural_tf.text.word_pieces import WordPieceTokenizer

PRECISIONS = ("float32", "bfloat16")


def in_precision(
    model: DualEncoder, config: ConfigDict, vocabulary_size: int, precision: str = "float32"
) -> DualEncoder:
    """Returns `model` itself if `precision` is "float32" and both towers compute in it, else a copy in `precision`.

    Training takes the fast precision of its machine, bfloat16 on TPUs; servers run elsewhere. bfloat16 is slow
    on most CPUs and rounds embeddings to three digits, so float32 is the default; with "bfloat16" the weights are
    rounded as well, for which there is always a copy. A TF-Hub tower keeps the precision of its file; a model of two
    TF-Hub towers is never copied.

    Args:
      model: the trained model.
      config: the configuration that it was built by.
      vocabulary_size: how many pieces its vocabulary has.
      precision: one of `PRECISIONS`.

    Raises:
      UserError: the precision is unknown.
    """
    if precision not in PRECISIONS:
        raise UserError(f"Unknown precision {precision!r} of an export: expected {' or '.join(PRECISIONS)}.")
    config = config.copy_and_resolve_references()
    is_in_precision = True
    for tower, encoder in ((config.image_tower, model.image_encoder), (config.text_tower, model.text_encoder)):
        if not keeps_precision(tower):
            if precision != "float32" or computes_in_bfloat16(encoder):
                is_in_precision = False
            tower.precision = precision
    if is_in_precision:
        return model
    copy = build_model(config, vocabulary_size)
    parts_of_copy = copy.weights_by_part()
    for name, part in model.weights_by_part().items():
        for variable, weight in zip(variables_of(parts_of_copy[name]), variables_of(part)):
            variable.assign(tf.cast(weight, variable.dtype))
    return copy


def computes_in_bfloat16(tower: keras.Model) -> bool:
    """Whether any layer of a tower computes in bfloat16."""
    return any(layer.compute_dtype == "bfloat16" for layer in tower.layers)


def variables_of(part: tf.Module | tf.Variable) -> list[tf.Variable]:
    """Returns the variables of a part of `DualEncoder.weights_by_part`: a module's variables, or the part itself."""
    if hasattr(part, "variables"):
        return list(part.variables)
    return [part]


def export_model(
    model: DualEncoder,
    tokenizer: WordPieceTokenizer,
    config: ConfigDict,
    directory: str | pathlib.Path,
    evaluated: tuple[Mapping[str, float], Mapping[str, Mapping]] = ({}, {}),
    overwrite: bool = False,
    precision: str = "float32",
    version: str = "",
    license: str = "",
) -> pathlib.Path | RemotePath:
    """Writes an export of a model and returns its folder, which appears when it is complete.

    With `version`, the export is added to the versions in the folder, which do not change, and the folder of the new
    version's description is returned; see versions.py.

    Args:
      model: the model with its trained weights.
      tokenizer: the tokenizer that it was trained with.
      config: the configuration that it was trained with.
      directory: the folder to make.
      evaluated: for the model card, {"<name>/<language>/…": number} and the numbers' evaluations, as
        `training.evaluated.evaluations_of` returns both.
      overwrite: whether an export that is there is replaced.
      precision: "float32" or "bfloat16", for all SavedModels and independent of `model`.
      version: "" for an export without versions, a number, or "auto" for the next number.
      license: identifier of a licence for the README.md; "" is the imported weights'.

    Raises:
      UserError: an unknown `precision` or `license`; or `directory` holds an export (unless `overwrite` or `version`)
        or anything else, or this version; another process writes it, or it cannot be written.
    """
    directory = as_path(directory)
    check_license(license)
    check_export_folder(directory, overwrite, version)
    model = in_precision(model, config, tokenizer.vocabulary_size, precision)
    busy = f"Another process is exporting to {directory}: wait for it, or name another folder."
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(directory.parent / f".{directory.name}.lock", busy):
            if version:
                return _add(model, tokenizer, config, directory, evaluated, license, version)
            with whole_folder(directory, MODEL_CARD) as partial:
                _write(model, tokenizer, config, partial, evaluated, license)
    except OSError as error:
        raise UserError(f"Cannot write the export {directory}: {error.strerror or error}.") from None
    except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, tf.errors.UnknownError) as error:
        raise UserError(f"Cannot write the export {directory}: {error.message}") from None
    return directory


def _add(model, tokenizer, config, directory: pathlib.Path | RemotePath, evaluated, license: str, version: str):
    """Writes a new version to a scratch folder, adds it to the export, and returns the folder of its description.

    Arguments are as in `export_model`.
    """
    number = choose_number(directory, version)
    with contextlib.ExitStack() as stack:
        if isinstance(directory, RemotePath):
            partial = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            directory.mkdir(exist_ok=True)  # scratch lies inside: a folder that is mounted is a file system of its own
            partial = stack.enter_context(scratch_folder(directory / "version"))
        _write(model, tokenizer, config, partial, evaluated, license, number)
        add_version(partial, directory, number)
    return directory / VERSIONS / str(number)


def _write(
    model, tokenizer, config: ConfigDict, directory: pathlib.Path, evaluated, license: str, number: int = 0
) -> None:
    """Writes an export into `directory`, or with a version's `number` the files that `add_version` takes; prints steps.

    Other arguments are as in `export_model`.
    """
    version = 1  # of an export without versions
    description = directory
    if number:
        version = number
        description = directory / VERSIONS / str(number)
    description.mkdir(parents=True, exist_ok=True)
    config = config.copy_and_resolve_references()
    config.vocabulary.sha256 = digest(tokenizer.vocabulary)
    save_config(config, description / "config.json")
    tokenizer.save(description / "vocabulary.txt")
    # Built on the file, so that every SavedModel below carries the vocabulary as an asset.
    tokenizer = build_tokenizer(config, description / "vocabulary.txt", as_asset=True)
    _save_encoder(directory, IMAGE_ENCODER, version, *signatures.image_signatures(model, config))
    _save_encoder(directory, TEXT_ENCODER, version, *signatures.text_signatures(model, tokenizer))
    announce("Saving the modules for TF-Hub …")
    save_hub_modules(model, tokenizer, config, description)
    write_serving_files(directory / "serving")
    card = {"version": version, **describe_model(model, config, *evaluated)}
    (description / README).write_text(readme_of(card, license), encoding="utf-8")
    (description / MODEL_CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _save_encoder(directory: pathlib.Path, name: str, version: int, module: tf.Module, functions: Mapping) -> None:
    """Saves an encoder for TensorFlow Serving, with requests that warm it up and the digests of its files.

    Args:
      directory: the export's folder.
      name: `IMAGE_ENCODER` or `TEXT_ENCODER`.
      version: the encoder's number below `directory / name`.
      module: the module to save.
      functions: {signature: function}.
    """
    announce(f"Saving {name} …")
    folder = directory / name / str(version)
    save_for_inference(module, folder, functions)
    write_warmup_requests(folder, name)
    _check_operations(folder)
    seal_graph(folder)


def save_for_inference(module: tf.Module, folder: pathlib.Path, functions: Mapping) -> None:
    """Saves a module with its {signature: function} into a folder, and takes its functions' gradients out of the file.

    TensorFlow registers gradients for the life of the process that loads them, and with them the whole graph: a server
    that loads one version after the other would keep them all.
    """
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(folder), functions, options)
    path = folder / GRAPH
    saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for part in saved_model.meta_graphs:
        for node in nodes_of(part.graph_def):
            node.attr.pop("_gradient_op_type", None)  # or loading warns of the missing gradients
    path.write_bytes(saved_model.SerializeToString(deterministic=True))


def _check_operations(folder: pathlib.Path) -> None:
    """Logs a warning if a SavedModel has operations that the stock model server may lack.

    A TF-Hub text tower can bring any operation.
    """
    unlisted = sorted(unlisted_operations(folder))
    if unlisted:
        logging.warning(
            "%s/%s has operations that the stock TensorFlow Serving binary is not known to link: %s.",
            *folder.parts[-2:],
            ", ".join(unlisted),
        )
