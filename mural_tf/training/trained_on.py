"""The data that a run was trained on: `trained_on.json` in its workdir, which tells when the data changed.

It holds [{"from_step", "files": {name: bytes}, "dataset": digest}], an entry for each time that the data changed. A
checkpoint's position in the data is a position in the data of its step.
"""

from __future__ import annotations

import json
import pathlib

from mural_lite.errors import UserError
from mural_lite.files import check_json, json_field, write_whole

FILE = "trained_on.json"


def data_changes(workdir: pathlib.Path, step: int, data: dict) -> list[str]:
    """Returns how `data` differs from the data that the checkpoint of `step` was trained on, a phrase per file.

    For example ["train-0.tfrecord is missing"]; [] also before the first step, and where nothing was noted.

    Args:
      workdir: the run's folder.
      step: the checkpoint's step.
      data: {"files": {name: size in bytes}, "dataset": digest of the description}, as from `records.describe_files`.
    """
    entries = _entries(workdir, step)
    if not entries or step == 0:
        return []
    before = entries[-1]
    old_sizes = before["files"]
    new_sizes = data["files"]
    changes = [f"{name} is missing" for name in sorted(old_sizes.keys() - new_sizes.keys())]
    changes += [f"{name} is new" for name in sorted(new_sizes.keys() - old_sizes.keys())]
    for name in sorted(old_sizes.keys() & new_sizes.keys()):
        if old_sizes[name] != new_sizes[name]:
            changes.append(f"{name} had {old_sizes[name]:,} bytes, has {new_sizes[name]:,}")
    if not changes and before["dataset"] != data["dataset"]:
        changes = ["its description, dataset.json, is another one"]
    return changes


def note_data(workdir: pathlib.Path, step: int, data: dict) -> None:
    """Notes the data that is trained on after `step`, as `data_changes` takes it, if it is not noted yet."""
    entries = _entries(workdir, step)
    if entries and {**entries[-1], **data} == entries[-1]:  # all of `data` is in the last entry
        return
    from_step = step + 1 if step else 0  # a checkpoint of this step belongs to the data before
    entries.append({"from_step": from_step, **data})
    write_whole(workdir / FILE, json.dumps(entries, indent=1) + "\n")


def _entries(workdir: pathlib.Path, step: int) -> list[dict]:
    """Returns the entries of trained_on.json up to a step; raises `UserError` if the file is damaged."""
    path = workdir / FILE
    if not path.exists():
        return []
    try:
        entries = check_json(json.loads(path.read_text(encoding="utf-8")), list[dict], "what was trained on", path)
        entries = [_checked(entry, path) for entry in entries]
    except (ValueError, RecursionError):
        message = f"{path} is damaged. Remove it: this start then does not check whether the data changed."
        raise UserError(message) from None
    return [entry for entry in entries if entry["from_step"] <= step]


def _checked(entry: dict, path: pathlib.Path) -> dict:
    """Returns the fields of an entry of the file `path`; raises `ValueError` or `UserError` for another type."""
    field_types = {"from_step": int, "files": dict[str, int], "dataset": str}
    return {name: json_field(entry, name, field_type, path) for name, field_type in field_types.items()}
