"""The folder of a run: its configuration, vocabulary, metrics, checkpoints and exports."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess

from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError, load_config, save_config

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
)


def open_workdir(path: str | pathlib.Path, config: ConfigDict) -> pathlib.Path:
    """Makes a workdir for `config`, or opens one that was made for the same configuration.

    Raises `ConfigurationError` if the folder cannot be written or belongs to another configuration.
    """
    workdir = pathlib.Path(path)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigurationError(f"--workdir={workdir} is or lies below a file; name a folder.") from None
    except OSError as error:
        raise ConfigurationError(f"--workdir={workdir} cannot be made: {error.strerror}.") from None
    if not os.access(workdir, os.W_OK):
        raise ConfigurationError(f"--workdir={workdir} cannot be written; name another folder.")
    if (workdir / "config.json").exists():
        different = _differences(_flat(load_config(workdir / "config.json")), _flat(config))
        if different:
            raise ConfigurationError(
                f"{workdir} belongs to another configuration ({'; '.join(different[:5])}). Name another --workdir, or "
                "run with the configuration it was made for."
            )
    elif any(workdir.iterdir()):
        raise ConfigurationError(f"{workdir} is neither empty nor a workdir (no config.json); name another folder.")
    else:
        save_config(config, workdir / "config.json")
        (workdir / "environment.json").write_text(json.dumps(_environment(), indent=2) + "\n", encoding="utf-8")
    return workdir


def append_metrics(workdir: pathlib.Path, row: dict) -> None:
    """Appends one JSON object as a line to `metrics.jsonl`."""
    with open(workdir / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def drop_metrics_after(workdir: pathlib.Path, step: int) -> None:
    """Removes the rows of steps that are trained again because their checkpoint was not reached."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
    if len(kept) < len(lines):
        partial = path.with_suffix(".partial")
        partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        partial.replace(path)


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


def _environment() -> dict:
    """Package versions and, in a checkout, the git revision."""
    from importlib import metadata

    names = ("tensorflow", "keras", "tensorflow-text", "tensorflow-addons", "tensorflow-hub", "numpy", "mural-tf")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    root = pathlib.Path(__file__).resolve().parents[2]
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        revision = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = ""
    return {"python": platform.python_version(), "packages": versions, "revision": revision}
