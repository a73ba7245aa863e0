"""Records that training skipped, by part of the data and kind of problem.

Training counts in the graph of its input pipeline, which knows no dictionaries: a *tally*, int64 [1 + kinds, 3], comes
with every batch and counts everything up to the batch's last item. Row 0 holds how many records were read, how many of
them were skipped, and about how many an epoch has. Row 1 + k counts kind k of `KINDS`: how many records were
skipped, and the place of the first one, the number of its file and the byte there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from absl import logging

from mural_lite.errors import UserError
from mural_lite.skipped import KINDS, CountsByKind


class SkippedRecords:
    """The records that training skipped, by part and kind, from the tallies that come with its batches.

    A part is a stream, or a stream's source: "image_text", "image_text/flickr".

    Args:
      locations: {part: function from (file's number, byte) to the name of that place}.
      before: how many records the run skipped before these tallies began.

    Attributes:
      by_part: {part: `CountsByKind` of its records that the newest tallies counted}.
      read: {part: how many of its records were read}.
    """

    def __init__(self, locations: dict[str, Callable[[int, int], str]], before: int = 0):
        self._locations = locations
        self._before = before
        self.by_part = {part: CountsByKind() for part in locations}
        self.read = dict.fromkeys(locations, 0)
        self._logged: set[tuple[str, str]] = set()  # (part, kind)

    def begin(self) -> None:
        """Clears `by_part`, for tallies that begin again at 0; records that were counted so far stay in `total`."""
        self._before = self.total
        self.by_part = {part: CountsByKind() for part in self._locations}

    def add_tallies(self, part: str, tallies: np.ndarray) -> None:
        """Replaces a part's counts by its newest tallies, and logs the first record of each kind that is new.

        `tallies` are int64 [pipelines, 1 + kinds, 3], as the module describes them.
        """
        self.read[part] = int(tallies[:, 0, 0].sum())  # of all pipelines
        counts = CountsByKind()
        for tally in tallies.tolist():
            for problem, (count, file, byte) in zip(KINDS, tally[1:]):
                if count:
                    counts.add(problem, self._locations[part](file, byte), count)
        for problem in sorted(counts.keys()):
            if (part, problem) not in self._logged:
                self._logged.add((part, problem))
                _, first = counts[problem]
                logging.warning("Skipping records: %s, first at %s. Further records are only counted.", problem, first)
        self.by_part[part] = counts

    @property
    def total(self) -> int:
        """The number of records that the run skipped so far."""
        return self._before + sum(counts.total for counts in self.by_part.values())

    def stop(self, part: str, tally: np.ndarray, max_fraction: float) -> None:
        """Adds the tally of an input pipeline that skipped too many records, and raises `UserError` to end the run.

        Args:
          part: the part of the data.
          tally: the pipeline's tally, int64 [1 + kinds, 3].
          max_fraction: `data.max_skipped_fraction`, in [0, 1].
        """
        self.add_tallies(part, tally[None])  # of a single pipeline
        counts = self.by_part[part]
        read = self.read[part]
        if counts.total == read:
            raise UserError(
                f"None of the {counts.total} records read of the stream {part} can be used "
                f"({'; '.join(counts.lines())}). Repair the data."
            )
        raise UserError(
            f"Too many unusable records: {counts.total} of {read} of the stream {part} skipped "
            f"({'; '.join(counts.lines())}), more than data.max_skipped_fraction = {max_fraction} of an epoch, which "
            f"has about {max(read, tally[0, 2])}. Repair the data or raise the bound."
        )
