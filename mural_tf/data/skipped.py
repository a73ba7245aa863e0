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
NOT_AN_EXAMPLE = "record that is not a tf.train.Example of the expected kind"
UNREADABLE_IMAGE = "image that does not decode"
EMPTY_CAPTION, EMPTY_TEXT = "empty caption", "empty text"
CAPTION_NOT_UTF8, TEXT_NOT_UTF8 = "caption that is not UTF-8", "text that is not UTF-8"
MISSING_SHARD = "file that is missing, though others of its split name it"  # training says it when it begins
KINDS = (
    DAMAGED_RECORD,
    DAMAGED_FILE,
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
    """What training skipped, by stream and kind, from the tallies that come with its batches.

    Args:
      places: stream -> function from (number of the file, byte) to the place's name.
      before: how many records earlier parts of the run skipped.
    """

    def __init__(self, places: dict[str, Callable[[int, int], str]], before: int = 0):
        self._places, self._before = places, before
        self.by_stream = {stream: CountsByKind() for stream in places}
        self.read = dict.fromkeys(places, 0)

    def take(self, stream: str, tally: np.ndarray) -> None:
        """Takes a stream's newest tally; logs the first skipped record of each kind."""
        self.read[stream], counts = int(tally[0, 0]), CountsByKind()
        for kind, (count, file, byte) in zip(KINDS, tally[1:].tolist()):
            if count:
                counts.add(kind, self._places[stream](file, byte), count)
        for kind in counts.keys() - self.by_stream[stream].keys():
            place = counts[kind][1]
            logging.warning("Skipping records: %s, first at %s. Further ones are only counted.", kind, place)
        self.by_stream[stream] = counts

    @property
    def total(self) -> int:
        """How many records the run skipped so far."""
        return self._before + sum(counts.total for counts in self.by_stream.values())

    def stop(self, stream: str, tally: np.ndarray, max_fraction: float) -> None:
        """Raises the `UserError` for a stream whose tally `are_too_many` says to end training."""
        self.take(stream, tally)
        counts = self.by_stream[stream]
        if counts.total == self.read[stream]:
            raise UserError(
                f"None of the {counts.total} records read of the stream {stream} can be used "
                f"({'; '.join(counts.lines())}). Repair the data."
            )
        raise UserError(
            f"Too many unusable records: {counts.total} of {self.read[stream]} of the stream {stream} skipped "
            f"({'; '.join(counts.lines())}), more than data.max_skipped_fraction = {max_fraction}. Repair the data or "
            "raise the bound."
        )
