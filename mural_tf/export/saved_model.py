"""Exports a trained model: two encoders for serving, three TF-Hub modules, and what describes them.

    image_encoder/1/    SavedModel; signatures below
    text_encoder/1/     SavedModel; signatures below
    hub/                image_encoder, text_preprocessor, text_encoder: see hub_modules.py
    serving/            TensorFlow Serving's model config and batching parameters, example requests
    model_card.json, config.json, vocabulary.txt

| encoder | signature | input | output |
|---|---|---|---|
| image | `serving_default` | `image_bytes` string [B], JPEG, PNG, BMP or GIF | `embedding` float32 [B, D] |
| image | `image` | `image` float32 [B, S, S, 3] RGB in [0, 1], or features [B, F] | `embedding` |
| text | `serving_default` | `text` string [B], UTF-8 | `embedding` float32 [B, D] |
| text | `tokens` | `input_word_ids`, `input_mask`, `input_type_ids` int32 [B, T] | `embedding` |
| text | `text_text` (MURAL) | `text` string [B] | `text_text_embedding` float32 [B, D] |

All embeddings are L2-normalised. Loading them takes `tensorflow` and `import tensorflow_text`, not this library.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping

import tensorflow as tf
from absl import logging
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError, save_config
from mural_tf.data.image_inputs import prepare_image, prepared_spec
from mural_tf.export.hub_modules import save_hub_modules, text_variables
from mural_tf.export.model_card import describe_model
from mural_tf.export.serving import IMAGE_ENCODER, TEXT_ENCODER, write_serving_files
from mural_tf.models.contrastive import TOKENS, ContrastiveModel
from mural_tf.text.tokenizer import WordPieceTokenizer, build_tokenizer
from mural_tf.training.checkpoints import load_trained
from mural_tf.training.workdir import read_metrics

VERSION = "1"
MODEL_CARD = "model_card.json"


def export_model(
    model: ContrastiveModel,
    tokenizer: WordPieceTokenizer,
    config: ConfigDict,
    directory: str | pathlib.Path,
    metrics: Mapping[str, float] | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Writes an export of `model` and returns its folder, which appears when it is complete.

    Args:
      model: with its trained weights.
      tokenizer: the one it was trained with.
      config: the one it was trained with.
      directory: the folder to make.
      metrics: numbers of its evaluation, for the model card.
      overwrite: replace an export that is there.

    Raises:
      ConfigurationError: `directory` holds an export (unless `overwrite`) or anything else, or cannot be written.
    """
    directory = pathlib.Path(directory)
    _check_free(directory, overwrite)
    partial = directory.parent / f".{directory.name}.exporting"
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
        partial.mkdir(parents=True)
        with _quiet():
            _write(model, tokenizer, config, partial, metrics)
        replaced = directory.parent / f".{directory.name}.replaced"
        shutil.rmtree(replaced, ignore_errors=True)
        if directory.exists():
            os.replace(directory, replaced)
        os.replace(partial, directory)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise ConfigurationError(f"Cannot write the export {directory}: {error.strerror or error}.") from None
    except (tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError, tf.errors.UnknownError) as error:
        raise ConfigurationError(f"Cannot write the export {directory}: {error.message}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
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


def _check_free(directory: pathlib.Path, overwrite: bool) -> None:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not (directory / MODEL_CARD).is_file():
        raise ConfigurationError(f"{directory} exists and is no export: name another folder.")
    if not overwrite:
        raise ConfigurationError(
            f"{directory} holds an export already: name another folder, or replace it with --overwrite."
        )


def _write(model, tokenizer, config: ConfigDict, directory: pathlib.Path, metrics) -> None:
    save_config(config, directory / "config.json")
    tokenizer.save(directory / "vocabulary.txt")
    # Built on the file, so that every SavedModel below carries the vocabulary as an asset.
    tokenizer = build_tokenizer(config, directory / "vocabulary.txt", as_asset=True)
    module, signatures = _image_encoder(model, config)
    tf.saved_model.save(module, str(directory / IMAGE_ENCODER / VERSION), signatures)
    module, signatures = _text_encoder(model, tokenizer)
    tf.saved_model.save(module, str(directory / TEXT_ENCODER / VERSION), signatures)
    save_hub_modules(model, tokenizer, directory)
    write_serving_files(directory / "serving")
    card = json.dumps(describe_model(model, config, metrics), indent=2, ensure_ascii=False)
    (directory / MODEL_CARD).write_text(card + "\n", encoding="utf-8")


def _image_encoder(model: ContrastiveModel, config: ConfigDict) -> tuple[tf.Module, dict]:
    tower, prepared = config.image_tower, prepared_spec(config.image_tower)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def from_bytes(image_bytes):
        images = tf.map_fn(
            lambda data: prepare_image(data, tower),
            image_bytes,
            fn_output_signature=prepared,
        )
        return {"embedding": model.embed_images(images)}

    @tf.function(input_signature=[tf.TensorSpec([None, *prepared.shape], tf.float32, name="image")])
    def from_pixels(image):
        return {"embedding": model.embed_images(image)}

    # Only the variables are attached: attaching the Keras model would save every layer's functions too.
    module = tf.Module()
    module.model_variables = list(model.image_encoder.variables)
    return module, {"serving_default": from_bytes, "image": from_pixels}


def _text_encoder(model: ContrastiveModel, tokenizer: WordPieceTokenizer) -> tuple[tf.Module, dict]:
    text = tf.TensorSpec([None], tf.string, name="text")

    @tf.function(input_signature=[text])
    def from_text(text):
        return {"embedding": model.embed_texts(tokenizer(text, pad="longest"))}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name=name) for name in TOKENS])
    def from_tokens(input_word_ids, input_mask, input_type_ids):
        return {"embedding": model.embed_texts(dict(zip(TOKENS, (input_word_ids, input_mask, input_type_ids))))}

    signatures = {"serving_default": from_text, "tokens": from_tokens}
    if "text_text" in model.head_names:

        @tf.function(input_signature=[text])
        def for_texts(text):
            return {"text_text_embedding": model.embed_texts(tokenizer(text, pad="longest"), head="text_text")}

        signatures["text_text"] = for_texts
    module = tf.Module()
    module.model_variables = text_variables(model)
    module.tokenizer = tokenizer
    return module, signatures


def export_workdir(
    workdir: str | pathlib.Path, directory: str | pathlib.Path = "", overwrite: bool = False, checkpoint: str = "latest"
) -> pathlib.Path:
    """Exports the "latest" or "best" checkpoint of a workdir to `directory` (default: `workdir/export`).

    The model card gets the last evaluation in the workdir; of the best checkpoint, the last one of its step.

    Raises `ConfigurationError` if the workdir has no usable checkpoint, or as `export_model`.
    """
    workdir = pathlib.Path(workdir)
    directory = pathlib.Path(directory) if str(directory) else workdir / "export"
    _check_free(directory, overwrite)
    model, tokenizer, config, step = load_trained(workdir, checkpoint)
    rows = [row for row in read_metrics(workdir) if any(key.endswith("/mean_recall") for key in row)]
    if checkpoint == "best":
        rows = [row for row in rows if row["step"] == step]
    return export_model(model, tokenizer, config, directory, rows[-1] if rows else {}, overwrite)
