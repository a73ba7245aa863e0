"""What became of the captions and pairs of a block: written, skipped as unusable, or left out by choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from mural_tf.config import ConfigurationError

MINIMUM = 1000  # items read before the skipped share counts; a file's first lines may be its worst


@dataclasses.dataclass
class Tally:
    """Counts of one block, or of all.

    Attributes:
      written: captions and pairs in the records.
      skipped: {kind: [count, place of the first]} of what is unusable: missing images, broken lines.
      left_out: the same for what is usable but not wanted: filters, languages not asked for.
      places: (kind, place) of everything skipped, in the order of the input; only kept within a block.
    """

    written: int = 0
    skipped: dict[str, list] = dataclasses.field(default_factory=dict)
    left_out: dict[str, list] = dataclasses.field(default_factory=dict)
    places: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def skip(self, kind: str, place: str, count: int = 1) -> None:
        """Counts something unusable: one text, or the `count` captions of one image."""
        self.skipped.setdefault(kind, [0, place])[0] += count
        self.places.append((kind, place))

    def leave_out(self, kind: str, place: str, count: int = 1) -> None:
        """Counts what is not wanted."""
        self.left_out.setdefault(kind, [0, place])[0] += count

    def add(self, other: Tally) -> None:
        """Adds the counts of a later block."""
        self.written += other.written
        for mine, others in ((self.skipped, other.skipped), (self.left_out, other.left_out)):
            for kind, (count, place) in others.items():
                mine.setdefault(kind, [0, place])[0] += count

    @property
    def skipped_count(self) -> int:
        """How much was unusable."""
        return sum(count for count, _ in self.skipped.values())

    @property
    def read(self) -> int:
        """How much was looked at: all that was written, skipped or left out."""
        return self.written + self.skipped_count + sum(count for count, _ in self.left_out.values())

    def lines(self) -> list[str]:
        """The report, one line for each kind."""
        lines = [f"{self.read} captions and pairs read, {self.written} written, {self.skipped_count} skipped"]
        lines += [f"  skipped {count} x {kind}, first at {place}" for kind, (count, place) in _largest(self.skipped)]
        lines += [f"  left out {count} x {kind}, first at {place}" for kind, (count, place) in _largest(self.left_out)]
        return lines

    def check(self, max_fraction: float, at_end: bool = False) -> None:
        """Raises `ConfigurationError` if more than `max_fraction` of what was read is unusable."""
        if (at_end or self.read >= MINIMUM) and self.skipped_count > max_fraction * self.read:
            kinds = "; ".join(f"{count} x {kind}, first at {place}" for kind, (count, place) in _largest(self.skipped))
            raise ConfigurationError(
                f"Too much is unusable: {self.skipped_count} of {self.read} captions and pairs ({kinds}), more than "
                f"--max_skipped_fraction={max_fraction}. Repair the data, or raise the bound and run again: what is "
                "converted already is kept."
            )


def _largest(kinds: dict[str, list]) -> Iterable[tuple[str, list]]:
    return sorted(kinds.items(), key=lambda item: (-item[1][0], item[0]))
