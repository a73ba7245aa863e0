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
DATA_SET_FIELDS = ("name", "sources", "settings", "license", "packages", "counts", "language_groups")


def describe_model(
    model: DualEncoder,
    config: ConfigDict,
    metrics: Mapping[str, float] | None = None,
    evaluations: Mapping[str, Mapping] | None = None,
) -> dict[str, object]:
    """Returns the card of a trained model as JSON values.

    Args:
      model: the model.
      config: the configuration that it was built and trained by.
      metrics: {"<evaluation>/<language>/<metric>": number}, as `training.evaluated.evaluations_of` returns them.
      evaluations: {evaluation: {"data", "split", "languages", …}}, from there, too.
    """
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
        "metrics": {key: _finite(value) for key, value in sorted((metrics or {}).items())},
        "config": json.loads(json.dumps(config.to_dict(), default=list)),
    }


def _folder_name(evaluation: Mapping) -> str:
    """Returns the name of an evaluation's data folder, without its path, which belongs to one machine."""
    return str(evaluation.get("data", "")).rstrip("/").rpartition("/")[2]


def _training_data(config: ConfigDict) -> dict[str, object]:
    """Returns the card's "training_data", from dataset.json in the data's folders; logs a damaged file.

    It has at least "source" and "languages", and for a folder with a description the fields `DATA_SET_FIELDS`. With
    `data.sources` "data_sets" is {name of the source: its description and "weight"}, and "sources" and "languages" are
    of all folders together. A model that was only imported has the source `NOT_TRAINED`.
    """
    data = config.data
    names_data = data.source != "records" or data.directory or data.sources
    if config.origin and not names_data:
        return {"source": NOT_TRAINED, "languages": []}
    if not data.sources:
        description = _description_of(data.directory)
        languages = description.pop("languages", data.image_text_languages)
        return {"source": data.source, **description, "languages": sorted(languages)}
    data_sets = {}
    original_sources = []
    languages = set()
    for name, source in sorted(data.sources.items()):
        description = _description_of(source["directory"])
        original_sources += description.get("sources", [])
        languages.update(description.get("languages", []))
        data_sets[name] = {**description, "weight": source.get("weight", 1.0)}
    return {
        "source": data.source,
        "name": "mixture of " + ", ".join(sorted(data_sets)),
        "sources": original_sources,
        "data_sets": data_sets,
        "languages": sorted(languages or data.image_text_languages),
    }


def _description_of(folder: str) -> dict[str, object]:
    """Returns the fields of a data folder's dataset.json that a card repeats, `DATA_SET_FIELDS` and "languages".

    "languages" are sorted codes. A damaged file is logged, and the result is {}, as without a file.
    """
    path = as_path(folder) / "dataset.json"
    if not path.is_file():  # other people's TFRecords come without one
        return {}
    try:
        dataset = read_json(path)
        description = {key: dataset[key] for key in DATA_SET_FIELDS if key in dataset}
        if "languages" in dataset:
            expected = list[str] if isinstance(dataset["languages"], list) else dict
            description["languages"] = sorted(json_field(dataset, "languages", expected, path))
    except UserError as error:
        logging.warning("The model card does not say what the training data was: %s", error)
        return {}
    return description


def _finite(value: float) -> float | None:
    """Returns a number, or `None` for NaN and infinity, which JSON lacks."""
    return float(value) if math.isfinite(value) else None
