"""`metrics.jsonl` of a workdir: a row for each interval of training and each evaluation, {"step", name: number}."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

from absl import logging

from mural_lite.files import storage_errors, write_whole
from mural_lite.paths import RemotePath

EVALUATED = "evaluated"  # in rows: {name of an evaluation: {"data", "split"}}
CHECKPOINT = "checkpoint"  # in rows of a finished run: which of its checkpoints of this step was evaluated


def append_metrics(workdir: pathlib.Path | RemotePath, row: dict) -> None:
    """Appends a row, {"step", name: number}, as a line to `metrics.jsonl`; raises `UserError` if the disk is full."""
    path = workdir / "metrics.jsonl"
    with storage_errors(path):
        if isinstance(path, RemotePath):  # files of a store are written in one go
            before = path.read_text() if path.is_file() else ""
            path.write_text(before + json.dumps(row) + "\n")
            return
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_metrics(workdir: pathlib.Path) -> list[dict]:
    """Returns the rows of `metrics.jsonl` without damaged lines; warns of a damaged line before the last one.

    The last line may be incomplete: the disk was full, or the run was killed.
    """
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = []
    damaged = []  # numbers of lines
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is None:
            damaged.append(number)
        else:
            rows.append(row)
    if damaged and damaged[0] < len(lines):
        logging.warning("%s: %d damaged lines are left out, the first is line %d.", path, len(damaged), damaged[0])
    return rows


def _row(line: str) -> dict | None:
    """Returns the row in a line, `None` if it is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(row, dict) and type(row.get("step")) is int:  # no bool
        return row
    return None


def keep_metrics(workdir: pathlib.Path, is_kept: Callable[[dict], bool]) -> None:
    """Removes damaged lines of `metrics.jsonl`, and the rows for which `is_kept(row)` is False.

    For example the rows of steps that a restarted run repeats.
    """
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return
    lines = [json.dumps(row) + "\n" for row in read_metrics(workdir) if is_kept(row)]
    text = "".join(lines)
    if text != path.read_text(encoding="utf-8", errors="replace"):
        write_whole(path, text)


def has_evaluation(row: dict, name: str, step: int) -> bool:
    """Whether a row of `metrics.jsonl` holds the evaluation `name` of `step`."""
    return row["step"] == step and any(key.startswith(f"{name}/") for key in row)
