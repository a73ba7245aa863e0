"""The data that a run was trained on: `trained_on.json` in its workdir, which tells when the data changed.

It holds [{"from_step", "files": {name: bytes}, "dataset": digest}], an entry for each time that the data changed. The
position in the data that a checkpoint holds is a position in the data of its step.
"""

from __future__ import annotations

import json
import pathlib

from mural_lite.errors import UserError
from mural_lite.files import check_json, json_field, write_whole

FILE = "trained_on.json"


def data_changes(workdir: pathlib.Path, step: int, data: dict) -> list[str]:
    """Returns differences between `data` and the data that the checkpoint of `step` was trained on; [] if not known.

    Args:
      data: {"files": {name: size in bytes}, "dataset": digest of the description}, as from `records.describe_files`.
    """
    entries = _entries(workdir, step)
    if not entries or step == 0:
        return []
    before = entries[-1]
    old = before["files"]
    new = data["files"]
    changes = [f"{name} is missing" for name in sorted(old.keys() - new.keys())]
    changes += [f"{name} is new" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        if old[name] != new[name]:
            changes.append(f"{name} had {old[name]:,} bytes, has {new[name]:,}")
    if not changes and before["dataset"] != data["dataset"]:
        changes = ["its description, dataset.json, is another one"]
    return changes


def note_data(workdir: pathlib.Path, step: int, data: dict) -> None:
    """Notes the data that is trained on after `step`, if it differs from the data up to there."""
    entries = _entries(workdir, step)
    if not entries or {**entries[-1], **data} != entries[-1]:
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
    """Returns the fields of an entry; raises `ValueError` or `UserError` for a field of another type."""
    fields = {"from_step": int, "files": dict[str, int], "dataset": str}
    return {name: json_field(entry, name, field_type, path) for name, field_type in fields.items()}
