"""After an index was made or brought up to date: a report, and the values by which nothing fits a question."""

from __future__ import annotations

import pathlib
import sys

from mural_lite.progress import announce
from mural_search import changes, noise_level
from mural_search.changes import SKIPPED
from mural_search.index import Index
from mural_search.items import IMAGES


def report(made: Index, folder: str) -> None:
    """Prints the contents of an index and the effect of its last change."""
    print(f"{len(made):,} {made.kind} in {folder}, made by {made.model.describe()}.")
    counts = made.counts
    words = {"new": counts.added, "changed": counts.changed, "taken out": counts.pruned, "as before": counts.kept}
    if counts.changed or counts.pruned or counts.kept:
        print(", ".join(f"{number:,} {word}" for word, number in words.items() if number) + ".")
    if made.skipped:
        print(f"{made.skipped:,} could not be read: see {folder}/{SKIPPED}.", file=sys.stderr)
    if counts.repeated:
        line = f"{counts.repeated:,} came again, under the name of an earlier one, and were passed over"
        if made.kind == IMAGES:
            line += ": name a table of captions before the folder of its images"
        print(f"{line}.")
    if counts.deleted:
        until = "until their row changes, or without a table their picture"
        print(f"{counts.deleted:,} that were deleted by hand stay out {until}.")
    if counts.gone:
        print(f"{counts.gone:,} of them are no longer in the sources; --prune removes them.")


def measure_noise(made: Index, folder: pathlib.Path, embedder) -> None:
    """Measures the noise level of the index in `folder`, see `noise_level`, and keeps it there."""
    announce("Asking the index with strings that mean nothing …")
    made.noise = noise_level.measure_noise(made, embedder)
    changes.keep_noise(folder, made.noise)
