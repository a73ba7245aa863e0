"""A table on disk, from texts (addresses, captions) to values, for joins that do not fit into memory.

SQLite: rows are appended and the index is sorted afterwards, on disk, so that building takes bounded memory.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
from collections.abc import Iterable

from mural_tf.config import PARTIAL, ConfigurationError
from mural_tf.data.convert.hashing import text_hash


def build_table(path: pathlib.Path, rows: Iterable[tuple[str, bytes]]) -> None:
    """Writes {key: values} unless the file is there already; it appears when it is complete.

    Raises:
      ConfigurationError: the disk is full.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + PARTIAL)
    temporary.unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(temporary)) as database:
            database.execute("PRAGMA journal_mode=OFF")  # a table that was not finished is built again
            database.execute("PRAGMA synchronous=OFF")
            database.execute("CREATE TABLE rows (key INTEGER, value BLOB)")
            database.executemany("INSERT INTO rows VALUES (?, ?)", ((_signed(key), value) for key, value in rows))
            database.execute("CREATE INDEX by_key ON rows (key)")
            database.commit()
    except sqlite3.OperationalError as error:  # how SQLite reports a full disk
        raise ConfigurationError(f"Cannot write to {path.parent}: {error}. Free space there.") from None
    os.replace(temporary, path)


class DiskTable:
    """Looks up what `build_table` wrote. Opens its file on first use, so that it can travel to other processes."""

    def __init__(self, path: pathlib.Path):
        self.path, self._database = path, None

    def __getstate__(self):
        return {"path": self.path, "_database": None}

    def get(self, key: str) -> list[bytes]:
        """Returns the values of a key, in the order they were written."""
        if self._database is None:
            self._database = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        rows = self._database.execute("SELECT value FROM rows WHERE key = ? ORDER BY rowid", (_signed(key),))
        return [value for (value,) in rows]


def _signed(key: str) -> int:
    """SQLite's integers are signed."""
    value = text_hash(key)
    return value - (1 << 64) if value >= 1 << 63 else value
