"""Files that appear whole or not at all, locks between processes, and storage that fails.

Whatever is killed in the middle of writing leaves the file that was there before, or none, and at most a file with a
name that ends in `PARTIAL`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

import numpy as np
from absl import logging

from mural_tf.errors import UserError

PARTIAL = ".partial"  # ends the names of files that are still being written


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


def write_whole(path: str | pathlib.Path, text: str) -> None:
    """Writes a text file, UTF-8, that keeps what it held or holds all of `text`, whenever the process is killed."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def save_array(path: str | pathlib.Path, array: np.ndarray) -> None:
    """Writes a .npy file whole."""
    with whole(path) as partial, open(partial, "wb") as file:
        np.save(file, array)


@contextlib.contextmanager
def exclusive_lock(path: pathlib.Path) -> Iterator[None]:
    """Holds `path` against other processes, waiting for whoever has it; a process that dies lets go."""
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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
