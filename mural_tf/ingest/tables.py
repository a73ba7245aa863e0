"""Short stand-ins for texts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import sqlite3
from collections.abc import Iterable, Sequence

import numpy as np

from mural_tf.errors import UserError
from mural_tf.files import PARTIAL


def text_hash(text: str) -> int:
    """Returns 64 bits that stand for a text, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


# A table on disk, from texts (addresses, captions) to values, for joins that do not fit into memory.
#
# SQLite: rows are appended and the index is sorted afterwards, on disk, so that building takes bounded memory.


def build_table(path: pathlib.Path, rows: Iterable[tuple[str, bytes]]) -> None:
    """Writes {key: values} unless the file is there already; it appears when it is complete.

    Raises:
      UserError: the disk is full.
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
        raise UserError(f"Cannot write to {path.parent}: {error}. Free space there.") from None
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


# Divides each language's pairs into train, dev and test by a salted hash of the image.
#
# The order of images is that of their hashes, the same in all languages. A language's test set is the images with the
# lowest hashes, its dev set those with the highest, so that languages that share images mostly agree on where these go.


TEST, DEV = "test", "dev"


class HeldOut:
    """Which images are held out: sorted hashes per language and split."""

    def __init__(self, salt: str, everywhere: bool, splits: dict[str, dict[str, np.ndarray]]):
        self.salt, self.everywhere, self.splits = salt, everywhere, splits
        none = [np.empty(0, np.uint64)]
        self.images = np.unique(np.concatenate(none + [a for s in splits.values() for a in s.values()]))

    def split_of(self, language: str, image_id: str) -> str:
        """Returns train, dev or test; "" if the image is held out in another language only."""
        value = image_hash(self.salt, image_id)
        for split, hashes in self.splits.get(language, {}).items():
            if _contains(hashes, value):
                return split
        return "" if self.everywhere and _contains(self.images, value) else "train"


def image_hash(salt: str, image_id: str) -> np.uint64:
    """Returns the hash that places an image."""
    return np.uint64(text_hash(f"{salt}\t{image_id}"))


def hold_out(
    rows: Iterable[tuple[str, str]],
    folder: pathlib.Path,
    salt: str,
    sizes: Sequence[int],
    fraction: float,
    everywhere: bool,
) -> HeldOut:
    """Chooses the images that are held out, or reads a choice made before.

    Memory is bounded by the largest language: 8 bytes a pair.

    Args:
      rows: (language, image id) of every pair.
      folder: keeps hashes and choice.
      salt: of the hash.
      sizes: of dev and of test in pairs, largest first; a language gets the first of which both together are at most
        `fraction` of its pairs, or else the last, shrunk to that fraction.
      fraction: see sizes.
      everywhere: no image of a test set is in another language's dev set or training data, and so on.
    """
    chosen = folder / "chosen.json"
    if not chosen.exists():
        spool = Spool(folder / "hashes")
        names: dict[str, int] = {}
        for language, image_id in rows:
            spool.add(names.setdefault(language, len(names)), image_hash(salt, image_id))
        spool.close()
        splits = _choose({name: spool.read(number) for name, number in names.items()}, sizes, fraction, everywhere)
        content = {name: {s: [int(h) for h in a] for s, a in by_split.items()} for name, by_split in splits.items()}
        temporary = chosen.with_name(chosen.name + PARTIAL)
        temporary.write_text(json.dumps(content), encoding="utf-8")
        os.replace(temporary, chosen)
    content = json.loads(chosen.read_text(encoding="utf-8"))
    splits = {name: {s: np.array(h, np.uint64) for s, h in by_split.items()} for name, by_split in content.items()}
    return HeldOut(salt, everywhere, splits)


def _choose(hashes: dict[str, np.ndarray], sizes, fraction: float, everywhere: bool) -> dict:
    nothing = np.empty(0, np.uint64)
    splits: dict[str, dict[str, np.ndarray]] = {language: {} for language in sorted(hashes)}
    taken = {TEST: nothing, DEV: nothing}
    for split, other, from_top in ((TEST, DEV, False), (DEV, TEST, True)):
        for language, by_split in splits.items():
            images, counts = np.unique(hashes[language], return_counts=True)
            size = _size(int(counts.sum()), sizes, fraction)
            free = np.isin(images, taken[other] if everywhere else by_split.get(other, nothing), invert=True)
            by_split[split] = _first_pairs(images[free], counts[free], size, from_top)
        taken[split] = np.unique(np.concatenate([by_split[split] for by_split in splits.values()]))
    return splits


def _size(pairs: int, sizes: Sequence[int], fraction: float) -> int:
    for size in sizes:
        if 2 * size <= fraction * pairs:
            return size
    return int(fraction * pairs / 2)


def _first_pairs(images: np.ndarray, counts: np.ndarray, size: int, from_top: bool) -> np.ndarray:
    """Takes images in order while their pairs fit into `size`; one with too many pairs is passed over."""
    order = range(len(images) - 1, -1, -1) if from_top else range(len(images))
    found, total = [], 0
    for index in order:
        if total == size:
            break
        if total + counts[index] <= size:
            found.append(images[index])
            total += counts[index]
    return np.array(sorted(found), np.uint64)


def _contains(sorted_hashes: np.ndarray, value: np.uint64) -> bool:
    index = np.searchsorted(sorted_hashes, value)
    return bool(index < sorted_hashes.size and sorted_hashes[index] == value)
