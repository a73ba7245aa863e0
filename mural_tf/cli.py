"""What every script shares: parse absl flags, run `main`, and tell the user's mistakes from the program's.

    from mural_tf import cli

    if __name__ == "__main__":
        cli.run(main)

This module imports no TensorFlow, and scripts import it inside `main` only, so that `--help` stays fast.
"""

from __future__ import annotations

import logging as python_logging
import os
import sys
from collections.abc import Callable, Sequence

from absl import app, logging

from mural_tf.errors import UserError

INTERRUPTED = 130  # what shells report for Ctrl-C: 128 + SIGINT


def run(main: Callable[[Sequence[str]], int | None], positional: bool = False) -> None:
    """Parses the flags, calls `main(argv)` and exits with what it returns (None is 0); never returns.

    With `positional`, `argv[1:]` holds the arguments that are no flags; otherwise there may be none.

    A `UserError`, a full disk, a missing permission or any other failed file operation becomes one line on
    stderr and exit code 1; `--verbosity=1` shows the stack trace as well. Any other exception is a bug and keeps its
    stack trace. Bad flags end with absl's own message and exit code 1.
    """
    # Both are read by TensorFlow's C++ side at its import. At level 2 every start would print three harmless lines
    # about CUDA plugins; what goes wrong arrives as an exception anyway. oneDNN's kernels are faster on processors
    # without AVX512-VNNI as well, where TensorFlow leaves them off: the figures are in docs/training.md.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

    def guarded(argv: Sequence[str]) -> int | None:
        # TensorFlow warns in a hundred lines where a checkpoint does not fit; the one error says it.
        python_logging.getLogger("tensorflow").setLevel(python_logging.ERROR)
        if len(argv) > 1 and not positional:
            raise UserError(f"Unexpected argument {argv[1]!r}: this script takes --flag=value only.")
        return main(argv)

    try:
        app.run(guarded, flags_parser=_parse_flags)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Interrupted.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - everything that is not the user's mistake is raised again
        message = _one_line(error)
        if message is None:
            raise
        logging.debug("The error below was raised here:", exc_info=True)
        print(f"Error: {message}", file=sys.stderr)
        sys.exit(1)


def _parse_flags(arguments: Sequence[str]) -> list[str]:
    """Parses as absl does, but an unknown `--config.x` is a message; ml_collections lets it escape as an exception."""
    try:
        return app.parse_flags_with_usage(list(arguments))
    except (AttributeError, KeyError, TypeError) as error:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        if "ml_collections" not in last.tb_frame.f_code.co_filename:
            raise  # a mistake inside the configuration file: its stack trace says where
        reason = str(error).strip("'\"").replace("\\n", " ").replace("\\'", "'")
        raise UserError(f"Unknown configuration key in the --config flags: {reason}") from error


def _one_line(error: Exception) -> str | None:
    """Returns what to tell the user, or None if `error` is not a user's mistake."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        name = f": {os.fspath(error.filename)!r}" if error.filename is not None else ""
        return f"{error.strerror}{name}. Check the path, its permissions and the free space on its disk."
    if isinstance(error, OSError) and "Configuration is not available" in str(error):  # from ml_collections
        return f"The --config file could not be loaded: {str(error).splitlines()[-1].strip()}"
    tensorflow = sys.modules.get("tensorflow")  # TensorFlow reports failed file operations by classes of its own
    if tensorflow is not None and isinstance(error, tensorflow.errors.OpError):
        full = isinstance(error, tensorflow.errors.ResourceExhaustedError) and "No space left" in error.message
        if full or isinstance(error, tensorflow.errors.PermissionDeniedError):
            return f"{' '.join(error.message.split())}. Check the path, its permissions and the free space on its disk."
    return None
