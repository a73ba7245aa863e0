"""TensorFlow's notices, which it writes past Python's `sys.stderr`, kept from the terminal where a setting does it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


def quiet_imports() -> None:
    """From now on importing TensorFlow prints no notices; from 2.20 on it prints six before it reads the setting."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what goes wrong arrives as an exception anyway


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Drops what is written to file descriptor 2: XLA's first compilation tells of itself at any level of logging."""
    sys.stderr.flush()
    with open(os.devnull, "w") as nothing:
        terminal = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
