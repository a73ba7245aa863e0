"""Text files and language codes as corpora write them: lines of plain or compressed files, JSON, BCP 47 tags.

This file does not need TensorFlow: conversion and evaluation both use it. What cannot be used goes to `on_problem(kind,
place)`: by default it raises, so that a benchmark is never scored on a part of its texts; a converter passes a function
that counts.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import io
import json
import lzma
import os
import pathlib
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from mural_lite.errors import UserError
from mural_lite.files import as_path

Problem = Callable[[str, str], None]

# What corpora write where BCP 47 has a two-letter code: XTD's `jp`, and individual languages of ISO 639-3 that are
# what the two-letter code of their macrolanguage means in practice (Tatoeba, NLLB).
_ALIASES = {
    "jp": "ja", "cmn": "zh", "arb": "ar", "pes": "fa", "swh": "sw", "zsm": "ms", "lvs": "lv", "ekk": "et",
    "khk": "mn", "ydd": "yi", "uzn": "uz", "azj": "az", "plt": "mg", "ory": "or", "npi": "ne", "kmr": "ku",
}  # fmt: skip
_DECOMPRESSORS = {".gz": lambda file: gzip.GzipFile(fileobj=file), ".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LONGEST_LINE = 2**24  # bytes; a longer one is passed over without being held in memory
TOO_LONG = f"line of more than {LONGEST_LINE:,} bytes"
_CHUNK = 2**16  # bytes that are read at a time
_SKIPPED = 2**20  # the same, of lines that are only counted
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)  # what reading a damaged file raises


def refuse_failure(error: BaseException, path: object) -> None:
    """Raises `UserError` for a disk, a store, permissions or descriptors that fail: another run may read the file.

    A reader's error on damaged content has no number, or the number of an impossible place in the file.
    """
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL, errno.EOVERFLOW):
        reason = error.strerror or error
        raise UserError(
            f"Cannot read {path}: {reason}. What is finished is kept: run again when it can be read."
        ) from None


class Part(NamedTuple):
    """A stretch of a file, in bytes of its content when it is unpacked: the lines that begin in it.

    Attributes:
      begin: the first byte.
      end: the one behind the last; `None` for the file's end.
    """

    begin: int = 0
    end: int | None = None


WHOLE = Part()


def refuse(problem: str, location: str) -> None:
    """The default `on_problem`: raises `UserError`."""
    raise UserError(f"{location}: {problem}. Repair the file, or fetch it again.")


_LONGEST_TAG = 100  # characters


def canonical_language(code: str) -> str:
    """Returns the BCP 47 tag of a language code: `iw` → he, `jp` → ja, `deu` → de, `zh_TW` → zh-TW.

    Raises:
      UserError: no language has this code.
    """
    if not isinstance(code, str) or len(code) > _LONGEST_TAG:
        raise UserError(
            f"Unknown language {str(code)[:_LONGEST_TAG]!r}: expected a code like en, pt-BR, zh-Hant or deu."
        )
    import langcodes  # a tenth of the imports of a query on the command line

    tag = _ALIASES.get(code.strip().lower(), code.strip())
    try:
        if langcodes.tag_is_valid(tag):
            tag = langcodes.standardize_tag(tag)
            return _ALIASES.get(tag, tag)
    except langcodes.tag_parser.LanguageTagError:
        pass
    raise UserError(f"Unknown language {code!r}: expected a code like en, pt-BR, zh-Hant or deu.")


def clean(text: str | None) -> str:
    """Returns the text in one line, with single spaces; files hold line breaks inside captions."""
    return " ".join((text or "").split())


def is_text(value: Any) -> bool:
    """Whether something that was parsed is a string that UTF-8 can hold.

    JSON and tables may hold numbers where a caption is expected, or halves of surrogate pairs.
    """
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Returns a JSON object; raises `ValueError` for anything else, also for one nested too deeply to be read."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("JSON that is not an object")
    return value


@contextlib.contextmanager
def open_binary(path: str | pathlib.Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Opens a plain, .gz, .bz2 or .xz file as (content, file itself), whose `tell` says how much of it was read.

    Raises:
      UserError: the file cannot be opened, or is a pipe or the like.
    """
    path = as_path(path)
    try:
        if isinstance(path, pathlib.Path):
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe would wait for its other end
                raise UserError(f"Cannot read {path}: it is not a regular file.")
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}.") from None
    with file:
        yield _DECOMPRESSORS.get(path.suffix, lambda plain: plain)(file), file


class _Unbuffered(io.RawIOBase):
    """What is read from a compressed file, piece by piece: what comes before damage is not lost."""

    def __init__(self, content: IO[bytes]):
        self._content = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        read = self._content.read1 if hasattr(self._content, "read1") else self._content.read  # of stores' files
        piece = read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def bounded_lines(content: IO[bytes], part: Part = WHOLE) -> Iterator[bytes | None]:
    """Yields lines with their ends, `None` for one of more than `LONGEST_LINE` bytes, in bounded memory.

    Args:
      content: a file from its beginning, or, for a part, what `skip_to` returned.
      part: only lines that begin before its end.
    """
    content, position = buffered(content), part.begin
    while (part.end is None or position < part.end) and (line := content.readline(LONGEST_LINE + 1)):
        position += len(line)
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = content.readline(LONGEST_LINE)
            position += len(line)
        yield None


def buffered(content: IO[bytes]) -> io.BufferedReader:
    """Returns a file that can be looked into; of a compressed file, the content before damage is not lost."""
    return content if isinstance(content, io.BufferedReader) else io.BufferedReader(_Unbuffered(content), _CHUNK)


def skip_to(content: io.BufferedReader, part: Part) -> tuple[int, Part]:
    """Reads on to the first line that begins in a part of the file, counting lines, which takes a fraction of the time
    of using them.

    Returns:
      How many lines were passed over, and the part with the exact beginning of its first line.
    """
    passed, position, last = 0, 0, b"\n"
    while part.begin - 1 > position and (chunk := content.read(min(_SKIPPED, part.begin - 1 - position))):
        passed, position, last = passed + chunk.count(b"\n"), position + len(chunk), chunk[-1:]
    while position < part.begin or last != b"\n":  # the byte before the part ends a line, or that line is passed, too
        line = content.readline(LONGEST_LINE)
        if not line:
            return passed + (last != b"\n"), Part(position, part.end)
        passed, position, last = passed + line.endswith(b"\n"), position + len(line), line[-1:]
    return passed, Part(position, part.end)


def skip_lines(content: io.BufferedReader, count: int) -> int:
    """Reads on behind `count` lines; returns how many of them the file does not have."""
    last = b"\n"
    while count and (chunk := content.peek(_CHUNK)):
        lines = chunk.count(b"\n")
        if lines < count:
            last = content.read(len(chunk))[-1:]
            count -= lines
            continue
        end = -1
        for _ in range(count):
            end = chunk.index(b"\n", end + 1)
        content.read(end + 1)
        return 0
    return max(0, count - (last != b"\n"))


def decode(data: bytes) -> str:
    """Decodes UTF-8; raises `UnicodeDecodeError`, also for a null character.

    No text has one, but a block of a file that was never written consists of them: all lines there are one line then.
    """
    if b"\0" in data:
        index = data.index(b"\0")
        raise UnicodeDecodeError("utf-8", data, index, index + 1, "null character")
    return data.decode("utf-8")


def read_lines(
    path: str | pathlib.Path, on_problem: Problem = refuse, part: Part = WHOLE
) -> Iterator[tuple[int, str | None]]:
    """Yields (line number, text) of a text file, plain or compressed, in constant memory.

    A line ends with \\n or \\r\\n and nothing else (U+2028 and U+0085 occur inside sentences); the last one may lack
    its end. A line that is not UTF-8, or too long, is a problem and comes as `None`, so that files read side by side
    stay in step.
    With a part, only lines that begin in it; what is damaged before it is the problem of another part.
    """
    number, content_of_part = 0, part.begin == 0
    with open_binary(path) as (content, _):
        content = buffered(content)
        try:
            passed, part = skip_to(content, part)
            content_of_part = True
            for number, line in enumerate(bounded_lines(content, part), start=passed + 1):
                if line is None:
                    on_problem(TOO_LONG, f"{path}:{number}")
                    yield number, None
                    continue
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                try:
                    text = decode(line.rstrip(b"\n").removesuffix(b"\r"))
                except UnicodeDecodeError:
                    text = None
                    problem = "text with a null character" if b"\0" in line else "text that is not UTF-8"
                    on_problem(problem, f"{path}:{number}")
                yield number, text
        except DAMAGED as error:
            refuse_failure(error, path)
            if content_of_part:
                on_problem("file that is damaged or cut off: what follows is lost", f"{path}:{number + 1}")


class Unit(NamedTuple):
    """What one worker reads at a time: a file, or a part of one.

    Attributes:
      path: of the file.
      number: of the part, from 0.
      parts: of the file.
      size: bytes of the part, as stored.
      weight: bytes that its records will have, about.
    """

    path: str
    number: int
    parts: int
    size: int
    weight: int

    def part(self, content: int) -> Part:
        """Returns the stretch of a file that unpacks to about `content` bytes; its last part ends where the file ends.

        Lines that begin in it are the part's.
        """
        begin, end = (content * i // self.parts for i in (self.number, self.number + 1))
        return Part(begin, None if self.number + 1 == self.parts else end)

    def share(self, count: int) -> range:
        """Returns the part's numbers of `count` things."""
        return range(count * self.number // self.parts, count * (self.number + 1) // self.parts)


# Into how many parts a file is cut at most: each reads what is before it, too, though it only counts lines there. What
# is packed densely takes as long to unpack as to use.
MOST_PARTS = {"": 256, ".gz": 64, ".zip": 64, ".bz2": 1, ".xz": 1}
_UNPACKED = {".gz": 4, ".zip": 4, ".bz2": 5, ".xz": 5}  # times as large as the file, about, for text


def unpacked_size(path: pathlib.Path) -> int:
    """Returns about how many bytes a text file unpacks to; the exact number where it is not packed."""
    return path.stat().st_size * _UNPACKED.get(path.suffix, 1)


def cut(path: pathlib.Path, weight: int, unit_bytes: int, most: int | None = None) -> list[Unit]:
    """Returns a file's units.

    Args:
      path: the file.
      weight: bytes of its records, about.
      unit_bytes: of records that a unit should have.
      most: units; by default what the file's ending allows.
    """
    most = MOST_PARTS.get(path.suffix, MOST_PARTS[""]) if most is None else most
    parts, size = max(1, min(most, -(-weight // max(1, unit_bytes)))), path.stat().st_size if path.is_file() else 0
    return [Unit(str(path), number, parts, size // parts, weight // parts) for number in range(parts)]
