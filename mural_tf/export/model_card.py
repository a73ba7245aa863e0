"""The model card: what an exported model is, what it was trained on, how well it does, how to call it."""

from __future__ import annotations

import datetime
import json
import math
import pathlib
from collections.abc import Mapping

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.models.dual_encoder import DualEncoder, trainable_parameters
from mural_tf.training.workdir import package_versions

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
        "learned_numbers": {name: float(number.numpy()) for name, number in learned_numbers(model).items()},
        "training_data": _training_data(config),
        "metrics": {key: _number(value) for key, value in sorted((metrics or {}).items())},
        "config": json.loads(json.dumps(config.to_dict(), default=list)),
    }


def learned_numbers(model: DualEncoder) -> dict[str, tf.Variable]:
    """Returns the parts of a trained model that are one number, by name, such as the logarithm of the temperature."""
    return {name: part for name, part in model.weights_by_part().items() if not isinstance(part, tf.Module)}


def _training_data(config: ConfigDict) -> dict[str, object]:
    """What the data folder's dataset.json says of itself: languages, counts, versions and licences."""
    described = {"source": config.data.source}
    path = pathlib.Path(config.data.directory) / "dataset.json"
    try:
        dataset = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        dataset = {}  # other people's TFRecords come without one
    if not isinstance(dataset, dict):
        dataset = {}
    for key in ("name", "sources", "settings", "license", "packages", "counts", "language_groups"):
        if key in dataset:
            described[key] = dataset[key]
    described["languages"] = sorted(dataset.get("languages", config.data.image_text_languages))
    return described


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None  # JSON has no NaN
