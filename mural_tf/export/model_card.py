"""The model card of an export: the model, its training data, and its evaluations with their data."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping

from absl import logging
from ml_collections import ConfigDict

from mural_lite.config import has_images, prompts_of
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json
from mural_tf.encoders.towers import preparation
from mural_tf.export.hub_modules import numbers_of
from mural_tf.models.dual_encoder import DualEncoder, trainable_parameters
from mural_tf.training.environment import package_versions

PACKAGES = ("tensorflow", "tensorflow-text", "mural-tf")
NOT_TRAINED = "not trained here"  # the source of training data of a model that was only imported


def describe_model(
    model: DualEncoder,
    config: ConfigDict,
    metrics: Mapping[str, float] | None = None,
    evaluations: Mapping[str, Mapping] | None = None,
) -> dict[str, object]:
    """Returns the card as JSON values; `metrics` and `evaluations` as `evaluations_of` returns them."""
    image = {}
    if has_images(config.image_tower):
        image = {
            "input": "JPEG or PNG bytes, or float32 RGB in [0, 1]",
            "classes": int(config.image_tower.classes),  # that a classifier in the tower knows by name
            **preparation(config.image_tower),
        }
    return {
        "name": config.model,
        "method": model.title or type(model).__name__,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "packages": package_versions(PACKAGES),
        "parameters": trainable_parameters(model),
        "embedding_size": int(config.embedding_size),
        "image": image,
        "text": {
            "input": "UTF-8 strings",
            "max_length": int(config.text_tower.max_length),
            "lower_case": bool(config.vocabulary.lower_case),
            "strip_accents": bool(config.vocabulary.strip_accents),
            "prompt": config.vocabulary.prompt,
            "prompts": prompts_of(config),
        },
        "embeddings": "float32, L2-normalised; similarity is the dot product",
        **{name: float(value.numpy()) for name, value in model.state_logs().items()},  # such as the temperature
        "learned_numbers": numbers_of(model),
        "origin": config.origin,
        "training_data": _training_data(config),
        "evaluations": {name: {**row, "data": _folder_name(row)} for name, row in (evaluations or {}).items()},
        "metrics": {key: _number(value) for key, value in sorted((metrics or {}).items())},
        "config": json.loads(json.dumps(config.to_dict(), default=list)),
    }


def _folder_name(evaluation: Mapping) -> str:
    """Returns the last part of a data folder's path: the rest belongs to the machine that evaluated."""
    return str(evaluation.get("data", "")).rstrip("/").rpartition("/")[2]


def _training_data(config: ConfigDict) -> dict[str, object]:
    """Returns the description in the data folder's dataset.json: source, languages, counts, versions and licences."""
    if config.origin and config.data.source == "records" and not config.data.directory:
        return {"source": NOT_TRAINED, "languages": []}
    path = as_path(config.data.directory) / "dataset.json"
    dataset = {}
    languages = config.data.image_text_languages
    try:
        if path.is_file():  # other people's TFRecords come without one
            dataset = read_json(path)
            expected = list[str] if isinstance(dataset.get("languages"), list) else dict
            languages = json_field(dataset, "languages", expected, path, languages)
    except UserError as error:
        logging.warning("The model card does not say what the training data was: %s", error)
        dataset = {}
    fields = ("name", "sources", "settings", "license", "packages", "counts", "language_groups")
    description = {key: dataset[key] for key in fields if key in dataset}
    return {"source": config.data.source, **description, "languages": sorted(languages)}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None  # JSON has no NaN
