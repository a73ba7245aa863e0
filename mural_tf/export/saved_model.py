"""Exports a trained model: two encoders for serving, three TF-Hub modules, and what describes them.

    image_encoder/1/    SavedModel; signatures below
    text_encoder/1/     SavedModel; signatures below
    hub/                image_encoder, text_preprocessor, text_encoder: see hub_modules.py
    serving/            what TensorFlow Serving needs beside them: see serving.py
    model_card.json, config.json, vocabulary.txt

| encoder | signature | input | output |
|---|---|---|---|
| image | `serving_default` | `image_bytes` string [B], JPEG, PNG, BMP or GIF | `embedding` float32 [B, D] |
| image | `image` | `image` float32 [B, S, S, 3] RGB in [0, 1], or features [B, F] | `embedding` |
| text | `serving_default` | `text` string [B], UTF-8 | `embedding` float32 [B, D] |
| text | `tokens` | `input_word_ids`, `input_mask`, `input_type_ids` int32 [B, T] | `embedding` |
| text | `text_text` (MURAL) | `text` string [B] | `text_text_embedding` float32 [B, D] |

All embeddings are L2-normalised float32; an image that does not decode gets zeros. Loading them takes `tensorflow` and
`import tensorflow_text`, not this library.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import pathlib
from collections.abc import Iterator, Mapping

import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.config import save_config
from mural_tf.encoders.saved_models import seal_graph
from mural_tf.encoders.towers import keeps_precision
from mural_tf.errors import UserError
from mural_tf.export import signatures
from mural_tf.export.hub_modules import numbers_of, save_hub_modules
from mural_tf.export.serving import (
    IMAGE_ENCODER,
    TEXT_ENCODER,
    unlisted_operations,
    write_serving_files,
    write_warmup_requests,
)
from mural_tf.files import as_path, exclusive_lock, json_field, read_json, whole_folder
from mural_tf.models import build_model
from mural_tf.models.dual_encoder import DualEncoder, trainable_parameters
from mural_tf.remote import RemotePath
from mural_tf.remote_folders import local_copy
from mural_tf.text import build_tokenizer
from mural_tf.text.vocabulary_file import digest, seal_saved_model
from mural_tf.text.word_pieces import WordPieceTokenizer
from mural_tf.training.checkpoints import load_trained
from mural_tf.training.workdir import package_versions, read_metrics

PRECISIONS = ("float32", "mixed_bfloat16")


def in_precision(
    model: DualEncoder, config: ConfigDict, vocabulary_size: int, precision: str = "float32"
) -> DualEncoder:
    """Returns `model` if both towers compute in `precision`, else a new model that does, with the same weights.

    Training takes what is fast on its machine, bfloat16 on TPUs; those who serve have another machine. bfloat16 is slow
    on most CPUs and rounds embeddings to three digits, so float32 is exported unless asked.
    A TF-Hub tower keeps the precision it was made with. Raises `UserError` for an unknown precision.
    """
    if precision not in PRECISIONS:
        raise UserError(f"Unknown precision {precision!r} of an export: expected {' or '.join(PRECISIONS)}.")
    config, differs = config.copy_and_resolve_references(), False
    for tower, encoder in ((config.image_tower, model.image_encoder), (config.text_tower, model.text_encoder)):
        if not keeps_precision(tower):
            differs = differs or computes_in_bfloat16(encoder) != (precision == "mixed_bfloat16")
            tower.precision = precision
    if not differs:
        return model
    copy = build_model(config, vocabulary_size)
    targets = copy.weights_by_part()
    for name, part in model.weights_by_part().items():
        for variable, value in zip(_variables(targets[name]), _variables(part)):
            variable.assign(value)
    return copy


def computes_in_bfloat16(tower: keras.Model) -> bool:
    """Tells whether any layer does."""
    return any(layer.compute_dtype == "bfloat16" for layer in tower.layers)


def _variables(part: tf.Module | tf.Variable) -> list[tf.Variable]:
    return list(part.variables) if hasattr(part, "variables") else [part]


VERSION = "1"
MODEL_CARD = "model_card.json"


def export_model(
    model: DualEncoder,
    tokenizer: WordPieceTokenizer,
    config: ConfigDict,
    directory: str | pathlib.Path,
    metrics: Mapping[str, float] | None = None,
    overwrite: bool = False,
    precision: str = "float32",
) -> pathlib.Path | RemotePath:
    """Writes an export of `model` and returns its folder, which appears when it is complete.

    Args:
      model: with its trained weights.
      tokenizer: the one it was trained with.
      config: the one it was trained with.
      directory: the folder to make.
      metrics: numbers of its evaluation, for the model card.
      overwrite: replace an export that is there.
      precision: what all SavedModels compute in, "float32" or "mixed_bfloat16", whatever `model` does.

    Raises:
      UserError: an unknown `precision`; or `directory` holds an export (unless `overwrite`) or anything else, another
        process writes it, or it cannot be written.
    """
    directory = as_path(directory)
    _check_free(directory, overwrite)
    model = in_precision(model, config, tokenizer.vocabulary_size, precision)
    busy = f"Another process is exporting to {directory}: wait for it, or name another folder."
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = exclusive_lock(directory.parent / f".{directory.name}.lock", busy)
        with lock, whole_folder(directory, MODEL_CARD) as partial, _quiet():
            _write(model, tokenizer, config, partial, metrics)
    except OSError as error:
        raise UserError(f"Cannot write the export {directory}: {error.strerror or error}.") from None
    except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, tf.errors.UnknownError) as error:
        raise UserError(f"Cannot write the export {directory}: {error.message}") from None
    return directory


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences TensorFlow's notes about renamed captures and fingerprint files, ten lines an export."""
    before = logging.get_verbosity()
    logging.set_verbosity(min(before, logging.WARNING))
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _check_free(directory: pathlib.Path | RemotePath, overwrite: bool) -> None:
    if not directory.exists() or (directory.is_dir() and not any(True for _ in directory.iterdir())):
        return
    if not (directory / MODEL_CARD).is_file():
        raise UserError(f"{directory} exists and is not an export: name another folder.")
    if not overwrite:
        raise UserError(f"{directory} holds an export already: name another folder, or replace it with --overwrite.")


def _write(model, tokenizer, config: ConfigDict, directory: pathlib.Path, metrics) -> None:
    config = config.copy_and_resolve_references()
    config.vocabulary.sha256 = digest(tokenizer.vocabulary)
    save_config(config, directory / "config.json")
    tokenizer.save(directory / "vocabulary.txt")
    # Built on the file, so that every SavedModel below carries the vocabulary as an asset.
    tokenizer = build_tokenizer(config, directory / "vocabulary.txt", as_asset=True)
    for name, (module, functions) in (
        (IMAGE_ENCODER, signatures.image_encoder(model, config)),
        (TEXT_ENCODER, signatures.text_encoder(model, tokenizer)),
    ):
        folder = directory / name / VERSION
        tf.saved_model.save(module, str(folder), functions)
        write_warmup_requests(folder, name)
        _check_operations(folder)
        seal_graph(folder)
    seal_saved_model(directory / TEXT_ENCODER / VERSION)
    save_hub_modules(model, tokenizer, config, directory)
    write_serving_files(directory / "serving")
    card = json.dumps(describe_model(model, config, metrics), indent=2, ensure_ascii=False)
    (directory / MODEL_CARD).write_text(card + "\n", encoding="utf-8")


def _check_operations(folder: pathlib.Path) -> None:
    """Warns of what the stock model server may lack: a TF-Hub text tower can bring anything."""
    unlisted = sorted(unlisted_operations(folder))
    if unlisted:
        logging.warning(
            "%s/%s has operations that the stock TensorFlow Serving binary is not known to link: %s.",
            *folder.parts[-2:],
            ", ".join(unlisted),
        )


def export_workdir(
    workdir: str | pathlib.Path,
    directory: str | pathlib.Path = "",
    overwrite: bool = False,
    checkpoint: str = "result",
    precision: str = "float32",
) -> pathlib.Path | RemotePath:
    """Exports the "result", "latest" or "best" weights of a workdir to `directory` (default: `workdir/export`).

    The model card gets the last evaluation in the workdir; of the best checkpoint, the last one of its step.

    Raises `UserError` if the workdir has no usable checkpoint, or as `export_model`.
    """
    directory = as_path(directory if str(directory) else as_path(workdir) / "export")
    _check_free(directory, overwrite)
    workdir = local_copy(workdir)
    model, tokenizer, config, step = load_trained(workdir, checkpoint)
    rows = [row for row in read_metrics(workdir) if any(key.endswith("/mean_recall") for key in row)]
    if checkpoint == "best":
        rows = [row for row in rows if row["step"] == step]
    return export_model(model, tokenizer, config, directory, rows[-1] if rows else {}, overwrite, precision)


PACKAGES = ("tensorflow", "tensorflow-text", "mural-tf")


def describe_model(
    model: DualEncoder, config: ConfigDict, metrics: Mapping[str, float] | None = None
) -> dict[str, object]:
    """Returns the card as JSON values; `metrics` are those of the evaluation, `<benchmark>/<language>/…` → number."""
    tower = config.image_tower
    return {
        "name": config.model,
        "method": model.title or type(model).__name__,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "packages": package_versions(PACKAGES),
        "parameters": trainable_parameters(model),
        "embedding_size": int(config.embedding_size),
        "image": {
            "input": "JPEG, PNG, BMP or GIF bytes, or float32 RGB in [0, 1]",
            "resize": int(tower.resize),
            "image_size": int(tower.image_size),
        },
        "text": {
            "input": "UTF-8 strings",
            "max_length": int(config.text_tower.max_length),
            "lower_case": bool(config.vocabulary.lower_case),
            "strip_accents": bool(config.vocabulary.strip_accents),
        },
        "embeddings": "float32, L2-normalised; similarity is the dot product",
        "temperature": float(model.temperature.numpy()),
        "learned_numbers": numbers_of(model),
        "training_data": _training_data(config),
        "metrics": {key: _number(value) for key, value in sorted((metrics or {}).items())},
        "config": json.loads(json.dumps(config.to_dict(), default=list)),
    }


def _training_data(config: ConfigDict) -> dict[str, object]:
    """What the data folder's dataset.json says of itself: languages, counts, versions and licences."""
    described = {"source": config.data.source}
    path = as_path(config.data.directory) / "dataset.json"
    dataset, languages = {}, config.data.image_text_languages
    try:
        if path.is_file():  # other people's TFRecords come without one
            dataset = read_json(path)
            kind = list[str] if isinstance(dataset.get("languages"), list) else dict
            languages = json_field(dataset, "languages", kind, path, languages)
    except UserError as error:
        logging.warning("The model card does not say what the training data was: %s", error)
        dataset = {}
    for key in ("name", "sources", "settings", "license", "packages", "counts", "language_groups"):
        if key in dataset:
            described[key] = dataset[key]
    described["languages"] = sorted(languages)
    return described


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None  # JSON has no NaN
