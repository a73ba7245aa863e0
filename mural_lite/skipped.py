"""Counts of unusable records: by problem, with the first place of each, and bounded.

Training and conversion continue after a corrupt image or an empty caption, but stop if there are too many. Their number
is compared with the estimated number of all records, because bad records come together, for example in one shard.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from mural_lite.errors import UserError
from mural_lite.printable import printable

SURELY = 1.5  # times the bound that must be exceeded before the end, since the number of all records is an estimate
_PLACE = 500  # characters of a place that are kept
DAMAGED_RECORD = "record that does not agree with its checksum"
DAMAGED_FILE = "stretch of a file that is damaged or cut off"
UNREADABLE_FILE = "file that cannot be read, or has another size than when training began"
NOT_AN_EXAMPLE = "record that is not a tf.train.Example of the expected kind"
UNREADABLE_IMAGE = "image that does not decode"
EMPTY_CAPTION = "empty caption"
EMPTY_TEXT = "empty text"
CAPTION_NOT_UTF8 = "caption that is not UTF-8"
TEXT_NOT_UTF8 = "text that is not UTF-8"
MISSING_SHARD = "file that is missing, though others of its split name it"  # training reports it when it begins
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
    """Raises `UserError` if the value of a field or flag is not a number from 0 to 1, a share."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise UserError(f"{name}={value!r}: expected a number from 0 to 1, the largest share that may be skipped.")


class CountsByKind(dict):
    """{problem: [count, place of the first]}; pickled, and written as JSON, like any dictionary."""

    def add(self, problem: str, location: str, count: int = 1) -> None:
        """Adds `count` to a problem; `location` is kept if the problem is new."""
        count_before, first = self.get(problem, (0, location))
        self[problem] = [count_before + count, first]

    def merge(self, later: CountsByKind) -> None:
        """Adds the counts of records that were read later."""
        for problem, (count, first) in later.items():
            self.add(problem, first, count)

    @property
    def total(self) -> int:
        """The count over all kinds."""
        return sum(count for count, _ in self.values())

    def described(self) -> dict[str, dict]:
        """Returns {problem: {"count": int, "first": its first place}}, for JSON."""
        return {problem: {"count": count, "first": first} for problem, (count, first) in self.items()}

    def lines(self) -> list[str]:
        """Returns "COUNT x PROBLEM, first at PLACE" per problem, the most frequent first, then by name."""
        problems = sorted(self)
        problems.sort(key=lambda problem: self[problem][0], reverse=True)  # equal counts stay in the order of names
        return [f"{self[problem][0]} x {problem}, first at {self[problem][1]}" for problem in problems]

    def are_too_many(self, read: int, max_fraction: float, done: float = 1.0) -> bool:
        """Whether more than the share `max_fraction` of all records is counted; `done`: the share that was `read`."""
        margin = SURELY if done < 1 else 1
        return self.total * done > max_fraction * read * margin  # all records are about read / done; done may be 0


def _one_line(location: str) -> str:
    """Returns the start of a location in one line: names may have line breaks, or bytes that are not text."""
    text = printable(location[:_PLACE])
    return " ".join(text.split())


@dataclasses.dataclass
class Tally:
    """Counts of the captions and pairs that were written, skipped and left out, of one block or of all."""

    THINGS: ClassVar[str] = "captions and pairs"  # the noun in messages
    FLAG: ClassVar[str] = "--max_skipped_fraction"  # the flag that sets the bound; "" where no flag does

    written: int = 0  # captions and pairs in the records
    # Unusable captions and pairs, for example with a missing image or in a broken line.
    skipped: CountsByKind = dataclasses.field(default_factory=CountsByKind)
    # Usable but unwanted captions and pairs: excluded by filters, or in other languages.
    left_out: CountsByKind = dataclasses.field(default_factory=CountsByKind)
    # (problem, place) of everything skipped, in the order of the input; only kept within a block.
    places: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.skipped = CountsByKind(self.skipped)  # from JSON it is a plain dictionary
        self.left_out = CountsByKind(self.left_out)

    def skip(self, problem: str, location: str, count: int = 1) -> None:
        """Counts something unusable: one text, or the `count` captions of one image."""
        location = _one_line(location)
        self.skipped.add(problem, location, count)
        self.places.append((problem, location))

    def leave_out(self, problem: str, location: str, count: int = 1) -> None:
        """Counts something unwanted."""
        self.left_out.add(problem, _one_line(location), count)

    def add(self, later: Tally) -> None:
        """Adds the counts of a later block."""
        self.written += later.written
        self.skipped.merge(later.skipped)
        self.left_out.merge(later.left_out)

    @property
    def read(self) -> int:
        """The number of captions and pairs that were written, skipped or left out."""
        return self.written + self.skipped.total + self.left_out.total

    def described(self) -> dict[str, dict]:
        """Returns the entries of `dataset.json`: {"skipped": {problem: {"count", "first"}}, "left_out": the same}."""
        return {"skipped": self.skipped.described(), "left_out": self.left_out.described()}

    def lines(self) -> list[str]:
        """Returns the report: a line with the numbers, and a line for each kind."""
        lines = [f"{self.read} {self.THINGS} read, {self.written} written, {self.skipped.total} skipped"]
        lines += [f"  skipped {line}" for line in self.skipped.lines()]
        return lines + [f"  left out {line}" for line in self.left_out.lines()]

    def check(self, max_fraction: float, done: float = 1.0) -> None:
        """Raises `UserError` if more than the share `max_fraction` is unusable; `done`: the share that was read."""
        if not self.skipped.are_too_many(self.read, max_fraction, done):
            return
        counts = f"{self.skipped.total} of {self.read} {self.THINGS}"
        if done < 1:
            counts += f" read so far, of about {round(self.read / done)} in all"
        bound = f"a share of {max_fraction}"
        remedy = "Repair the data."
        if self.FLAG:
            bound = f"{self.FLAG}={max_fraction}"
            remedy = "Repair the data, or raise the bound and run again: what is finished is kept."
        raise UserError(
            f"Too much is unusable: {counts} ({'; '.join(self.skipped.lines())}), more than {bound}. {remedy}"
        )
