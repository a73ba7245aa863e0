"""What does not fit into memory: hashes in place of texts, tables on disk, numbers collected on disk.

A table maps texts (addresses, captions) to values, for joins. It is an SQLite file: rows are appended and the index is
sorted afterwards, on disk, so that building takes bounded memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import shutil
import sqlite3
from collections.abc import Iterable

import numpy as np

from mural_tf.errors import UserError
from mural_tf.files import whole


def text_hash(text: str) -> int:
    """Returns 64 bits that stand for a text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def build_table(path: pathlib.Path, rows: Iterable[tuple[str, bytes]]) -> None:
    """Writes {key: values} unless the file is there already; it appears when it is complete.

    Raises:
      UserError: the disk is full.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole(path) as partial, contextlib.closing(sqlite3.connect(partial)) as database:
            database.execute("PRAGMA journal_mode=OFF")  # a table that was not finished is built again
            database.execute("PRAGMA synchronous=OFF")
            database.execute("CREATE TABLE rows (key INTEGER, value BLOB)")
            database.executemany("INSERT INTO rows VALUES (?, ?)", ((_signed(key), value) for key, value in rows))
            database.execute("CREATE INDEX by_key ON rows (key)")
            database.commit()
    except sqlite3.OperationalError as error:  # how SQLite reports a full disk
        raise UserError(f"Cannot write to {path.parent}: {error}. Free space there.") from None


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


# Numbers collected on disk by partition, so that counting over any amount of data takes bounded memory.

BUFFER = 1 << 16  # numbers kept in memory over all partitions


class Spool:
    """Rows of `width` 64-bit numbers, appended to one file per partition."""

    def __init__(self, folder: pathlib.Path, width: int = 1):
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        folder.mkdir(parents=True)
        self.folder, self.width = folder, width
        self._buffers: dict[int, list[int]] = {}
        self._buffered = 0

    def add(self, partition: int, *numbers: int) -> None:
        """Appends one row."""
        self._buffers.setdefault(partition, []).extend(map(int, numbers))
        self._buffered += self.width
        if self._buffered >= BUFFER:
            self.close()

    def add_rows(self, partitions: np.ndarray, rows: np.ndarray) -> None:
        """Appends rows, uint64 [N, width], to the partitions [N]."""
        for partition in np.unique(partitions):
            with open(self._path(int(partition)), "ab") as file:
                file.write(rows[partitions == partition].tobytes())

    def remove(self) -> None:
        """Deletes the files."""
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Writes what is buffered."""
        for partition, numbers in self._buffers.items():
            with open(self._path(partition), "ab") as file:
                file.write(np.array(numbers, np.uint64).tobytes())
        self._buffers.clear()
        self._buffered = 0

    def read(self, partition: int) -> np.ndarray:
        """Returns a partition's rows: uint64 [N] or, where rows are wider, [N, width]."""
        path = self._path(partition)
        numbers = np.fromfile(path, np.uint64) if path.exists() else np.empty(0, np.uint64)
        return numbers if self.width == 1 else numbers.reshape(-1, self.width)

    def _path(self, partition: int) -> pathlib.Path:
        return self.folder / f"{partition:05d}.uint64"


def contains(sorted_hashes: np.ndarray, value: int) -> bool:
    """Tells whether `value` is among sorted hashes, uint64 [N]."""
    index = np.searchsorted(sorted_hashes, np.uint64(value))
    return bool(index < sorted_hashes.size and int(sorted_hashes[index]) == int(value))


def contains_text(sorted_hashes: np.ndarray, text: str) -> bool:
    """Tells whether a text's hash is among sorted hashes, uint64 [N]."""
    return sorted_hashes.size > 0 and contains(sorted_hashes, text_hash(text))
