"""What cannot be used: counted by kind, the first of each kind named, and bounded.

Training and conversion continue after a corrupt image or an empty caption, but stop if there are too many.
"""

from __future__ import annotations

import threading

from absl import logging

from mural_tf.errors import UserError


class CountsByKind(dict):
    """{kind: [count, place of the first]}; pickled, and written as JSON, like any dictionary."""

    def add(self, kind: str, place: str, count: int = 1) -> None:
        """Counts; `place` is kept for the first of its kind."""
        self.setdefault(kind, [0, place])[0] += count

    def merge(self, later: CountsByKind) -> None:
        """Adds the counts of what was read later."""
        for kind, (count, place) in later.items():
            self.add(kind, place, count)

    @property
    def total(self) -> int:
        """The count over all kinds."""
        return sum(count for count, _ in self.values())

    def lines(self) -> list[str]:
        """One line for each kind, the most frequent first."""
        largest_first = sorted(self.items(), key=lambda item: (-item[1][0], item[0]))
        return [f"{count} x {kind}, first at {place}" for kind, (count, place) in largest_first]

    def are_too_many(self, read: int, max_fraction: float, minimum: int) -> bool:
        """Tells whether more than `max_fraction` of at least `minimum` that were `read` were counted."""
        return read >= minimum and self.total > max_fraction * read


class SkippedRecords:
    """Counts of training records, filled by the input pipeline's threads.

    Args:
      max_fraction: of all records read; above it `check` raises.
      minimum: how many records must have been read before the fraction counts.
    """

    def __init__(self, max_fraction: float, minimum: int = 200):
        self.max_fraction, self.minimum = max_fraction, minimum
        self.kinds = CountsByKind()
        self._verdict = ""
        self._lock = threading.Lock()

    def add(self, kind: str, example: str, count: int = 1) -> None:
        """Counts skipped records; logs the first of each kind with an example."""
        with self._lock:
            if kind not in self.kinds:
                logging.warning("Skipping records: %s, first at %s. Further ones are only counted.", kind, example)
            self.kinds.add(kind, example, count)

    @property
    def counts(self) -> dict[str, int]:
        """How many records of each kind were skipped."""
        return {kind: count for kind, (count, _) in self.kinds.items()}

    @property
    def total(self) -> int:
        """How many records were skipped."""
        return self.kinds.total

    def exceeded(self, read: int, at_end: bool = False) -> bool:
        """Tells whether too many of the `read` records were skipped."""
        with self._lock:
            if not self._verdict and self.kinds.are_too_many(read, self.max_fraction, 0 if at_end else self.minimum):
                self._verdict = self.report(read)
            return bool(self._verdict)

    def report(self, read: int | None = None) -> str:
        """Returns one line with all counts."""
        kinds = "; ".join(self.kinds.lines()) or "none"
        return f"{self.total}{f' of {read}' if read else ''} records skipped ({kinds})"

    def check(self) -> None:
        """Raises `UserError` if the share of skipped records went above the bound."""
        if self._verdict:
            raise UserError(
                f"Too many unusable records: {self._verdict}, more than data.max_skipped_fraction = "
                f"{self.max_fraction}. Repair the data or raise the bound."
            )
