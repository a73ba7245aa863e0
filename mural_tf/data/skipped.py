"""Records that cannot be used: counted, named in the log once per kind, and bounded.

Training goes on past a corrupt image or an empty caption, but not past any number of them.
"""

from __future__ import annotations

import collections
import os
import threading

import tensorflow as tf
from absl import logging

from mural_tf.config import ConfigurationError

PARALLEL = os.cpu_count() or 1  # elements at a time


class SkippedRecords:
    """Counts by kind, filled by the input pipeline's threads.

    Args:
      max_fraction: of all records read; above it `check` raises.
      minimum: how many records must have been read before the fraction counts.
    """

    def __init__(self, max_fraction: float, minimum: int = 200):
        self.max_fraction, self.minimum = max_fraction, minimum
        self.counts: collections.Counter[str] = collections.Counter()
        self._verdict = ""
        self._lock = threading.Lock()

    def add(self, kind: str, example: str, count: int = 1) -> None:
        """Counts skipped records; logs the first of each kind with an example."""
        with self._lock:
            if kind not in self.counts:
                logging.warning("Skipping records: %s, first at %s. Further ones are only counted.", kind, example)
            self.counts[kind] += count

    @property
    def total(self) -> int:
        """How many records were skipped."""
        return sum(self.counts.values())

    def exceeded(self, read: int, at_end: bool = False) -> bool:
        """Tells whether too many of the `read` records were skipped."""
        with self._lock:
            enough = at_end or read >= self.minimum
            if not self._verdict and enough and self.total > self.max_fraction * read:
                self._verdict = self.report(read)
            return bool(self._verdict)

    def report(self, read: int | None = None) -> str:
        """Returns one line with all counts."""
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.counts.items()))
        return f"{self.total}{f' of {read}' if read else ''} records skipped ({kinds or 'none'})"

    def check(self) -> None:
        """Raises `ConfigurationError` if the share of skipped records went above the bound."""
        if self._verdict:
            raise ConfigurationError(
                f"Too many unusable records: {self._verdict}, more than data.max_skipped_fraction = "
                f"{self.max_fraction}. Repair the data or raise the bound."
            )


def map_or_drop(dataset: tf.data.Dataset, function, skipped: SkippedRecords, kind: str) -> tf.data.Dataset:
    """Maps `function` over `dataset`, in order, dropping the elements on which it fails; yields (number, result).

    A failing element leaves a gap in the numbering, which the next good one reveals: that is how it is counted.
    """
    numbered = dataset.enumerate().map(
        lambda index, element: (index, function(element)), num_parallel_calls=PARALLEL, deterministic=True
    )

    def note(missing, index):
        skipped.add(kind, f"record {index - missing} of the stream", int(missing))
        return missing

    def count_gap(previous, index_and_element):
        index, element = index_and_element
        missing = index - previous - 1

        def report():
            return tf.numpy_function(note, [missing, index], tf.int64)

        with tf.control_dependencies([tf.cond(missing > 0, report, lambda: missing)]):
            return tf.identity(index), (index, element)

    return numbered.ignore_errors().scan(tf.constant(-1, tf.int64), count_gap)
