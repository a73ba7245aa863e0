"""The folder of a run: made for one configuration, and held by one process."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
import platform
from collections.abc import Iterator, Mapping

from absl import logging
from ml_collections import ConfigDict

from mural_lite.config_file import load_config, save_config
from mural_lite.errors import UserError, brief
from mural_lite.files import (
    PARTIAL,
    exclusive_lock,
    read_json,
    remove_partial,
    storage_errors,
    write_whole,
)
from mural_lite.remote_folders import LOCK
from mural_tf.training.environment import environment, threads

# Fields that may change between two runs of the same command: they do not change the weights.
FREE_FIELDS = (
    "data.directory",
    "data.emoji",
    "train.checkpoint_every",
    "train.evaluate_every",
    "train.log_every",
    "train.steps_per_execution",
    "train.fused",
    "train.jit",
    "evaluation.split",
    "vocabulary.sha256",  # of the vocabulary as it was made; `build_tokenizer` compares it
)


SHOWN = 2  # fields that differ, in a message
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
            other = ""
            if holder.exists():
                other = holder.read_text(encoding="utf-8", errors="replace").strip()
            owner = f" ({other})" if other else ""
            busy = f"{workdir} is in use by another run{owner}. Wait until it ends, or name another --workdir."
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
            more = f" and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
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
    old = flat(before.to_dict())
    new = flat(now.to_dict())
    fields = sorted({*old, *new} - set(FREE_FIELDS))
    keys = [key for key in fields if old.get(key) != new.get(key)]
    return [f"{key} was {brief(old.get(key))}, is {brief(new.get(key))}" for key in keys]
