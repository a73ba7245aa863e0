"""What a command shows while its user waits: a line before long work, and bars.

Everything goes to stderr; stdout is for results. A program that calls the library from Python hears nothing, and its
user sees bars as tqdm draws them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, TextIO

EVERY = 15.0  # seconds between two lines of a bar that is not at a terminal
_commands = 0  # how many commands run in this process


@contextlib.contextmanager
def announcing() -> Iterator[None]:
    """Lets `announce` print in the block, in all threads; a command's run is such a block."""
    global _commands
    _commands += 1
    try:
        yield
    finally:
        _commands -= 1


def announce(line: str) -> None:
    """Prints a line, such as "Loading my_export …", on stderr if a command runs, and nothing in a user's program."""
    if _commands:
        print(line, file=sys.stderr, flush=True)


class _Lines:
    """A stream for a bar in a log file: each state of the bar becomes a line, because a file cannot be drawn over."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        if text.strip():
            self._stream.write(f"{text.strip()}\n")

    def flush(self) -> None:
        self._stream.flush()


def __getattr__(name: str) -> Any:
    """Returns `progress.tqdm`, which is made at its first use, so that commands without a bar start faster."""
    if name != "tqdm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    bar_class = _bar_class()
    globals()["tqdm"] = bar_class  # later uses find it and do not come here
    return bar_class


def _bar_class() -> type:
    """Returns tqdm's class, with a line every `EVERY` seconds where a command does not run at a terminal."""
    import tqdm as original

    class tqdm(original.tqdm):  # noqa: N801 - the name that everybody knows
        def __init__(self, *arguments: object, **options: object):
            if _commands and not sys.stderr.isatty():
                options.update(file=_Lines(sys.stderr), mininterval=EVERY, maxinterval=EVERY)
            super().__init__(*arguments, **options)

    return tqdm
