"""The folder of a run: its configuration, vocabulary, metrics, checkpoints and exports."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import platform
from collections.abc import Callable, Iterator, Mapping

from absl import logging
from ml_collections import ConfigDict

from mural_lite.config_file import load_config, save_config
from mural_lite.errors import UserError, brief
from mural_lite.files import (
    PARTIAL,
    check_json,
    exclusive_lock,
    json_field,
    read_json,
    remove_partial,
    storage_errors,
    write_whole,
)
from mural_lite.paths import RemotePath
from mural_lite.remote_folders import LOCK
from mural_tf.training.environment import environment, threads

# Fields that may change between two runs of the same command: they do not change what is learned.
FREE_FIELDS = (
    "data.directory",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.evaluate_every",
    "train.log_every",
    "train.steps_per_execution",
    "train.fused",
    "train.jit",
    "evaluation.batch_size",
    "evaluation.split",
    "vocabulary.sha256",  # what the vocabulary is, not which was asked for; `build_tokenizer` compares it
)


SHOWN = 2  # fields that differ, in a message
EVALUATED = "evaluated"  # in rows of metrics.jsonl: {name of an evaluation: {"data", "split"}}
TRAINED_ON = "trained_on.json"
BEFORE_TRAINING = {LOCK, "config.json", "environment.json", "vocabulary.txt"}  # the vocabulary is also next to the data


@contextlib.contextmanager
def lock_workdir(path: str | pathlib.Path) -> Iterator[None]:
    """Makes a workdir's folder and holds it against other runs; a process that dies, however it does, lets go.

    Raises `UserError` if another run holds it, or the folder cannot be written.
    """
    workdir = _make_folder(pathlib.Path(path))
    _check_own(workdir)
    holder = workdir / LOCK
    with contextlib.ExitStack() as held:
        with storage_errors(holder):
            by = holder.read_text(encoding="utf-8", errors="replace").strip() if holder.exists() else ""
            by = f" ({by})" if by else ""
            busy = f"{workdir} is in use by another run{by}. Wait until it ends, or name another --workdir."
            held.enter_context(exclusive_lock(holder, busy))
            holder.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        yield


def open_workdir(path: str | pathlib.Path, config: ConfigDict, writes: bool = True) -> pathlib.Path:
    """Makes a workdir for `config`, or opens one that was made for the same configuration.

    One in which nothing was trained yet, because the run stopped at a mistake, takes another configuration.
    With `writes` False, for workers other than the chief, a workdir that is not there is an error.

    Raises `UserError` if the folder cannot be written or belongs to another configuration.
    """
    workdir = pathlib.Path(path)
    if not writes and not (workdir / "config.json").exists():
        raise UserError(f"--workdir={workdir} is not the chief's: all workers must see one folder.")
    _make_folder(workdir)
    if (workdir / "config.json").exists():
        different = _differences(load_config(workdir / "config.json"), config)
        if different and writes and {path.name for path in workdir.iterdir()} <= BEFORE_TRAINING:
            save_config(config, workdir / "config.json")
            (workdir / "vocabulary.txt").unlink(missing_ok=True)
        elif different:
            more = f" and {len(different) - SHOWN} more" * (len(different) > SHOWN)
            raise UserError(
                f"{workdir} belongs to another configuration ({'; '.join(different[:SHOWN])}{more}). Run with its own, "
                f"or name another --workdir; `finetune --from={workdir}` goes on from its weights."
            )
    else:
        _check_own(workdir)
        save_config(config, workdir / "config.json")
    if not writes:
        return workdir
    remove_partial(workdir)
    if not (workdir / "environment.json").exists():
        write_whole(workdir / "environment.json", json.dumps(environment(), indent=2) + "\n")
    _compare_threads(workdir)
    return workdir


def _check_own(workdir: pathlib.Path) -> None:
    others = [path for path in workdir.iterdir() if not path.name.endswith((PARTIAL, LOCK))]
    if others and not (workdir / "config.json").exists():
        raise UserError(f"{workdir} is neither empty nor a workdir (no config.json); name another folder.")


def _make_folder(workdir: pathlib.Path) -> pathlib.Path:
    with storage_errors(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        if not os.access(workdir, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return workdir


def _compare_threads(workdir: pathlib.Path) -> None:
    """Says when a run goes on with another number of threads, among which sums are divided in another way."""
    before = read_json(workdir / "environment.json").get("threads", threads())
    if before != threads():
        logging.warning(
            "%s was begun with %s threads and goes on with %d: from here on not bit for bit as it would have with %s.",
            workdir, before, threads(), before,
        )  # fmt: skip


# What was trained on: `trained_on.json` holds [{"from_step", "files": {name: bytes}, "dataset": digest}], an entry for
# each time that the data changed. The position in the data that a checkpoint holds is one in the data of its step.


def data_changes(workdir: pathlib.Path, step: int, data: dict) -> list[str]:
    """Returns differences between `data` and the data that the checkpoint of `step` was trained on; [] if not known.

    Args:
      data: {"files": {name: size in bytes}, "dataset": digest of the description}, as of `records.describe_files`.
    """
    entries = [entry for entry in _data_entries(workdir) if entry["from_step"] <= step]
    if not entries or step == 0:
        return []
    old, new = entries[-1]["files"], data["files"]
    changes = [f"{name} is missing" for name in sorted(old.keys() - new.keys())]
    changes += [f"{name} is new" for name in sorted(new.keys() - old.keys())]
    both = sorted(old.keys() & new.keys())
    changes += [f"{name} had {old[name]:,} bytes, has {new[name]:,}" for name in both if old[name] != new[name]]
    if not changes and entries[-1]["dataset"] != data["dataset"]:
        changes = ["its description, dataset.json, is another one"]
    return changes


def note_data(workdir: pathlib.Path, step: int, data: dict) -> None:
    """Notes what is trained on after `step`, if it is not what was trained on up to there."""
    entries = [entry for entry in _data_entries(workdir) if entry["from_step"] <= step]
    if not entries or {**entries[-1], "from_step": 0} != {**data, "from_step": 0}:
        # From the next step on: a checkpoint of this step belongs to the data before.
        entries.append({"from_step": step + 1 if step else 0, **data})
        write_whole(workdir / TRAINED_ON, json.dumps(entries, indent=1) + "\n")


def _data_entries(workdir: pathlib.Path) -> list[dict]:
    path = workdir / TRAINED_ON
    if not path.exists():
        return []
    try:
        entries = check_json(json.loads(path.read_text(encoding="utf-8")), list[dict], "what was trained on", path)
        kinds = {"from_step": int, "files": dict[str, int], "dataset": str}
        return [{name: json_field(entry, name, type_, path) for name, type_ in kinds.items()} for entry in entries]
    except (ValueError, RecursionError):
        message = f"{path} is damaged. Remove it: this start then does not check whether the data changed."
        raise UserError(message) from None


def append_metrics(workdir: pathlib.Path | RemotePath, row: dict) -> None:
    """Appends one JSON object as a line to `metrics.jsonl`; raises `UserError` if the disk is full."""
    path = workdir / "metrics.jsonl"
    with storage_errors(path):
        if isinstance(path, RemotePath):  # files of a store are written in one go
            path.write_text((path.read_text() if path.is_file() else "") + json.dumps(row) + "\n")
            return
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_metrics(workdir: pathlib.Path) -> list[dict]:
    """Returns the rows of `metrics.jsonl`; a last line that is not complete is left out, and so is a damaged one."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [_row(line) for line in lines]
    lost = [number for number, row in enumerate(rows, start=1) if row is None]
    if set(lost) - {len(lines)}:  # the last one: written when the disk was full or the run was killed
        logging.warning("%s: %d damaged lines are left out, the first is line %d.", path, len(lost), lost[0])
    return [row for row in rows if row is not None]


def _row(line: str) -> dict | None:
    """Returns what a line holds, `None` if it is not a row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


def drop_metrics(workdir: pathlib.Path, wanted: Callable[[dict], bool]) -> None:
    """Keeps the `wanted` rows of `metrics.jsonl`: what is done again after a restart must not be there twice."""
    path = workdir / "metrics.jsonl"
    if path.exists():
        text = "".join(json.dumps(row) + "\n" for row in read_metrics(workdir) if wanted(row))
        if text != path.read_text(encoding="utf-8", errors="replace"):
            write_whole(path, text)


def has_evaluation(row: dict, name: str, step: int) -> bool:
    """Whether a row of `metrics.jsonl` holds the evaluation `name` of `step`."""
    return row["step"] == step and any(key.startswith(f"{name}/") for key in row)


def flat(values: Mapping, prefix: str = "") -> dict[str, object]:
    """Returns {"x.y": value} of a tree of fields; lists as tuples."""
    fields = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            fields.update(flat(value, f"{prefix}{key}."))
        else:
            fields[prefix + key] = tuple(value) if isinstance(value, list) else value
    return fields


def _differences(before: ConfigDict, now: ConfigDict) -> list[str]:
    old, new = flat(before.to_dict()), flat(now.to_dict())
    keys = [key for key in sorted({*old, *new}) if key not in FREE_FIELDS and old.get(key) != new.get(key)]
    return [f"{key} was {brief(old.get(key))}, is {brief(new.get(key))}" for key in keys]
