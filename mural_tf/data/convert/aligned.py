"""What sources of line-aligned texts share: two files read side by side, line i with line i."""

from __future__ import annotations

import itertools
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, ClassVar, NamedTuple

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.source import PAIR, Pair, Reading, Source
from mural_tf.data.convert.tally import Tally
from mural_tf.data.text_files import canonical_language, clean

_NOTHING = object()


class LinePair(NamedTuple):
    """Two aligned lines, still as bytes: decoding them is the workers' part."""

    line_a: bytes
    language_a: str
    line_b: bytes
    language_b: str
    score: bytes | None
    place: str
    split: str


class AlignedSource(Source):
    """Turns aligned lines into pairs; families that are options of it give `read`."""

    ITEM: ClassVar[str] = PAIR
    min_score = 0.0

    def records(self, item: LinePair, tally: Tally) -> Iterable[Pair]:
        """Yields the pair, unless a side is empty or no text, or its score too low."""
        try:
            text_a, text_b = clean(item.line_a.decode("utf-8")), clean(item.line_b.decode("utf-8"))
        except UnicodeDecodeError:
            tally.skip("text that is not UTF-8", item.place)
            return
        if not text_a or not text_b:
            tally.skip("empty text", item.place)
        elif item.score is not None and not _is_number(item.score):
            tally.skip("score that is no number", item.place)
        elif item.score is not None and float(item.score) < self.min_score:
            tally.leave_out("score below min_score", item.place)
        else:
            yield Pair(text_a, item.language_a, text_b, item.language_b, "", item.place, item.split)


def read_aligned_lines(
    names: tuple[str, str],
    files: tuple[IO[bytes], IO[bytes]],
    languages: tuple[str, str],
    reading: Reading,
    scores: IO[bytes] | None = None,
    split: str = "train",
) -> Iterator[LinePair]:
    """Yields line i of one file with line i of the other (and line i of `scores`), in constant memory.

    A line ends with \\n alone: U+2028, U+0085 and lone carriage returns occur inside sentences. Where one file ends
    before the other, the rest is a problem: nothing says which lines are missing.
    """
    number = 0
    parts = [files[0], files[1]] + ([scores] if scores is not None else [])
    try:
        for number, lines in enumerate(itertools.zip_longest(*parts, fillvalue=_NOTHING), start=1):
            if _NOTHING in lines:
                shorter = [*names, "the scores"][lines.index(_NOTHING)]
                reading.problem("aligned file with fewer lines than its partner", f"{shorter}:{number}")
                return
            if number == 1:
                lines = [line.removeprefix(b"\xef\xbb\xbf") for line in lines]
            score = lines[2] if scores is not None else None
            yield LinePair(lines[0], languages[0], lines[1], languages[1], score, f"{names[0]}:{number}", split)
    except (EOFError, OSError, zlib.error, zipfile.BadZipFile):
        reading.problem("file that is damaged or cut off: what follows is lost", f"{names[0]}:{number + 1}")


def wanted_languages(codes: tuple[str, str], wanted: tuple[str, ...], place: str, reading: Reading):
    """Returns the pair's language tags, or `None` (told to `reading`) if one is unknown or not asked for."""
    try:
        languages = tuple(canonical_language(code) for code in codes)
    except ConfigurationError:
        reading.problem(f"unknown language in {'-'.join(codes)}", place)
        return None
    if wanted and not set(languages) <= {canonical_language(code) for code in wanted}:
        reading.tally.leave_out("file in languages not asked for", place)
        return None
    return languages


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
