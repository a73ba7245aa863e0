"""WIT, as MURAL uses it ([MURAL] A.3): reference descriptions, each language divided into train, dev and test.

MURAL's own division was never published. Here, a salted hash of the image's address decides. Images are ordered
by their hashes, the same in all languages: a language's test set is the images with the lowest hashes, its dev
set the images with the highest, so that languages that share images mostly agree on where these go.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
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
    known_language,
    read_lines,
    refuse,
    unpacked_size,
)
from mural_tf.data.caption_files import Caption, checked
from mural_tf.ingest.source import Reading, Text
from mural_tf.ingest.sources.img2dataset import TYPICAL_IMAGE, CaptionedImages, ImageItem

TEST = "test"
DEV = "dev"
# Characters; WIT's longest context has far fewer: a longer field begins with a quotation mark that is never closed.
_LONGEST_FIELD = 1 << 20


@dataclasses.dataclass
class Wit(CaptionedImages):
    """WIT as MURAL splits it (A.3): `wit:wit_v1.train.all-*.tsv.gz,images=downloads/wit`.

    Reference descriptions only, one record per row; each language is divided into train, dev and test by a hash of the
    image's address. MURAL's own division was never published. See docs/data.md.

    Attributes:
      images: the output of img2dataset, or a folder of files.
      languages: the languages to read, joined by "+"; default all.
      scope: "all": an image held out in one language is in no language's training data; "language": each language by
        itself, as the paper says.
      split: "" divides as above; a name takes all rows for that split (WIT's own val and test files).
    """

    KIND: ClassVar[str] = "wit"
    SIZES: ClassVar[tuple[int, ...]] = (5000, 3000, 1000)  # pairs of dev, and as many of test, see `choose`
    languages: tuple[str, ...] = ()
    scope: str = "all"
    split: str = ""

    def check(self) -> None:
        """Raises `UserError` for an unknown scope, or missing images."""
        if self.scope not in ("all", "language"):
            raise UserError(f"wit: scope={self.scope!r}; expected all or language.")
        super().check()

    MOST_UNITS: ClassVar[int] = 1  # rows may hold line breaks, so a file is read from its beginning

    def weight(self, path: pathlib.Path) -> int:
        """Returns about how many bytes the records of a file will have.

        Less than half of the rows have a caption, and a row has some 2,000 bytes.
        """
        return unpacked_size(path) * TYPICAL_IMAGE // 4000

    def read(self, unit: Unit, reading: Reading) -> Iterator[ImageItem]:
        """Yields an item for each row with a reference description, unless another language holds its image out."""
        for caption in read_wit(unit.path, self.languages, reading.tally.skip):
            split = self.split or reading.decided.split(caption.language, caption.image_id)
            if not split:
                reading.tally.leave_out("image that another language's dev or test holds", caption.location)
                continue
            text = Text(caption.caption, caption.language, group="", place=caption.location)
            yield ImageItem(caption.image_file, caption.image_id, [text], split)

    @property
    def is_divided(self) -> bool:
        """Whether the conversion holds out images for dev and test."""
        return not self.split

    def image_hash(self, image_id: str) -> np.uint64:
        """Returns the hash by which images are ordered."""
        return image_hash(image_id)

    def hold_out(self, hashes: dict[str, np.ndarray]) -> HeldOut:
        """Returns the images that are held out for dev and test.

        Args:
          hashes: {language: `image_hash` of the image of each of its captions, with repeats, uint64 [N]}.
        """
        everywhere = self.scope == "all"
        return HeldOut(everywhere, choose(hashes, self.SIZES, everywhere))


def read_wit(
    path: str | pathlib.Path,
    languages: Sequence[str] = (),
    on_problem: Problem = refuse,
) -> Iterator[Caption]:
    """Yields the reference descriptions, the captions under Wikipedia's images, of a file of WIT (MURAL, A.3).

    The file and the id of an image are its address. Rows without a caption are left out without a count: most rows have
    no caption.

    Args:
      path: `wit_v1.train.all-00000-of-00010.tsv.gz` or the like.
      languages: codes of the languages to keep; empty for all. They are Wikipedia's editions: a caption may be in
        another language.
      on_problem: called with the problem and the place of each unusable row; by default it raises `UserError`.
    """
    wanted_languages = {canonical_language(language) for language in languages}
    caption_column = "caption_reference_description"
    columns = ("language", "image_url", caption_column)
    for row, location in _read_quoted_tsv(path, columns, on_problem):
        if not clean(row[caption_column]):
            continue
        language = known_language(row["language"])
        if not language:
            on_problem("unknown language", f"{location}: {row['language']!r}")
        elif not wanted_languages or language in wanted_languages:
            address = row["image_url"].strip()
            yield from checked(address, address, row[caption_column], language, location, on_problem)


def _read_quoted_tsv(path, columns: Sequence[str], on_problem) -> Iterator[tuple[dict[str, str], str]]:
    """Yields ({column: field}, place) of each row of a TSV, whose quoted fields may hold tabs and line breaks.

    Raises `csv.field_size_limit` of the process if it is lower than `_LONGEST_FIELD`, and `UserError` for a file whose
    first line does not name all `columns`.
    """
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

    Args:
      lines: (number, text) of each line, as `read_lines` yields them.

    Attributes:
      last: the number of the last line that was read.
    """

    def __init__(self, lines: Iterator[tuple[int, str | None]]):
        self._lines = lines
        self.last = 0
        self._characters = 0  # the length of the row so far

    def begin_row(self) -> None:
        """Begins to count the characters of a new row."""
        self._characters = 0

    def __iter__(self):
        return self

    def __next__(self) -> str:
        """Returns the next readable line; raises `csv.Error` if it makes the row too long."""
        self.last, text = next(self._lines)
        while text is None:  # an unreadable line, which `read_lines` has reported
            self.last, text = next(self._lines)
        self._characters += len(text)
        if self._characters > LONGEST_LINE:
            raise csv.Error(f"more than {LONGEST_LINE:,} characters")
        return text + "\n"


class HeldOut:
    """The images that a conversion holds out for dev and test.

    Attributes:
      everywhere: whether an image that one language holds out is in no other language's training data.
      splits: {language: {split: `image_hash`es of its images, sorted, uint64 [N]}}.
      images: the hashes of the images of all languages and splits, sorted, uint64 [M].
    """

    def __init__(self, everywhere: bool, splits: dict[str, dict[str, np.ndarray]]):
        self.everywhere = everywhere
        self.splits = splits
        self.images = _union(itertools.chain.from_iterable(by_split.values() for by_split in splits.values()))

    def as_json(self) -> str:
        """Returns the JSON text that `from_json` reads."""
        return json.dumps({"everywhere": self.everywhere, "splits": self.splits}, default=np.ndarray.tolist)

    @classmethod
    def from_json(cls, text: str) -> HeldOut:
        """Returns the images that a text of `as_json` holds."""
        values = json.loads(text)
        splits: dict[str, dict[str, np.ndarray]] = {}
        for language, by_split in values["splits"].items():
            splits[language] = {split: np.array(hashes, np.uint64) for split, hashes in by_split.items()}
        return cls(values["everywhere"], splits)

    def split_of(self, language: str, image_id: str) -> str:
        """Returns the split of an image's caption in a language, train, dev or test.

        It is "", no split, if only another language holds the image out and `everywhere` is set.
        """
        hash_ = image_hash(image_id)
        for split, hashes in self.splits.get(language, {}).items():
            if contains(hashes, hash_):
                return split
        if self.everywhere and contains(self.images, hash_):
            return ""
        return "train"


def _union(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the sorted hashes of all arrays, each once, uint64 [N]."""
    return np.unique(np.concatenate([np.empty(0, np.uint64), *arrays]))  # without arrays it is empty


def image_hash(image_id: str) -> np.uint64:
    """Returns the hash by which images are ordered, the same in all languages."""
    return np.uint64(text_hash(f"mural\t{image_id}"))


def choose(hashes: dict[str, np.ndarray], sizes: Sequence[int], everywhere: bool) -> dict:
    """Returns {language: {split: hashes of the images that are held out, sorted, uint64 [N]}}.

    Test sets are chosen first, from the lowest hashes on; then dev sets, from the highest hashes down.

    Args:
      hashes: {language: hash of the image of each of its captions, with repeats, uint64}.
      sizes: the numbers of pairs that dev and test may each have, largest first; see `_split_size`.
      everywhere: whether an image of one language's test set is in no language's dev set.
    """
    splits: dict[str, dict[str, np.ndarray]] = {}
    for language in sorted(hashes):
        images, counts = np.unique(hashes[language], return_counts=True)
        size = _split_size(int(counts.sum()), sizes)
        splits[language] = {TEST: _first_pairs(images, counts, size)}
    all_tests = _union(by_split[TEST] for by_split in splits.values())
    for language, by_split in splits.items():
        images, counts = np.unique(hashes[language], return_counts=True)
        size = _split_size(int(counts.sum()), sizes)
        taken_images = all_tests if everywhere else by_split[TEST]
        is_free = np.isin(images, taken_images, invert=True)
        by_split[DEV] = _first_pairs(images[is_free][::-1], counts[is_free][::-1], size)
    return splits


def _split_size(pairs: int, sizes: Sequence[int]) -> int:
    """Returns the number of pairs that dev and test each get, of a language with `pairs` pairs.

    It is the first of `sizes` with which dev and test together have at most half of the pairs, or else a quarter of the
    pairs.
    """
    for size in sizes:
        if 4 * size <= pairs:
            return size
    return pairs // 4


def _first_pairs(images: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    """Returns the first images that have `size` pairs together, or as many as fit, sorted, uint64 [N].

    An image with more pairs than are left is passed over.

    Args:
      images: hashes of different images, in the order in which they are taken.
      counts: the number of pairs of each image.
      size: the most pairs of all images.
    """
    first_images = []
    total = 0
    for image, count in zip(images, counts):
        if total == size:
            break
        if total + count <= size:
            first_images.append(image)
            total += count
    return np.array(sorted(first_images), np.uint64)
