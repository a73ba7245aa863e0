"""Whole outputs as text files, tests/snapshots/NAME.txt, which a test compares with.

`WRITE_SNAPSHOTS=1 python -m pytest tests/search/test_tables.py` writes the files anew: read their `git diff`.
"""

import difflib
import os
import pathlib
import re
import tempfile

import numpy as np
import pytest

from mural_lite.errors import UserError

FOLDER = pathlib.Path(__file__).parent / "snapshots"


def assert_snapshot(name, text, **words):
    """Compares with the file; of {word: text that differs per run} the file says "{word}"."""
    for word, value in words.items():
        text = text.replace(str(value), f"{{{word}}}")
    text = "".join(f"{line.rstrip()}\n" for line in text.split("\n")).rstrip("\n") + "\n"
    for place in (os.getcwd(), tempfile.gettempdir()):
        assert f"{place}/" not in text, f"{place} is of this machine: give it a word."
    path = FOLDER / f"{name}.txt"
    if os.environ.get("WRITE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    kept = path.read_text("utf-8") if path.exists() else ""
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), str(path), "now", lineterm="", n=1)
    difference = "\n".join(lines)
    assert not difference, f"{difference}\n(WRITE_SNAPSHOTS=1 writes what is now.)"


def assert_refusals(name, calls, folder):
    """Compares with a snapshot the whole message of each call that is refused, {name: call}, in a folder of its own."""
    lines = []
    for number, (call_name, call) in enumerate(calls.items()):
        own = folder / str(number)
        own.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(own)
            try:
                call(own)
                message = "is not refused"
            except (UserError, ValueError) as error:
                message = str(error).replace(str(own), "{folder}")
        lines.append(f"{call_name}\n    {message}")
    assert_snapshot(name, "\n".join(lines))


def assert_answers(name, names):
    """Evaluates each call that a snapshot holds, with these names, and compares the indented answer below it."""
    lines = []
    for call in (FOLDER / f"{name}.txt").read_text("utf-8").split("\n"):
        if call.startswith("    "):
            continue
        lines.append(call)
        if call:
            try:
                answer = _shown(eval(call, names))
            except Exception as error:  # noqa: BLE001 - a refusal is an answer, too
                is_ours = type(error).__module__.startswith("mural")  # Python's messages change
                answer = f"{type(error).__name__}{f': {error}' if is_ours else ''}"
            lines.append(f"    {answer}")
    assert_snapshot(name, "\n".join(lines))


def _shown(value):
    """A value as text, alike on every machine: sets in order, numbers in six digits."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_shown, value)))}}}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        parts = ", ".join(map(_shown, value))
        return f"({parts})" if type(value) is tuple else f"[{parts}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_shown(key)}: {_shown(one)}' for key, one in value.items())}}}"
    if isinstance(value, np.generic):
        return _shown(value.item())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{_shown(value.tolist())}"
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))
