"""Text files and language codes as corpora write them: lines of plain or compressed files, JSON, BCP 47 tags.

Unusable lines go to `on_problem(problem, location)`: by default it raises, so that a benchmark is never scored on a
part of its texts; a converter passes a function that counts.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import functools
import gzip
import io
import json
import lzma
import math
import os
import pathlib
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from mural_lite.errors import UserError
from mural_lite.files import as_path

Problem = Callable[..., None]  # called with (problem, place), and with the number of records if it is not 1

# Codes in corpora for which BCP 47 has a two-letter code: XTD's `jp`, and individual languages of ISO 639-3 that the
# two-letter code of their macrolanguage means in practice (Tatoeba, NLLB).
_ALIASES = {
    "jp": "ja", "cmn": "zh", "arb": "ar", "pes": "fa", "swh": "sw", "zsm": "ms", "lvs": "lv", "ekk": "et",
    "khk": "mn", "ydd": "yi", "uzn": "uz", "azj": "az", "plt": "mg", "ory": "or", "npi": "ne", "kmr": "ku",
}  # fmt: skip
_DECOMPRESSORS = {".bz2": bz2.BZ2File, ".xz": lzma.LZMAFile}
_DECOMPRESSORS |= dict.fromkeys((".gz", ".tgz"), lambda file: gzip.GzipFile(fileobj=file))
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

LONGEST_LINE = 2**24  # bytes; a longer line is skipped without being held in memory
TOO_LONG = f"line of more than {LONGEST_LINE:,} bytes"
_CHUNK = 2**16  # bytes that are read at a time
_COUNTED_CHUNK = 2**20  # the same, for lines that are only counted
_LONGEST_TAG = 100  # characters of a language code
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)  # raised while a damaged file is read


def refuse_failure(error: BaseException, path: object) -> None:
    """Raises `UserError` for an error of the disk, store or permissions; returns for an error of damaged content.

    A reader's error on damaged content has no errno, or the errno of an impossible position in the file.
    """
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL, errno.EOVERFLOW):
        reason = error.strerror or error
        raise UserError(
            f"Cannot read {path}: {reason}. What is finished is kept: run again when it can be read."
        ) from None


class Part(NamedTuple):
    """The lines of a file that start in a range of bytes of its unpacked content."""

    begin: int = 0  # the first byte
    end: int | None = None  # the first byte after the range; `None`: the file's end


ALL_LINES = Part()


def refuse(problem: str, location: str) -> None:
    """Raises `UserError` for a problem and its place; the default `on_problem`."""
    raise UserError(f"{location}: {problem}. Repair the file, or fetch it again.")


def canonical_language(code: str) -> str:
    """Returns the BCP 47 tag of a language code: `iw` → he, `jp` → ja, `deu` → de, `zh_TW` → zh-TW.

    Raises `UserError` if no language has this code.
    """
    import langcodes  # a tenth of the imports of a query on the command line

    if isinstance(code, str) and len(code) <= _LONGEST_TAG:
        tag = _ALIASES.get(code.strip().lower(), code.strip())
        with contextlib.suppress(langcodes.tag_parser.LanguageTagError):
            if langcodes.tag_is_valid(tag):
                tag = langcodes.standardize_tag(tag)
                return _ALIASES.get(tag, tag)
    raise UserError(f"Unknown language {str(code)[:_LONGEST_TAG]!r}: expected a code like en, pt-BR, zh-Hant or deu.")


def known_language(code: Any) -> str:
    """Returns `canonical_language` of a code, "" for any other value; fast enough for a call per record."""
    if not isinstance(code, str) or len(code) > _LONGEST_TAG:
        return ""
    return _known_language(code)


@functools.lru_cache(maxsize=4096)
def _known_language(code: str) -> str:
    """Returns `canonical_language` of a code, "" for an unknown code."""
    try:
        return canonical_language(code)
    except UserError:
        return ""


def clean(text: str | None) -> str:
    """Returns a text in one line, with single spaces, "" for None; captions in files may have line breaks."""
    return " ".join((text or "").split())


def is_text(value: Any) -> bool:
    """Whether a value of JSON is a string that UTF-8 can hold; JSON may hold numbers, or halves of surrogate pairs."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Returns the JSON object in a text; raises `ValueError` for anything else, also for JSON nested too deeply."""
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError("JSON that is not an object")
    return parsed


@contextlib.contextmanager
def open_binary(path: str | pathlib.Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Gives (content, file): the unpacked content of a plain, .gz, .bz2 or .xz file, and the file as it is stored.

    `file.tell()` says how many stored bytes were read. Raises `UserError` if the file cannot be opened, or is a pipe.
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
    decompress = _DECOMPRESSORS.get(path.suffix)
    with file:
        content = decompress(file) if decompress else file
        yield content, file


class _Unbuffered(io.RawIOBase):
    """A file for `io.BufferedReader`, read piece by piece, so that no content before damage is lost."""

    def __init__(self, content: IO[bytes]):
        self._content = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        """Fills the start of a buffer, and returns the number of bytes; 0 at the file's end."""
        if hasattr(self._content, "read1"):  # which returns the bytes before damage
            piece = self._content.read1(len(buffer))
        else:  # a file in a store
            piece = self._content.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def bounded_lines(content: IO[bytes], part: Part = ALL_LINES) -> Iterator[bytes | None]:
    """Yields lines with their ends, `None` for a line of more than `LONGEST_LINE` bytes, in bounded memory.

    Only lines that start before the end of `part` are yielded; `content` is at its start.
    """
    content = buffered(content)
    position = part.begin
    while part.end is None or position < part.end:
        line = content.readline(LONGEST_LINE + 1)
        if not line:
            return
        position += len(line)
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):  # the rest of a long line
            line = content.readline(LONGEST_LINE)
            position += len(line)
        yield None


def buffered(content: IO[bytes]) -> io.BufferedReader:
    """Returns a file as a `BufferedReader`, which reads all content of a compressed file before damage."""
    if isinstance(content, io.BufferedReader):
        return content
    return io.BufferedReader(_Unbuffered(content), _CHUNK)


def skip_to(content: io.BufferedReader, part: Part) -> tuple[int, Part]:
    """Reads a file from its beginning to the first line that starts in `part`.

    Returns (number of lines before, the part with the exact start of its first line). These lines are only counted,
    which is fast.
    """
    skipped = 0
    position = 0
    is_at_line_start = True
    while position < part.begin or not is_at_line_start:
        # In large blocks up to the last byte before the part, then on to the end of this byte's line: the line starts
        # before the part, so another unit reads it. Where that byte ends its line, the part's first line follows.
        bytes_before = part.begin - 1 - position
        if bytes_before > 0:
            block = content.read(min(_COUNTED_CHUNK, bytes_before))
        else:
            block = content.readline(LONGEST_LINE)
        if not block and not is_at_line_start:
            skipped += 1  # the last line of a file, which may have no end
        if not block:
            break
        skipped += block.count(b"\n")
        position += len(block)
        is_at_line_start = block.endswith(b"\n")
    return skipped, Part(position, part.end)


def decode(data: bytes) -> str:
    """Returns the text of bytes in UTF-8; raises `UnicodeDecodeError`, also for a null character.

    No text has null characters, but a block of a file that was never written consists of them, without line ends.
    """
    if b"\0" in data:
        index = data.index(b"\0")
        raise UnicodeDecodeError("utf-8", data, index, index + 1, "null character")
    return data.decode("utf-8")


def read_lines(
    path: str | pathlib.Path, on_problem: Problem = refuse, part: Part = ALL_LINES
) -> Iterator[tuple[int, str | None]]:
    """Yields (line number from 1, text) for the lines of a text file, plain or compressed, in constant memory.

    A line ends with \\n or \\r\\n and nothing else (U+2028 and U+0085 occur inside sentences); the end of the last
    line may be missing. A line that is not UTF-8, or too long, is a problem and comes as `None`, so that files that are
    read side by side stay in step. Only lines that start in `part` come; another part reports damage before it.
    """
    number = 0
    is_in_part = part.begin == 0
    with open_binary(path) as (content, _):
        content = buffered(content)
        try:
            skipped, part = skip_to(content, part)
            is_in_part = True
            for number, line in enumerate(bounded_lines(content, part), start=skipped + 1):
                text, problem = _decode_line(line, number)
                if problem:
                    on_problem(problem, f"{path}:{number}")
                yield number, text
        except DAMAGED as error:
            refuse_failure(error, path)
            if is_in_part:
                on_problem("file that is damaged or cut off: what follows is lost", f"{path}:{number + 1}")


def _decode_line(line: bytes | None, number: int) -> tuple[str | None, str]:
    """Returns (text, "") of a line of `bounded_lines`, or (None, problem)."""
    if line is None:
        return None, TOO_LONG
    if number == 1:
        line = line.removeprefix(_BYTE_ORDER_MARK)
    try:
        return decode(line.rstrip(b"\n").removesuffix(b"\r")), ""
    except UnicodeDecodeError:
        if b"\0" in line:
            return None, "text with a null character"
        return None, "text that is not UTF-8"


class Unit(NamedTuple):
    """A file, or a part of a file, that one worker reads at a time."""

    path: str
    number: int  # the part's number, from 0
    parts: int  # number of parts of the file
    size: int  # bytes of the part, as stored
    weight: int  # about how many bytes its records will have

    def part(self, content: int) -> Part:
        """Returns this unit's bytes of a file that unpacks to about `content` bytes; the last unit has no end."""
        share = self.share(content)
        if self.number + 1 == self.parts:
            return Part(share.start, None)
        return Part(share.start, share.stop)

    def share(self, count: int) -> range:
        """Returns this unit's share of the numbers from 0 to `count`, of equal size for all units of the file."""
        return range(count * self.number // self.parts, count * (self.number + 1) // self.parts)


# The most parts of a file: each part reads the parts before it, too, though it only counts lines there. Dense
# compression takes as long to unpack as its lines take to use.
MOST_PARTS = {"": 256, ".gz": 64, ".zip": 64, ".bz2": 1, ".xz": 1}
_UNPACKED = {".gz": 4, ".zip": 4, ".bz2": 5, ".xz": 5}  # about how many times as large as the file, for text


def unpacked_size(path: pathlib.Path) -> int:
    """Returns about how many bytes a text file unpacks to; the exact number for a plain file."""
    return path.stat().st_size * _UNPACKED.get(path.suffix, 1)


def cut(path: pathlib.Path, weight: int, unit_bytes: int, most: int | None = None) -> list[Unit]:
    """Returns a file's units, in the order of their parts.

    Args:
      path: the file.
      weight: about how many bytes its records will have.
      unit_bytes: bytes of records that a unit should have.
      most: the most units; by default as many as the file's ending allows (`MOST_PARTS`).
    """
    if most is None:
        most = MOST_PARTS.get(path.suffix, MOST_PARTS[""])
    needed = math.ceil(weight / max(1, unit_bytes))
    parts = max(1, min(most, needed))
    size = 0
    if path.is_file():
        size = path.stat().st_size
    return [Unit(str(path), number, parts, size // parts, weight // parts) for number in range(parts)]
