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
    """Returns a checkpoint's metrics, and the data that they were measured on.

    Args:
      workdir: the folder whose metrics.jsonl is read.
      step: the checkpoint's step; if it was not evaluated, the last evaluated step is taken.
      exactly: take no other step: without an evaluation of `step` the result is empty.
      checkpoint: "result", "latest" or "best"; rows of the workdir's other checkpoints, which may have the same step,
        are left out. "": only rows that name no checkpoint.

    Returns:
      {"<evaluation>/<language>/<metric>": number}, and {evaluation: {"data", "split", "step", "languages"}}; they
      hold evaluations of dev only where there are no others. Data and split that a row lacks are "".
    """
    rows = []
    for row in read_metrics(workdir):
        if _has_recall(row) and row.get(CHECKPOINT, checkpoint) == checkpoint:
            rows.append(row)
    is_evaluated = any(row["step"] == step for row in rows)
    if rows and not is_evaluated and not exactly:
        step = rows[-1]["step"]
    evaluations = {}  # {name: description}
    numbers = {}  # {name: {key: number}}
    for row in rows:
        if row["step"] != step:
            continue
        for name in _evaluation_names(row):
            description = _describe(row, name)
            # With `>=` the later of two evaluations of equally many languages counts.
            if name not in evaluations or len(description["languages"]) >= len(evaluations[name]["languages"]):
                evaluations[name] = description
                numbers[name] = {key: value for key, value in row.items() if key.startswith(f"{name}/")}
    beyond_dev = {name: description for name, description in evaluations.items() if description["split"] != "dev"}
    if beyond_dev:
        evaluations = beyond_dev
    metrics = {}
    for name in evaluations:
        metrics.update(numbers[name])
    return metrics, evaluations


def _has_recall(row: Mapping) -> bool:
    """Whether a row of metrics.jsonl holds an evaluation."""
    return any(key.endswith("/mean_recall") for key in row)


def _evaluation_names(row: Mapping) -> list[str]:
    """Returns the names of the evaluations that a row of metrics.jsonl holds."""
    names = dict.fromkeys(key.split("/")[0] for key in row if "/" in key)
    return [name for name in names if name != "train"]


def _describe(row: Mapping, name: str) -> dict[str, object]:
    """Returns {"data", "split", "step", "languages"} of the evaluation `name` in a row."""
    languages = set()
    for key in row:
        if key.startswith(f"{name}/") and key.endswith(_LANGUAGE_METRICS):
            languages.add(key.split("/")[1])
    recorded = row.get(EVALUATED, {}).get(name, {})  # {}: rows of the evaluation during training name no data
    return {
        "data": "",
        "split": "dev" if name.endswith("_dev") else "",  # as `SplitEvaluation` names it
        **recorded,
        "step": row["step"],
        "languages": sorted(languages),
    }
