"""Files that appear whole or not at all, whenever the process is killed."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from mural_tf.config import PARTIAL


@contextlib.contextmanager
def whole(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives a temporary name that becomes `path` when the block ends without an error."""
    partial = path.with_name(f".{path.name}{PARTIAL}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def save_array(path: pathlib.Path, array: np.ndarray) -> None:
    """Writes a .npy file."""
    with whole(path) as partial, open(partial, "wb") as file:
        np.save(file, array)
