"""Text files and language codes as corpora write them: lines of plain or compressed files, JSON, BCP 47 tags.

This file does not need TensorFlow: conversion and evaluation both use it. What cannot be used goes to `on_problem(kind,
place)`: by default it raises, so that a benchmark is never scored on a part of its texts; a converter passes a function
that counts.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import pathlib
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import langcodes

from mural_tf.errors import UserError

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


def refuse(kind: str, location: str) -> None:
    """The default `on_problem`: raises `UserError`."""
    raise UserError(f"{location}: {kind}. Repair the file, or fetch it again.")


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
    """Tells whether something that was parsed is a string that UTF-8 can hold.

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
    """Returns a JSON object; raises `ValueError` for anything else, also for what is nested too deeply to be read."""
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
    path = pathlib.Path(path)
    try:
        kind = os.stat(path).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # a pipe would wait for its other end
            raise UserError(f"Cannot read {path}: it is not a regular file.")
        file = open(path, "rb")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    with file:
        yield _DECOMPRESSORS.get(path.suffix, lambda plain: plain)(file), file


class _Unbuffered(io.RawIOBase):
    """What is read from a compressed file, piece by piece: what comes before damage is not lost."""

    def __init__(self, content: IO[bytes]):
        self._content = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        piece = self._content.read1(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def bounded_lines(content: IO[bytes]) -> Iterator[bytes | None]:
    """Yields lines with their ends, `None` for one of more than `LONGEST_LINE` bytes, in bounded memory."""
    content = content if isinstance(content, io.BufferedReader) else io.BufferedReader(_Unbuffered(content), _CHUNK)
    while line := content.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = content.readline(LONGEST_LINE)
        yield None


def decode(data: bytes) -> str:
    """Decodes UTF-8; raises `UnicodeDecodeError`, also for a null character.

    No text has one, but a block of a file that was never written consists of them: all lines there are one line then.
    """
    if b"\0" in data:
        place = data.index(b"\0")
        raise UnicodeDecodeError("utf-8", data, place, place + 1, "null character")
    return data.decode("utf-8")


def read_lines(
    path: str | pathlib.Path, on_problem: Problem = refuse, on_position: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str | None]]:
    """Yields (line number, text) of a text file, plain or compressed, in constant memory.

    A line ends with \\n or \\r\\n and nothing else (U+2028 and U+0085 occur inside sentences); the last one may lack
    its end. A line that is not UTF-8, or too long, is a problem and comes as `None`, so that files read side by side
    stay in step.
    `on_position` is called from time to time with how many bytes of the file were read.
    """
    number = 0
    with open_binary(path) as (content, file):
        try:
            for number, line in enumerate(bounded_lines(content), start=1):
                if on_position and number % 1000 == 0:
                    on_position(file.tell())
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
                    on_problem("text that is not UTF-8", f"{path}:{number}")
                yield number, text
        except (EOFError, OSError, zlib.error, lzma.LZMAError):
            on_problem("file that is damaged or cut off: what follows is lost", f"{path}:{number + 1}")
