"""What cannot be used: counted by kind, the first of each kind named, and bounded.

Training and conversion continue after a corrupt image or an empty caption, but stop if there are too many.

Skipped records are compared with all records: bad records come together, in one shard or at a file's beginning, so
their share of the records read so far says nothing. Bytes, known beforehand, give the number of all.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mural_lite.errors import UserError
from mural_lite.printable import printable

SURELY = 1.5  # before the end, so much more than the bound must be skipped: how many there are in all is estimated
_PLACE = 500  # characters of a place that are kept
DAMAGED_RECORD = "record that does not agree with its checksum"
DAMAGED_FILE = "stretch of a file that is damaged or cut off"
UNREADABLE_FILE = "file that cannot be read, or has another size than when training began"
NOT_AN_EXAMPLE = "record that is not a tf.train.Example of the expected kind"
UNREADABLE_IMAGE = "image that does not decode"
EMPTY_CAPTION, EMPTY_TEXT = "empty caption", "empty text"
CAPTION_NOT_UTF8, TEXT_NOT_UTF8 = "caption that is not UTF-8", "text that is not UTF-8"
MISSING_SHARD = "file that is missing, though others of its split name it"  # training says it when it begins
KINDS = (
    DAMAGED_RECORD,
    DAMAGED_FILE,
    UNREADABLE_FILE,
    NOT_AN_EXAMPLE,
    UNREADABLE_IMAGE,
    EMPTY_CAPTION,
    CAPTION_NOT_UTF8,
    EMPTY_TEXT,
    TEXT_NOT_UTF8,
)  # of training


def check_fraction(value: float, name: str) -> None:
    """Raises `UserError` for a bound, `name`, that would bound nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise UserError(f"{name}={value!r}: expected a number from 0 to 1, the largest share that may be skipped.")


class CountsByKind(dict):
    """{problem: [count, place of the first]}; pickled, and written as JSON, like any dictionary."""

    def add(self, problem: str, location: str, count: int = 1) -> None:
        """Counts; `location` is kept for the first of its kind."""
        self.setdefault(problem, [0, location])[0] += count

    def merge(self, later: CountsByKind) -> None:
        """Adds the counts of records that were read later."""
        for problem, (count, first) in later.items():
            self.add(problem, first, count)

    @property
    def total(self) -> int:
        """The count over all kinds."""
        return sum(count for count, _ in self.values())

    def lines(self) -> list[str]:
        """One line for each kind, the most frequent first."""
        largest_first = sorted(self.items(), key=lambda item: (-item[1][0], item[0]))
        return [f"{count} x {problem}, first at {first}" for problem, (count, first) in largest_first]

    def are_too_many(self, read: int, max_fraction: float, done: float = 1.0) -> bool:
        """Whether more than `max_fraction` of all is counted, of which the share `done` was `read`."""
        return done * self.total > max_fraction * read * (SURELY if done < 1 else 1)


def _one_line(location: str) -> str:
    """What a report can hold: names of files and images may have line breaks, or bytes that are not text."""
    return " ".join(printable(location[:_PLACE]).split())


@dataclasses.dataclass
class Tally:
    """What became of the captions and pairs of one block, or of all.

    Attributes:
      written: captions and pairs in the records.
      skipped: what is unusable: missing images, broken lines.
      left_out: what is usable but not wanted: filters, languages not asked for.
      places: (problem, place) of everything skipped, in the order of the input; only kept within a block.
      THINGS: what is counted, in words.
    """

    THINGS: ClassVar[str] = "captions and pairs"
    FLAG: ClassVar[str] = "--max_skipped_fraction"  # that sets the bound; "" where no flag does

    written: int = 0
    skipped: CountsByKind = dataclasses.field(default_factory=CountsByKind)
    left_out: CountsByKind = dataclasses.field(default_factory=CountsByKind)
    places: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.skipped, self.left_out = CountsByKind(self.skipped), CountsByKind(self.left_out)  # JSON's are plain

    def skip(self, problem: str, location: str, count: int = 1) -> None:
        """Counts something unusable: one text, or the `count` captions of one image."""
        location = _one_line(location)
        self.skipped.add(problem, location, count)
        self.places.append((problem, location))

    def leave_out(self, problem: str, location: str, count: int = 1) -> None:
        """Counts what is not wanted."""
        self.left_out.add(problem, _one_line(location), count)

    def add(self, later: Tally) -> None:
        """Adds the counts of a later block."""
        self.written += later.written
        self.skipped.merge(later.skipped)
        self.left_out.merge(later.left_out)

    @property
    def read(self) -> int:
        """How much was looked at: all that was written, skipped or left out."""
        return self.written + self.skipped.total + self.left_out.total

    def described(self) -> dict[str, dict]:
        """What a description says of it: {"skipped": {problem: {"count", "first"}}, "left_out": the same}."""
        counts = {"skipped": self.skipped, "left_out": self.left_out}
        return {
            name: {problem: {"count": count, "first": first} for problem, (count, first) in by_kind.items()}
            for name, by_kind in counts.items()
        }

    def lines(self) -> list[str]:
        """The report, one line for each kind."""
        lines = [f"{self.read} {self.THINGS} read, {self.written} written, {self.skipped.total} skipped"]
        lines += [f"  skipped {line}" for line in self.skipped.lines()]
        return lines + [f"  left out {line}" for line in self.left_out.lines()]

    def check(self, max_fraction: float, done: float = 1.0) -> None:
        """Raises `UserError` if more than `max_fraction` of all is unusable, of which the share `done` was read."""
        if self.skipped.are_too_many(self.read, max_fraction, done):
            so_far = f" read so far, of about {round(self.read / done)} in all" if done < 1 else ""
            bound, or_else = (f"{self.FLAG}=", ", or raise the bound and run again: what is finished is kept")
            if not self.FLAG:
                bound, or_else = "a share of ", ""
            raise UserError(
                f"Too much is unusable: {self.skipped.total} of {self.read} {self.THINGS}{so_far} "
                f"({'; '.join(self.skipped.lines())}), more than {bound}{max_fraction}. Repair the data{or_else}."
            )
