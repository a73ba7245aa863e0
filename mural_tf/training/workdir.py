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
from mural_lite.files import PARTIAL, exclusive_lock, read_json, remove_partial, storage_errors, write_whole
from mural_lite.remote_folders import LOCK
from mural_tf.training.checkpoints import FOLDERS, list_checkpoints, step_of
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
    "evaluation.source_data",  # which follows from the place where the command runs
    "evaluation.split",
    "vocabulary.sha256",  # of the vocabulary as it was made; `build_tokenizer` compares it
)
# Fields that may change between two starts, with a word: how long a run is, how its work is divided, what it writes.
# The step, the weights, the optimiser's state and the place in the data stay as they are.
CHANGEABLE_FIELDS = (
    "data.max_skipped_fraction",
    "data.read",
    "train.evaluate_first",
    "train.export",
    "train.image_text_batch",
    "train.micro_batches",
    "train.steps",
    "train.text_text_batch",
)


SHOWN = 2  # fields that differ, in a message
BEFORE_TRAINING = {LOCK, "config.json", "environment.json", "vocabulary.txt"}  # the vocabulary is also next to the data


@contextlib.contextmanager
def lock_workdir(path: str | pathlib.Path) -> Iterator[None]:
    """Makes a workdir's folder and, inside, keeps other runs out; when the process dies the workdir is free again.

    Raises `UserError` if another run holds it, or the folder cannot be written.
    """
    workdir = _make_folder(pathlib.Path(path))
    _check_own(workdir)
    lock_file = workdir / LOCK
    with contextlib.ExitStack() as lock:  # held until the end, and errors of storage only while it is taken
        with storage_errors(lock_file):
            message = f"{workdir} is in use by {_holder(lock_file)}. Wait until it ends, or name another --workdir."
            lock.enter_context(exclusive_lock(lock_file, message))
            lock_file.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        yield


def _holder(lock_file: pathlib.Path) -> str:
    """Returns in words which run last took a lock, such as "another run (process 12 on host)"."""
    process = ""
    if lock_file.exists():
        process = lock_file.read_text(encoding="utf-8", errors="replace").strip()
    if not process:
        return "another run"
    return f"another run ({process})"


def open_workdir(path: str | pathlib.Path, config: ConfigDict, writes: bool = True) -> pathlib.Path:
    """Makes a workdir for `config`, or opens a workdir that was made for the same configuration; returns its path.

    A workdir in which nothing was trained yet, because the run stopped at a mistake, takes another configuration.
    Later, `CHANGEABLE_FIELDS` may change: the changes are printed, and config.json has them from then on.

    Args:
      path: the workdir's folder.
      config: the run's configuration.
      writes: False for workers other than the chief and for finished runs: nothing is written, and a workdir that is
        not there is an error.

    Raises:
      UserError: the folder cannot be written, belongs to another configuration, or has more steps than `config`.
    """
    workdir = pathlib.Path(path)
    has_config = (workdir / "config.json").exists()
    if not writes and not has_config:
        raise UserError(f"--workdir={workdir} is not the chief's: all workers must see one folder.")
    _make_folder(workdir)
    if has_config:
        _reconcile_configs(workdir, config, writes)
    else:
        _check_own(workdir)
        save_config(config, workdir / "config.json")
    if not writes:
        return workdir
    remove_partial(workdir)
    if not (workdir / "environment.json").exists():
        write_whole(workdir / "environment.json", json.dumps(environment(), indent=2) + "\n")
    _warn_of_threads(workdir)
    return workdir


def _reconcile_configs(workdir: pathlib.Path, config: ConfigDict, writes: bool) -> None:
    """Writes allowed changes in `config` to a workdir's config.json; raises `UserError` for any other change.

    A workdir in which nothing was trained takes all changes, and loses its vocabulary.
    """
    recorded = load_config(workdir / "config.json")
    changes = _differences(recorded, config)
    is_untrained = {path.name for path in workdir.iterdir()} <= BEFORE_TRAINING
    if changes and writes and is_untrained:
        (workdir / "vocabulary.txt").unlink(missing_ok=True)  # first: a kill between must not leave the other's
        save_config(config, workdir / "config.json")
        return
    refused = [change for field, change in changes.items() if not writes or field not in CHANGEABLE_FIELDS]
    if refused:
        shown = "; ".join(refused[:SHOWN])
        if len(refused) > SHOWN:
            shown += f" and {len(refused) - SHOWN} more"
        raise UserError(
            f"{workdir} belongs to another configuration ({shown}). Run with its own, "
            f"or name another --workdir; `finetune --from={workdir}` goes on from its weights."
        )
    if changes:
        _take_changes(workdir, recorded, config, changes)
    if writes:
        _write_data_folder(workdir, recorded, config)


def _take_changes(workdir: pathlib.Path, recorded: ConfigDict, config: ConfigDict, changes: dict[str, str]) -> None:
    """Writes the changed fields of `config` to the workdir's config.json, and prints them.

    Raises `UserError` for fewer steps than are trained.

    Args:
      workdir: the run's folder.
      recorded: the configuration in the workdir, which is changed.
      config: the configuration of this start.
      changes: {field: its change in words}, only of `CHANGEABLE_FIELDS`.
    """
    trained_steps = max(map(step_of, list_checkpoints(workdir / FOLDERS["latest"])), default=0)
    steps = config.train.steps
    if steps < trained_steps:
        raise UserError(
            f"train.steps={steps}: {workdir} is trained for {trained_steps} steps already. Give {trained_steps} or "
            "more, or name another --workdir."
        )
    print(f"Changed since {workdir} was last started: {'; '.join(changes.values())}.", flush=True)
    if "train.steps" in changes and _rates_follow_steps(config, recorded.train.steps):
        print(f"From step {trained_steps:,} on the learning rate follows a run of {steps:,} steps.", flush=True)
    for name in changes:
        branch, field = name.split(".")
        recorded[branch][field] = config[branch][field]
    save_config(recorded, workdir / "config.json")


def _write_data_folder(workdir: pathlib.Path, recorded: ConfigDict, config: ConfigDict) -> None:
    """Writes the data's folder and split, if they changed, to config.json, where exports and fine-tuning look."""
    has_moved = recorded.data.directory != config.data.directory
    if has_moved or recorded.evaluation.split != config.evaluation.split:
        recorded.data.directory = config.data.directory
        recorded.evaluation.split = config.evaluation.split
        save_config(recorded, workdir / "config.json")


def _rates_follow_steps(config: ConfigDict, steps_before: int) -> bool:
    """Whether learning rates before the last step are others than in a run of `steps_before` steps.

    So it is where they decay to the end, or the warm-up is not over when the shorter run ends; see `optimizers/`.
    """
    decays_to_end = not config.optimizer.decay[0]  # a rate above 0 decays by a number of steps instead
    fewer_steps = min(steps_before, config.train.steps)
    return decays_to_end or config.optimizer.warmup_steps >= fewer_steps


def _check_own(workdir: pathlib.Path) -> None:
    """Raises `UserError` for a folder with files of another origin than a run."""
    others = [path for path in workdir.iterdir() if not path.name.endswith((PARTIAL, LOCK))]
    if others and not (workdir / "config.json").exists():
        raise UserError(f"{workdir} is neither empty nor a workdir (no config.json); name another folder.")


def _make_folder(folder: pathlib.Path) -> pathlib.Path:
    """Makes a folder, if it is missing, and returns it; raises `UserError` if it cannot be written."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return folder


def _warn_of_threads(workdir: pathlib.Path) -> None:
    """Warns when a run goes on with another number of threads, among which sums are divided in another way."""
    now = threads()
    before = read_json(workdir / "environment.json").get("threads", now)
    if before != now:
        logging.warning(
            "%s was begun with %s threads and goes on with %d: from here on not bit for bit as it would have with %s.",
            workdir, before, now, before,
        )  # fmt: skip


def flat(values: Mapping, prefix: str = "") -> dict[str, object]:
    """Returns {"branch.field": value} for a tree of fields; lists become tuples, and `prefix` begins each name."""
    fields = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            fields.update(flat(value, f"{name}."))
        elif isinstance(value, list):
            fields[name] = tuple(value)
        else:
            fields[name] = value
    return fields


def _differences(before: ConfigDict, now: ConfigDict) -> dict[str, str]:
    """Returns {field: its change in words, such as "train.steps was 4, is 8"} without `FREE_FIELDS`."""
    old_values = flat(before.to_dict())
    new_values = flat(now.to_dict())
    changes = {}
    for field in sorted({*old_values, *new_values} - set(FREE_FIELDS)):
        old_value = old_values.get(field)
        new_value = new_values.get(field)
        if old_value != new_value:
            changes[field] = f"{field} was {brief(old_value)}, is {brief(new_value)}"
    return changes
