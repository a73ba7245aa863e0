"""Text pairs in a table: one pair a line, columns set apart by tabs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import ClassVar

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.source import PAIR, Pair, Reading, Source, language_tag
from mural_tf.data.convert.tally import Tally
from mural_tf.data.text_files import clean, read_lines


@dataclasses.dataclass
class PairsTsv(Source):
    """`pairs:mined.tsv.gz,language_a=en,language_b=de`; .gz, .bz2 and .xz too. Quotation marks mean nothing.

    Attributes:
      text_a, text_b: numbers of the columns of the texts, from 0.
      language_a, language_b: of the texts; or the columns that hold it, as "column 2".
      header: whether the first line names the columns.
      split: which the pairs go to.
    """

    KIND: ClassVar[str] = "pairs"
    ITEM: ClassVar[str] = PAIR
    text_a: int = 0
    text_b: int = 1
    language_a: str = "en"
    language_b: str = ""
    header: bool = False
    split: str = "train"

    def prepare(self, folder, progress) -> None:
        """Checks the languages before anything is read."""
        del folder, progress
        for language in (self.language_a, self.language_b):
            if _column(language) is None:
                language_tag(language)

    def read(self, reading: Reading) -> Iterator[tuple[str, str]]:
        """Yields (line, place)."""
        for path in self.files():
            for number, line in read_lines(path, reading.problem, reading.at):
                if line is not None and not (self.header and number == 1):
                    yield line, f"{path}:{number}"
            reading.file_done(path)

    def records(self, item: tuple[str, str], tally: Tally) -> Iterable[Pair]:
        """Yields the line's pair."""
        line, place = item
        fields = line.split("\t")
        needed = [self.text_a, self.text_b]
        needed += [c for c in (_column(self.language_a), _column(self.language_b)) if c is not None]
        if max(needed) >= len(fields):
            tally.skip("row with the wrong number of columns", place)
            return
        text_a, text_b = clean(fields[self.text_a]), clean(fields[self.text_b])
        if not text_a or not text_b:
            tally.skip("empty text", place)
            return
        try:
            languages = [_language(language, fields) for language in (self.language_a, self.language_b)]
        except ConfigurationError:
            tally.skip("unknown language", place)
            return
        yield Pair(text_a, languages[0], text_b, languages[1], "", place, self.split)


def _column(language: str) -> int | None:
    """The number in "column 2", `None` for a language code."""
    name, _, number = language.partition(" ")
    return int(number) if name == "column" and number.isdigit() else None


def _language(language: str, fields: list[str]) -> str:
    column = _column(language)
    return language_tag(language if column is None else fields[column])
