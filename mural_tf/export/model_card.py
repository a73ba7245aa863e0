"""The model card of an export: what the model is, what it was trained on, how well it does and on what.

`evaluations_of` finds the numbers in a workdir. Among several evaluations of one name it takes the evaluation with the
most languages, and of these the last: a look at two languages does not describe the model.
"""

from __future__ import annotations

import datetime
import json
import math
import pathlib
from collections.abc import Mapping

from absl import logging
from ml_collections import ConfigDict

from mural_lite.config import prompts_of
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json
from mural_tf.encoders.towers import preparation
from mural_tf.export.hub_modules import numbers_of
from mural_tf.models.dual_encoder import DualEncoder, trainable_parameters
from mural_tf.training.environment import package_versions
from mural_tf.training.metrics_file import EVALUATED, read_metrics

# Keys of single languages have one of these; groups of languages and "all" have the mean recall alone.
_OF_A_LANGUAGE = ("/text_to_image/recall@1", "/image_to_text/recall@1")


def evaluations_of(
    workdir: pathlib.Path, step: int | None, exactly: bool = False
) -> tuple[dict[str, float], dict[str, dict[str, object]]]:
    """Returns a checkpoint's numbers, and the data that each was measured on.

    Args:
      workdir: whose metrics.jsonl is read.
      step: of the checkpoint. Without an evaluation of it, the last evaluated step's numbers are taken.
      exactly: leave out other steps.

    Returns:
      `<name>/<language>/…` → number, and name → {"data", "split", "step", "languages"}; numbers of dev only
      where there are no others. Data and split that a row lacks are "".
    """
    rows = [row for row in read_metrics(workdir) if any(key.endswith("/mean_recall") for key in row)]
    step_rows = [row for row in rows if row["step"] == step]
    if not step_rows and not exactly and rows:
        step_rows = [row for row in rows if row["step"] == rows[-1]["step"]]
    fullest: dict[str, tuple[dict[str, float], dict[str, object]]] = {}
    for row in step_rows:
        for name in dict.fromkeys(key.split("/")[0] for key in row if "/" in key and not key.startswith("train/")):
            numbers, described = _evaluation(workdir, row, name)
            if name not in fullest or len(described["languages"]) >= len(fullest[name][1]["languages"]):
                fullest[name] = numbers, described
    chosen = {name: entry for name, entry in fullest.items() if entry[1]["split"] != "dev"} or fullest
    metrics = {key: value for numbers, _ in chosen.values() for key, value in numbers.items()}
    return metrics, {name: described for name, (_, described) in chosen.items()}


def _evaluation(workdir: pathlib.Path, row: dict, name: str) -> tuple[dict[str, float], dict[str, object]]:
    numbers = {key: value for key, value in row.items() if key.startswith(f"{name}/")}
    languages = {key.split("/")[1] for key in numbers if key.endswith(_OF_A_LANGUAGE)}
    said = {"data": "", "split": "dev" if name.endswith("_dev") else "", **row.get(EVALUATED, {}).get(name, {})}
    return numbers, {**said, "step": row["step"], "languages": sorted(languages)}


PACKAGES = ("tensorflow", "tensorflow-text", "mural-tf")


def describe_model(
    model: DualEncoder,
    config: ConfigDict,
    metrics: Mapping[str, float] | None = None,
    evaluations: Mapping[str, Mapping] | None = None,
) -> dict[str, object]:
    """Returns the card as JSON values; `metrics` and `evaluations` as `evaluations_of` returns them."""
    return {
        "name": config.model,
        "method": model.title or type(model).__name__,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "packages": package_versions(PACKAGES),
        "parameters": trainable_parameters(model),
        "embedding_size": int(config.embedding_size),
        "image": {
            "input": "JPEG or PNG bytes, or float32 RGB in [0, 1]",
            "classes": int(config.image_tower.classes),  # that a classifier in the tower knows by name
            **preparation(config.image_tower),
        },
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
    """The last part of a data folder's path: the rest is of the machine that evaluated."""
    return str(evaluation.get("data", "")).rstrip("/").rpartition("/")[2]


def _training_data(config: ConfigDict) -> dict[str, object]:
    """What the data folder's dataset.json says of itself: languages, counts, versions and licences."""
    described = {"source": config.data.source}
    path = as_path(config.data.directory) / "dataset.json"
    dataset, languages = {}, config.data.image_text_languages
    try:
        if path.is_file():  # other people's TFRecords come without one
            dataset = read_json(path)
            expected = list[str] if isinstance(dataset.get("languages"), list) else dict
            languages = json_field(dataset, "languages", expected, path, languages)
    except UserError as error:
        logging.warning("The model card does not say what the training data was: %s", error)
        dataset = {}
    kept = ("name", "sources", "settings", "license", "packages", "counts", "language_groups")
    described.update({key: dataset[key] for key in kept if key in dataset})
    return {**described, "languages": sorted(languages)}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None  # JSON has no NaN
