"""How a TFRecord file frames its records, for what `tf.data` does not do: find damage, and read a record by its place.

A record is an 8-byte little-endian length, 4 bytes of checksum, the data and 4 bytes of checksum. Checksums are not
looked at here: whatever reads whole files for training or evaluation does that through `tf.data`. It does not need
TensorFlow, so that commands which only look at files start fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import IO

HEADER, FOOTER = 12, 4  # bytes before and after a record's data


class CutOff(ValueError):
    """A file that ends inside a record, which begins at byte `position`."""

    def __init__(self, count: int, position: int, size: int):
        super().__init__(f"whole up to record {count} (byte {position} of {size})")
        self.position = position


def _frames(file: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Yields (offset, size) of each record's data; the file may be read in between. Raises `CutOff`."""
    end, position, count = os.fstat(file.fileno()).st_size, 0, 0
    while position < end:
        file.seek(position)
        header = file.read(HEADER)
        offset, size = position + HEADER, int.from_bytes(header[:8], "little")
        if len(header) < HEADER or offset + size + FOOTER > end:
            raise CutOff(count, position, end)
        yield offset, size
        position, count = offset + size + FOOTER, count + 1


def read_all(path: str | os.PathLike, on_problem: Callable[[str, str], None]) -> Iterator[tuple[int, bytes]]:
    """Yields (offset of the data, data) of every whole record; a file that is cut off is `on_problem(kind, place)`."""
    with open(path, "rb") as file:
        try:
            for offset, size in _frames(file):
                file.seek(offset)
                yield offset, file.read(size)
        except CutOff as cut:
            kind = "TFRecord file that is damaged or cut off: what follows is lost"
            on_problem(kind, f"{path}, byte {cut.position}")


def read_at(path: str | os.PathLike, position: int) -> bytes:
    """Returns the data of the record that begins at byte `position`; raises `ValueError` if none does."""
    with open(path, "rb") as file:
        file.seek(position)
        size = int.from_bytes(file.read(8), "little")
        if position + HEADER + size + FOOTER > os.path.getsize(path):
            raise ValueError(f"{path} has no record at byte {position}: it changed after it was indexed.")
        file.seek(position + HEADER)
        return file.read(size)


def find_damage(path: str) -> str:
    """Returns where a local file is cut off, "" if it is whole, from the lengths that its records state.

    Files elsewhere (gs://) are not looked at: their transport reports missing bytes itself.
    """
    if "://" in path:
        return ""
    with open(path, "rb") as file:
        try:
            for _ in _frames(file):
                pass
        except CutOff as cut:
            return str(cut)
    return ""
