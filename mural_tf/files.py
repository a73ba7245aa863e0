"""Files and folders that appear whole or not at all, JSON, locks between processes, and storage that fails.

A process that is killed while it writes leaves what was there before, or nothing, and at most something hidden beside
it with a name that ends in `PARTIAL`. Files are left to `remove_partial`, because each process has its own name for
them; a folder has one writer at a time, and the next one removes what the last one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
from collections.abc import Iterator

import numpy as np
from absl import logging

from mural_tf.errors import UserError

PARTIAL = ".partial"  # ends the names of what is still being written


@contextlib.contextmanager
def whole(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives a temporary name beside `path` that becomes `path` when the block ends without an error."""
    path = pathlib.Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives an empty hidden folder beside `path`, for one process at a time, that is removed when the block ends."""
    path = pathlib.Path(path)
    folder = path.with_name(f".{path.name}{PARTIAL}")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def whole_folder(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives a scratch folder that becomes `path`, in place of what is there, when the block ends without an error."""
    path = pathlib.Path(path)
    with contextlib.ExitStack() as scratch:
        partial = scratch.enter_context(scratch_folder(path))
        yield partial
        if path.exists():  # folders that hold something are not replaced by renaming
            os.replace(path, scratch.enter_context(scratch_folder(path.with_name(f"{path.name}.replaced"))))
        os.replace(partial, path)


def remove_partial(folder: pathlib.Path) -> None:
    """Removes the files that killed processes left in or below `folder`, into which no other process may write."""
    for path in folder.rglob(f"*{PARTIAL}"):
        if path.is_file():
            path.unlink()


def write_whole(path: str | pathlib.Path, text: str) -> None:
    """Writes a text file, UTF-8, that keeps what it held or holds all of `text`, whenever the process is killed."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_json(path: str | pathlib.Path) -> dict:
    """Reads a JSON object; raises `UserError` if the file is missing or not one."""
    try:
        value = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise UserError(f"{path} is not valid JSON: it is nested too deeply.") from None
    except ValueError as error:  # also what is not UTF-8
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}: expected a JSON object.")
    return value


def save_array(path: str | pathlib.Path, array: np.ndarray) -> None:
    """Writes a .npy file whole."""
    with whole(path) as partial, open(partial, "wb") as file:
        np.save(file, array)


@contextlib.contextmanager
def exclusive_lock(path: pathlib.Path, busy: str = "") -> Iterator[None]:
    """Holds `path` against other processes; a process that dies lets go.

    Waits for whoever has it, or raises `UserError` with the message `busy` if there is one.
    """
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if busy:
                raise UserError(busy) from None
            logging.warning("Waiting for another process that writes to %s.", path.parent)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def storage_errors(path: pathlib.Path) -> Iterator[None]:
    """Turns a full disk, a missing permission and the like into one `UserError` that names `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"Cannot write to {path}: {reason}. Check the path, its permissions and the free space, then run again."
        ) from error
