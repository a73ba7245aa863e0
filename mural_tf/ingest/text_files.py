"""Text files and language codes as corpora write them: lines of plain or compressed files, BCP 47 tags.

This file does not need TensorFlow: conversion and evaluation both use it. What cannot be used goes to `on_problem(kind,
place)`: by default it raises, so that a benchmark is never scored on a part of its texts; a converter passes a function
that counts.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import IO

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


def refuse(kind: str, location: str) -> None:
    """The default `on_problem`: raises `UserError`."""
    raise UserError(f"{location}: {kind}. Repair the file, or fetch it again.")


def canonical_language(code: str) -> str:
    """Returns the BCP 47 tag of a language code: `iw` → he, `jp` → ja, `deu` → de, `zh_TW` → zh-TW.

    Raises:
      UserError: no language has this code.
    """
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


@contextlib.contextmanager
def open_binary(path: str | pathlib.Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Opens a plain, .gz, .bz2 or .xz file as (content, file itself), whose `tell` says how much of it was read.

    Raises:
      UserError: the file cannot be opened.
    """
    path = pathlib.Path(path)
    try:
        file = open(path, "rb")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    with file:
        yield _DECOMPRESSORS.get(path.suffix, lambda plain: plain)(file), file


def read_lines(
    path: str | pathlib.Path, on_problem: Problem = refuse, on_position: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str | None]]:
    """Yields (line number, text) of a text file, plain or compressed, in constant memory.

    A line ends with \\n or \\r\\n and nothing else (U+2028 and U+0085 occur inside sentences); the last one may lack
    its end. A line that is not UTF-8 is a problem and comes as `None`, so that files read side by side stay in step.
    `on_position` is called from time to time with how many bytes of the file were read.
    """
    number = 0
    with open_binary(path) as (content, file):
        try:
            for number, line in enumerate(content, start=1):
                if on_position and number % 1000 == 0:
                    on_position(file.tell())
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                try:
                    text = line.rstrip(b"\n").removesuffix(b"\r").decode("utf-8")
                except UnicodeDecodeError:
                    text = None
                    on_problem("text that is not UTF-8", f"{path}:{number}")
                yield number, text
        except (EOFError, OSError, zlib.error, lzma.LZMAError):
            on_problem("file that is damaged or cut off: what follows is lost", f"{path}:{number + 1}")
