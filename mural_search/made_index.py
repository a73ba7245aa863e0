"""After an index was made or brought up to date: a report, and the values by which nothing fits a question."""

from __future__ import annotations

import pathlib
import sys

from mural_lite.progress import announce
from mural_search import changes, noise_level
from mural_search.changes import SKIPPED
from mural_search.index import Index
from mural_search.items import IMAGES


def report(index: Index, folder: str) -> None:
    """Prints the number of items in an index, and how many of them its last change added, changed, kept or left out.

    Args:
      index: an index that `sync` has just made or changed, so that it has `counts`.
      folder: the index's folder, as the lines name it.
    """
    print(f"{len(index):,} {index.kind} in {folder}, made by {index.model.describe()}.")
    counts = index.counts
    if counts.changed or counts.pruned or counts.kept:  # otherwise all items are new, and the line above counts them
        number_of = {
            "new": counts.added,
            "changed": counts.changed,
            "taken out": counts.pruned,
            "as before": counts.kept,
        }
        print(", ".join(f"{count:,} {change}" for change, count in number_of.items() if count) + ".")
    if index.skipped:
        print(f"{index.skipped:,} could not be read: see {folder}/{SKIPPED}.", file=sys.stderr)
    if counts.repeated:
        line = f"{counts.repeated:,} came again, under the name of an earlier one, and were passed over"
        if index.kind == IMAGES:
            line += ": name a table of captions before the folder of its images"
        print(f"{line}.")
    if counts.deleted:
        until = "until their row changes, or without a table their picture"
        print(f"{counts.deleted:,} that were deleted by hand stay out {until}.")
    if counts.gone:
        print(f"{counts.gone:,} of them are no longer in the sources; --prune removes them.")


def measure_noise(index: Index, folder: pathlib.Path, embedder) -> None:
    """Measures the noise level of an index by its model, and stores it in the index and in the index's folder."""
    announce("Asking the index with strings that mean nothing …")
    index.noise = noise_level.measure_noise(index, embedder)
    changes.keep_noise(folder, index.noise)
