"""The one error for what users can correct."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in configuration, data, files or flags, a full disk or a damaged file: what its reader can correct.

    The message says what was received, what was expected and what to do; scripts print it in one line, without a
    stack trace, and end with exit code 1.
    """
