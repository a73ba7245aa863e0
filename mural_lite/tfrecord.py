"""TFRecord files read in Python: unlike `tf.data`, it goes on after damage, and reads a record by its position.

A record is an 8-byte little-endian length and the masked CRC-32C of these bytes, 4 bytes; then the data and their
checksum. A record whose data do not agree with their checksum is lost. A damaged length costs everything up to the
next 8 bytes that agree with the checksum after them, which are taken for the next record's length.

Training reads files by the same rules inside its graph (`streams/record_files.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import IO

import google_crc32c

from mural_lite.files import open_path
from mural_lite.skipped import DAMAGED_FILE, DAMAGED_RECORD

HEADER = 12  # bytes before a record's data
FOOTER = 4  # bytes after them
FRAME = HEADER + FOOTER
WINDOW = 1 << 16  # bytes looked through at a time for the next record
CRC_MASK = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """Returns the CRC-32C of `data` as TFRecord files store it: rotated by 15 bits, plus a constant, in 32 bits."""
    crc = google_crc32c.value(data)
    rotated = (crc >> 15) | (crc << 17)
    return (rotated + CRC_MASK) & 0xFFFFFFFF


def lost_records(stated: int, lost: int, before: int, count: int) -> int:
    """Returns about how many records a damaged stretch of a file held, at least 1.

    It is 1 if at most two bits of its length flipped; otherwise the mean size of the records before is assumed.

    Args:
      stated: the length stored at its start, or -1 where the file ends before.
      lost: bytes of the stretch.
      before, count: bytes and records before it in the file.
    """
    flipped_bits = (stated ^ max(lost - FRAME, 0)).bit_count()
    is_one_record = stated >= 0 and flipped_bits <= 2
    if is_one_record or not before:
        return 1
    return max(round(lost * count / before), 1)


def read_all(
    path: str | os.PathLike,
    on_problem: Callable[[str, str, int], None],
    open_file: Callable = open,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yields (offset of the data, data) of every record that is whole.

    Args:
      path: the file.
      on_problem: called with (problem, location, number of records) for each loss.
      open_file: opens a path as `open` does, for example `tf.io.gfile.GFile` for files in stores.
      begin, end: only records that start in this range of bytes; only the lengths of records before it are read.
    """
    with open_file(str(path), "rb") as file:
        file_end = _size_of(file)
        if end is None:
            end = file_end
        position = 0
        count = 0  # records before this position
        while position < min(end, file_end):
            size = _length(file, position, file_end)
            if size is None:
                next_position = _next_header(file, position + 1, file_end)
                lost = lost_records(_stated(file, position), next_position - position, position, count)
                if position >= begin:
                    on_problem(DAMAGED_FILE, f"{path}, byte {position}", lost)
                position = next_position
                count += lost
                continue
            if position >= begin:
                data = _data(file, position, size)
                if data is not None:
                    yield position + HEADER, data
                else:
                    on_problem(DAMAGED_RECORD, f"{path}, record {count} (byte {position})", 1)
            position += FRAME + size
            count += 1


def read_at(path: str | os.PathLike, position: int) -> bytes:
    """Returns the data of the record that begins at byte `position`; raises `ValueError` if no whole record does."""
    with open_path(path) as file:
        size = _length(file, position, _size_of(file))
        if size is not None:
            data = _data(file, position, size)
            if data is not None:
                return data
    raise ValueError(f"{path} has no record at byte {position}: it changed after it was indexed, or is damaged.")


def _size_of(file: IO[bytes]) -> int:
    """Returns a file's size in bytes, and leaves the file at its end."""
    file.seek(0, os.SEEK_END)  # `seek` of TensorFlow's files does not return the position
    return file.tell()


def _read(file: IO[bytes], position: int, size: int) -> bytes:
    """Returns `size` bytes from `position` on, or fewer at the file's end."""
    file.seek(position)
    return file.read(size)


def _data(file: IO[bytes], position: int, size: int) -> bytes | None:
    """Returns the `size` bytes of the record at `position`, `None` if they do not agree with their checksum."""
    data = _read(file, position + HEADER, size)
    checksum = _read(file, position + HEADER + size, FOOTER)
    if masked_crc(data) != int.from_bytes(checksum, "little"):
        return None
    return data


def _stated(file: IO[bytes], position: int) -> int:
    """Returns the length stored at `position`, plausible or not, -1 where the file has fewer than 8 bytes left."""
    length = _read(file, position, 8)
    if len(length) < 8:
        return -1
    return int.from_bytes(length, "little")


def _length(file: IO[bytes], position: int, end: int) -> int | None:
    """Returns the size of the record at `position` in a file of `end` bytes, `None` if no record begins there."""
    header = _read(file, position, HEADER)
    if len(header) < HEADER or masked_crc(header[:8]) != int.from_bytes(header[8:], "little"):
        return None
    size = int.from_bytes(header[:8], "little")
    if position + FRAME + size > end:
        return None
    return size


def _next_header(file: IO[bytes], position: int, end: int) -> int:
    """Returns where the next record begins, from `position` on; the file's end if there is no further record."""
    while position < end:
        window = _read(file, position, WINDOW + HEADER - 1)  # so that it holds every header that begins in `WINDOW`
        for offset in range(len(window) - HEADER + 1):
            # No file has records of 2^40 bytes: where the upper bytes of a length are not 0, no checksum is needed.
            if window[offset + 5 : offset + 8] == b"\0\0\0":
                if _length(file, position + offset, end) is not None:
                    return position + offset
        position += WINDOW
    return end


def framed(data: bytes) -> bytes:
    """Returns a record as files hold it: its length, the length's checksum, `data`, their checksum."""
    length = len(data).to_bytes(8, "little")
    header = length + masked_crc(length).to_bytes(4, "little")
    footer = masked_crc(data).to_bytes(4, "little")
    return b"".join((header, data, footer))
