"""Whole outputs as text files, tests/snapshots/NAME.txt, which a test compares with.

`WRITE_SNAPSHOTS=1 python -m pytest tests/search/test_tables.py` writes the files anew: read their `git diff`.
"""

import difflib
import os
import pathlib

from mural_lite.errors import UserError

FOLDER = pathlib.Path(__file__).parent / "snapshots"


def assert_snapshot(name, text, **words):
    """Compares with the file; of {word: text that differs per run} the file says "{word}"."""
    for word, value in words.items():
        text = text.replace(str(value), f"{{{word}}}")
    text = "".join(f"{line.rstrip()}\n" for line in text.split("\n")).rstrip("\n") + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("WRITE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    kept = path.read_text("utf-8") if path.exists() else ""
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), str(path), "now", lineterm="", n=1)
    difference = "\n".join(lines)
    assert not difference, f"{difference}\n(WRITE_SNAPSHOTS=1 writes what is now.)"


def assert_refusals(name, calls, *arguments, **words):
    """Compares with a snapshot the whole message of each call that is refused, {name: call}."""
    lines = []
    for call_name, call in calls.items():
        try:
            call(*arguments)
            message = "is not refused"
        except UserError as error:
            message = str(error)
        lines.append(f"{call_name}\n    {message}")
    assert_snapshot(name, "\n".join(lines), **words)
