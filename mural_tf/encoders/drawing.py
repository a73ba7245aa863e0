"""Whether large layers draw random weights: not where a file's weights follow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_initializing = threading.local()


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Towers built inside start with zeros as weights: to draw a large table takes several times its memory."""
    _initializing.draws = False
    try:
        yield
    finally:
        _initializing.draws = True


def is_drawn() -> bool:
    """Whether large layers start with random weights: see `undrawn`."""
    return getattr(_initializing, "draws", True)
