"""What cannot be used: counted by kind, the first of each kind named, and bounded.

Training and conversion continue after a corrupt image or an empty caption, but stop if there are too many.

Training counts in the graph of its input pipeline, which knows no dictionaries: a *tally*, int64 [1 + kinds, 3], comes
with every batch and says what was read up to the batch's last item. Row 0 holds how many records were read, how many of
them were skipped, and the sum of squares of the numbers that were lost together; row 1 + k, of kind k of `KINDS`, how
many were skipped and the first one's place, the number of its file and the byte there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from absl import logging

from mural_tf.errors import UserError

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

CHECK_EVERY = 200  # records between two looks at the share of skipped ones
DEVIATIONS = 5.0  # by which the share must lie above the bound before an epoch's end; 1 look in 3 million errs


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
    """What training skipped, by part and kind, from the tallies that come with its batches.

    Args:
      places: part of the data, a stream or a source of one -> function from (file's number, byte) to the place's name.
      before: how many records earlier parts of the run skipped.
    """

    def __init__(self, places: dict[str, Callable[[int, int], str]], before: int = 0):
        self._places, self._before = places, before
        self.by_part = {part: CountsByKind() for part in places}
        self.read = dict.fromkeys(places, 0)
        self._named: set[tuple[str, str]] = set()

    def begin(self) -> None:
        """Says that tallies begin again at 0: what they counted so far stays counted."""
        self._before = self.total
        self.by_part = {part: CountsByKind() for part in self._places}

    def take(self, part: str, tallies: np.ndarray) -> None:
        """Takes a part's newest tallies, int64 [pipelines, 1 + kinds, 3]; logs the first record of each kind."""
        self.read[part], counts = int(tallies[:, 0, 0].sum()), CountsByKind()
        for tally in tallies.tolist():
            for kind, (count, file, byte) in zip(KINDS, tally[1:]):
                if count:
                    counts.add(kind, self._places[part](file, byte), count)
        for kind in sorted(counts.keys()):
            if (part, kind) not in self._named:
                self._named.add((part, kind))
                place = counts[kind][1]
                logging.warning("Skipping records: %s, first at %s. Further ones are only counted.", kind, place)
        self.by_part[part] = counts

    @property
    def total(self) -> int:
        """How many records the run skipped so far."""
        return self._before + sum(counts.total for counts in self.by_part.values())

    def stop(self, part: str, tally: np.ndarray, max_fraction: float) -> None:
        """Raises the `UserError` for a part of which one input pipeline skipped too much, by its tally."""
        self.take(part, tally[None])
        counts, read = self.by_part[part], self.read[part]
        if counts.total == read:
            raise UserError(
                f"None of the {counts.total} records read of the stream {part} can be used "
                f"({'; '.join(counts.lines())}). Repair the data."
            )
        raise UserError(
            f"Too many unusable records: {counts.total} of {read} of the stream {part} skipped "
            f"({'; '.join(counts.lines())}), more than data.max_skipped_fraction = {max_fraction}. Repair the data or "
            "raise the bound."
        )
