"""The evaluations of a checkpoint, by its workdir's metrics.jsonl.

Among several evaluations of one name the evaluation with the most languages counts, and of these the last: a look at
two languages does not describe the model.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from mural_tf.training.metrics_file import CHECKPOINT, EVALUATED, read_metrics

# Keys of single languages have one of these; groups of languages and "all" have only the mean recall.
_LANGUAGE_METRICS = ("/text_to_image/recall@1", "/image_to_text/recall@1")


def evaluations_of(
    workdir: pathlib.Path, step: int | None, exactly: bool = False, checkpoint: str = ""
) -> tuple[dict[str, float], dict[str, dict[str, object]]]:
    """Returns a checkpoint's numbers, and the data that each was measured on.

    Args:
      workdir: the folder whose metrics.jsonl is read.
      step: the checkpoint's step; if it was not evaluated, the last evaluated step is taken.
      exactly: whether no other step is taken.
      checkpoint: which of the workdir's checkpoints, see `checkpoints.existing_name`; rows of its other checkpoints,
        which may have the same step, are left out.

    Returns:
      {"<name>/<language>/…": number}, and {name: {"data", "split", "step", "languages"}}; numbers of dev only where
      there are no others. Data and split that a row lacks are "".
    """
    rows = [row for row in read_metrics(workdir) if _has_recall(row) and row.get(CHECKPOINT, checkpoint) == checkpoint]
    if rows and not exactly and all(row["step"] != step for row in rows):
        step = rows[-1]["step"]
    numbers: dict[str, dict[str, float]] = {}
    evaluations: dict[str, dict[str, object]] = {}
    for row in rows:
        if row["step"] != step:
            continue
        for name in _names(row):
            description = _describe(row, name)
            if name not in evaluations or len(description["languages"]) >= len(evaluations[name]["languages"]):
                evaluations[name] = description
                numbers[name] = {key: value for key, value in row.items() if key.startswith(f"{name}/")}
    beyond_dev = {name: entry for name, entry in evaluations.items() if entry["split"] != "dev"}
    evaluations = beyond_dev or evaluations
    metrics = {}
    for name in evaluations:
        metrics.update(numbers[name])
    return metrics, evaluations


def _has_recall(row: Mapping) -> bool:
    return any(key.endswith("/mean_recall") for key in row)


def _names(row: Mapping) -> list[str]:
    """Returns the names of the evaluations that a row of metrics.jsonl holds."""
    names = dict.fromkeys(key.split("/")[0] for key in row if "/" in key)
    return [name for name in names if name != "train"]


def _describe(row: Mapping, name: str) -> dict[str, object]:
    """Returns {"data", "split", "step", "languages"} of an evaluation in a row."""
    languages = set()
    for key in row:
        if key.startswith(f"{name}/") and key.endswith(_LANGUAGE_METRICS):
            languages.add(key.split("/")[1])
    description = {"data": "", "split": "dev" if name.endswith("_dev") else ""}
    description.update(row.get(EVALUATED, {}).get(name, {}))  # rows of the evaluation during training have no entry
    return {**description, "step": row["step"], "languages": sorted(languages)}
