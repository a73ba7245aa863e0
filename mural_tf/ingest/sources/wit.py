"""WIT, as MURAL uses it ([MURAL] A.3): reference descriptions, each language divided into train, dev and test.

MURAL's own division was never published. Here, a salted hash of the image's address decides. Images are ordered
by their hashes, the same in all languages: a language's test set is the images with the lowest hashes, its dev
set the images with the highest, so that languages that share images mostly agree on where these go.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from mural_lite.errors import UserError
from mural_lite.hashes import contains, text_hash
from mural_lite.text_files import (
    LONGEST_LINE,
    Problem,
    Unit,
    canonical_language,
    clean,
    cut,
    read_lines,
    refuse,
    unpacked_size,
)
from mural_tf.data.caption_files import Caption, checked
from mural_tf.ingest.source import Reading, Text, known_language
from mural_tf.ingest.sources.img2dataset import TYPICAL_IMAGE, CaptionedImages, ImageItem

TEST, DEV = "test", "dev"
_LONGEST_FIELD = 1 << 20  # characters; WIT's longest context is far below: more is a quotation mark never closed


@dataclasses.dataclass
class Wit(CaptionedImages):
    """WIT as MURAL splits it (A.3): `wit:wit_v1.train.all-*.tsv.gz,images=downloads/wit`.

    Reference descriptions only, one record per row; each language is divided into train, dev and test by a hash of the
    image's address. MURAL's own division was never published. See docs/data.md.

    Attributes:
      images: what img2dataset downloaded, or a folder of files.
      languages: joined by "+"; default all.
      scope: "all": an image held out in one language is in no language's training data; "language": each language by
        itself, as the paper says.
      split: "" divides as above; a name takes all rows for that split (WIT's own val and test files).
    """

    KIND: ClassVar[str] = "wit"
    SIZES: ClassVar[tuple[int, ...]] = (5000, 3000, 1000)  # of dev and of test, see `choose`
    languages: tuple[str, ...] = ()
    scope: str = "all"
    split: str = ""

    def check(self) -> None:
        """Checks the options."""
        if self.scope not in ("all", "language"):
            raise UserError(f"wit: scope={self.scope!r}; expected all or language.")
        super().check()

    def units(self, unit_bytes: int) -> list[Unit]:
        """Rows may hold line breaks: a file is read from its beginning."""
        return [unit for path in self.files() for unit in cut(path, self.weight(path), unit_bytes, most=1)]

    def weight(self, path: pathlib.Path) -> int:
        """Less than half of the rows have a reference description, and all columns take some 2,000 bytes."""
        return unpacked_size(path) * TYPICAL_IMAGE // 4000

    def read(self, unit: Unit, reading: Reading) -> Iterator[ImageItem]:
        """Yields one item per row with a reference description."""
        for caption in read_wit(unit.path, self.languages, reading.tally.skip):
            split = self.split or reading.decided.split(caption.language, caption.image_id)
            if not split:
                reading.tally.leave_out("image that another language's dev or test holds", caption.location)
                continue
            text = Text(caption.caption, caption.language, "", caption.location)
            yield ImageItem(caption.image_file, caption.image_id, [text], split)

    @property
    def is_divided(self) -> bool:
        """Whether images are held out here."""
        return not self.split

    def image_hash(self, image_id: str) -> np.uint64:
        """Returns the hash that places an image."""
        return image_hash(image_id)

    def hold_out(self, hashes: dict[str, np.ndarray]) -> HeldOut:
        """Chooses the images that are held out.

        Args:
          hashes: language -> `image_hash`es of all its captions' images, with repeats, uint64.
        """
        everywhere = self.scope == "all"
        return HeldOut(everywhere, choose(hashes, self.SIZES, everywhere))


def read_wit(
    path: str | pathlib.Path,
    languages: Sequence[str] = (),
    on_problem: Problem = refuse,
) -> Iterator[Caption]:
    """Reads the reference descriptions of one of WIT's TSV files (the captions under Wikipedia's images; MURAL, A.3).

    Rows without a caption are left out without a count: most rows have no caption. File and id are the image's address.

    Args:
      path: `wit_v1.train.all-00000-of-00010.tsv.gz` or the like.
      languages: keep these only; default all. They are Wikipedia's editions: a caption may be in another language.
      on_problem: see the module.
    """
    wanted = {canonical_language(language) for language in languages}
    caption_column = "caption_reference_description"
    columns = ("language", "image_url", caption_column)
    for row, location in _read_quoted_tsv(path, columns, on_problem):
        if not clean(row[caption_column]):
            continue
        language = known_language(row["language"])
        if not language:
            on_problem("unknown language", f"{location}: {row['language']!r}")
        elif not wanted or language in wanted:
            address = row["image_url"].strip()
            yield from checked(address, address, row[caption_column], language, location, on_problem)


def _read_quoted_tsv(path, columns: Sequence[str], on_problem) -> Iterator[tuple[dict[str, str], str]]:
    """Yields (row, place) of a TSV with a header and quoted fields, which may hold tabs and line breaks."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    lines = _LinesOfRows(read_lines(path, on_problem))
    rows = csv.reader(lines, delimiter="\t")
    try:
        header = next(rows, [])
    except csv.Error as error:
        raise UserError(f"{path} is not one of WIT's files: its first line is not TSV ({error}).") from None
    missing = [column for column in columns if column not in header]
    if missing:
        raise UserError(f"{path} lacks the column {missing[0]!r}; its first line has {header[:20]}.")
    while True:
        lines.begin_row()
        location = f"{path}:{lines.last + 1}"
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            on_problem(f"row that is not TSV ({error})", location)
            continue
        if len(row) == len(header):
            yield dict(zip(header, row)), location
        elif row:
            on_problem("row with the wrong number of columns", location)


class _LinesOfRows:
    """Lines for `csv.reader`, which holds a row in memory until its quotation marks are closed.

    Raises `csv.Error` for a row of more than `LONGEST_LINE` characters; the next row begins behind it.
    """

    def __init__(self, lines: Iterator[tuple[int, str | None]]):
        self._lines, self.last, self._characters = lines, 0, 0

    def begin_row(self) -> None:
        """Counts from here."""
        self._characters = 0

    def __iter__(self):
        return self

    def __next__(self) -> str:
        self.last, text = next(self._lines)
        while text is None:  # a problem that `read_lines` has told
            self.last, text = next(self._lines)
        self._characters += len(text)
        if self._characters > LONGEST_LINE:
            raise csv.Error(f"more than {LONGEST_LINE:,} characters")
        return text + "\n"


class HeldOut:
    """Which images are held out: sorted hashes per language and split."""

    def __init__(self, everywhere: bool, splits: dict[str, dict[str, np.ndarray]]):
        self.everywhere, self.splits = everywhere, splits
        none = [np.empty(0, np.uint64)]
        self.images = np.unique(np.concatenate(none + [a for s in splits.values() for a in s.values()]))

    def as_json(self) -> str:
        """Returns it as text, for `from_json`."""
        splits = {name: {s: [int(h) for h in a] for s, a in by_split.items()} for name, by_split in self.splits.items()}
        return json.dumps({"everywhere": self.everywhere, "splits": splits})

    @classmethod
    def from_json(cls, text: str) -> HeldOut:
        """Returns what `as_json` wrote."""
        values = json.loads(text)
        splits = {name: {s: np.array(h, np.uint64) for s, h in x.items()} for name, x in values["splits"].items()}
        return cls(values["everywhere"], splits)

    def split_of(self, language: str, image_id: str) -> str:
        """Returns train, dev or test; "" if the image is held out in another language only."""
        value = image_hash(image_id)
        for split, hashes in self.splits.get(language, {}).items():
            if contains(hashes, value):
                return split
        return "" if self.everywhere and contains(self.images, value) else "train"


def image_hash(image_id: str) -> np.uint64:
    """Returns the hash that places an image."""
    return np.uint64(text_hash(f"mural\t{image_id}"))


def choose(hashes: dict[str, np.ndarray], sizes: Sequence[int], everywhere: bool) -> dict:
    """Returns {language: {split: hashes of the images that are held out}}.

    Args:
      hashes: of the images of all captions of each language, with repeats.
      sizes: of dev and of test in pairs, largest first; a language gets the first of which both together are at most
        half of its pairs, or else half of its pairs.
      everywhere: no image of a test set is in another language's dev set or training data, and so on.
    """
    nothing = np.empty(0, np.uint64)
    splits: dict[str, dict[str, np.ndarray]] = {language: {} for language in sorted(hashes)}
    taken = {TEST: nothing, DEV: nothing}
    for split, other, from_top in ((TEST, DEV, False), (DEV, TEST, True)):
        for language, by_split in splits.items():
            images, counts = np.unique(hashes[language], return_counts=True)
            size = _size(int(counts.sum()), sizes)
            free = np.isin(images, taken[other] if everywhere else by_split.get(other, nothing), invert=True)
            by_split[split] = _first_pairs(images[free], counts[free], size, from_top)
        taken[split] = np.unique(np.concatenate([by_split[split] for by_split in splits.values()]))
    return splits


def _size(pairs: int, sizes: Sequence[int]) -> int:
    for size in sizes:
        if 4 * size <= pairs:
            return size
    return pairs // 4


def _first_pairs(images: np.ndarray, counts: np.ndarray, size: int, from_top: bool) -> np.ndarray:
    """Takes images in order while their pairs fit into `size`; one with too many pairs is passed over."""
    order = range(len(images) - 1, -1, -1) if from_top else range(len(images))
    chosen, total = [], 0
    for index in order:
        if total == size:
            break
        if total + counts[index] <= size:
            chosen.append(images[index])
            total += counts[index]
    return np.array(sorted(chosen), np.uint64)
