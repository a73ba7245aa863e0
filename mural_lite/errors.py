"""The one error for mistakes that users can correct, and the words that messages share."""

from __future__ import annotations

import re


class UserError(ValueError):
    """What a user can correct: a mistake in configuration, data, files or flags, a full disk or a damaged file.

    The message says what was received, what was expected and what to do; scripts print it in one line, without a
    stack trace, and end with exit code 1.
    """


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of TensorFlow's says that the memory of a device is full."""
    message = getattr(error, "message", "")
    if type(error).__name__ == "ResourceExhaustedError":
        return "No space left" not in message  # which is of a disk
    return re.search("out.of.memory", message, re.IGNORECASE) is not None  # CUDA reports it as an internal error


def brief(value: object, most: int = 60) -> str:
    """Returns a value's `repr` for messages, cut after `most` characters."""
    text = repr(value)
    if len(text) <= most:
        return text
    return f"{text[:most]}…"


def install_extra(name: str) -> str:
    """Returns the command that installs an extra, "hub", of this package, which is in no package index."""
    return f"pip install -e '.[{name}]' in a checkout of this package"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the name of its class if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
