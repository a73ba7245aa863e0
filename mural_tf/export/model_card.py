"""The model card: what an exported model is, what it was trained on, how well it does, how to call it."""

from __future__ import annotations

import datetime
import json
import math
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from mural_tf.models import ContrastiveModel
from mural_tf.training.workdir import package_versions

PACKAGES = ("tensorflow", "tensorflow-text", "mural-tf")
METHODS = {
    "mural": "MURAL: multimodal, multitask retrieval across languages (Jain et al., 2021)",
    "align": "ALIGN: image-text matching with noisy text supervision (Jia et al., 2021), as MURAL's baseline",
    "etcl": "ETCL: MURAL enhanced with triples of an image and two texts",
    "globetrotter": "Globetrotter: connecting languages by connecting images (Surís et al., 2022)",
    "labse": "LaBSE-style dual encoder of texts (Feng et al., 2020), MURAL's text-text task alone",
}


def describe_model(
    model: ContrastiveModel, config: ConfigDict, metrics: Mapping[str, float] | None = None
) -> dict[str, object]:
    """Returns the card as JSON values; `metrics` are those of the evaluation, `<benchmark>/<language>/…` → number."""
    tower = config.image_tower
    return {
        "name": config.model,
        "method": METHODS.get(config.model, config.model),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "packages": package_versions(PACKAGES),
        "parameters": int(model.count_params()),
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
        "training_data": _training_data(config),
        "metrics": {key: _number(value) for key, value in sorted((metrics or {}).items())},
        "config": json.loads(json.dumps(config.to_dict(), default=list)),
    }


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
