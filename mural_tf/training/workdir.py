"""The folder of a run: its configuration, vocabulary, metrics, checkpoints and exports."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata

from ml_collections import ConfigDict

from mural_tf.config import load_config, save_config
from mural_tf.errors import UserError
from mural_tf.files import PARTIAL, remove_partial, write_whole

# Fields that may change between two runs of the same command: they do not change what is learned.
FREE_FIELDS = (
    "data.directory",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.evaluate_every",
    "train.log_every",
    "train.steps_per_execution",
    "evaluation.batch_size",
    "evaluation.split",
    "vocabulary.sha256",  # what the vocabulary is, not which was asked for; `build_tokenizer` compares it
)


BEFORE_TRAINING = {"config.json", "environment.json", "vocabulary.txt"}  # the vocabulary is cached beside the data too


def open_workdir(path: str | pathlib.Path, config: ConfigDict, writes: bool = True) -> pathlib.Path:
    """Makes a workdir for `config`, or opens one that was made for the same configuration.

    One in which nothing was trained yet, because the run stopped at a mistake, takes another configuration.
    With `writes` False, for workers other than the chief, a workdir that is not there is an error.

    Raises `UserError` if the folder cannot be written or belongs to another configuration.
    """
    workdir = pathlib.Path(path)
    if not writes and not (workdir / "config.json").exists():
        raise UserError(f"--workdir={workdir} is not the chief's: all workers must see one folder.")
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--workdir={workdir} is or lies below a file; name a folder.") from None
    except OSError as error:
        raise UserError(f"--workdir={workdir} cannot be made: {error.strerror}.") from None
    if not os.access(workdir, os.W_OK):
        raise UserError(f"--workdir={workdir} cannot be written; name another folder.")
    if (workdir / "config.json").exists():
        different = _differences(_flat(load_config(workdir / "config.json")), _flat(config))
        if different and writes and {path.name for path in workdir.iterdir()} <= BEFORE_TRAINING:
            save_config(config, workdir / "config.json")
            (workdir / "vocabulary.txt").unlink(missing_ok=True)
        elif different:
            raise UserError(
                f"{workdir} belongs to another configuration ({'; '.join(different[:5])}). Name another --workdir, or "
                "run with the configuration it was made for."
            )
    elif any(path for path in workdir.iterdir() if not path.name.endswith(PARTIAL)):
        raise UserError(f"{workdir} is neither empty nor a workdir (no config.json); name another folder.")
    else:
        save_config(config, workdir / "config.json")
    if not writes:
        return workdir
    remove_partial(workdir)
    if not (workdir / "environment.json").exists():
        write_whole(workdir / "environment.json", json.dumps(_environment(), indent=2) + "\n")
    return workdir


def append_metrics(workdir: pathlib.Path, row: dict) -> None:
    """Appends one JSON object as a line to `metrics.jsonl`; raises `UserError` if the disk is full."""
    path = workdir / "metrics.jsonl"
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise UserError(
            f"Cannot write {path}: {error.strerror}. Free some space and run the same command again."
        ) from None


def read_metrics(workdir: pathlib.Path) -> list[dict]:
    """Returns the rows of `metrics.jsonl`; a last line that is not complete is left out."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # written when the disk was full or the run was killed
            continue
    return rows


def drop_metrics(workdir: pathlib.Path, wanted: Callable[[dict], bool]) -> None:
    """Keeps the `wanted` rows of `metrics.jsonl`: what is done again after a restart must not be there twice."""
    path = workdir / "metrics.jsonl"
    if path.exists():
        text = "".join(json.dumps(row) + "\n" for row in read_metrics(workdir) if wanted(row))
        if text != path.read_text(encoding="utf-8", errors="replace"):
            write_whole(path, text)


def has_evaluation(row: dict, name: str, step: int) -> bool:
    """Tells whether a row of `metrics.jsonl` holds the evaluation `name` of `step`."""
    return row["step"] == step and any(key.startswith(f"{name}/") for key in row)


def _flat(config: ConfigDict, prefix: str = "") -> dict:
    values = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict):
            values.update(_flat(value, f"{prefix}{key}."))
        else:
            values[prefix + key] = tuple(value) if isinstance(value, (list, tuple)) else value
    return values


def _differences(old: dict, new: dict) -> list[str]:
    keys = [key for key in sorted({*old, *new}) if key not in FREE_FIELDS and old.get(key) != new.get(key)]
    return [f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in keys]


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Returns name -> version, or "not installed"."""
    installed = {}
    for name in names:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return installed


def _environment() -> dict:
    """Package versions and, in a checkout, the git revision."""
    names = ("tensorflow", "keras", "tensorflow-text", "tensorflow-addons", "tensorflow-hub", "numpy", "mural-tf")
    versions = package_versions(names)
    root = pathlib.Path(__file__).resolve().parents[2]
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        revision = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = ""
    return {"python": platform.python_version(), "packages": versions, "revision": revision}
