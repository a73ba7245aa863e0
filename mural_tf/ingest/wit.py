"""WIT, as MURAL uses it ([MURAL] A.3): reference descriptions, each language divided into train, dev and test.

MURAL's own division was never published. Here, a salted hash of the image's address decides. The order of images is
that of their hashes, the same in all languages: a language's test set is the images with the lowest hashes, its dev
set those with the highest, so that languages that share images mostly agree on where these go.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from tqdm import tqdm

from mural_tf.errors import UserError
from mural_tf.files import write_whole
from mural_tf.ingest.caption_files import Caption, checked
from mural_tf.ingest.image_store import CaptionedImages, ImageItem
from mural_tf.ingest.source import Reading, Text, language_tag
from mural_tf.ingest.tables import Spool, contains, text_hash
from mural_tf.ingest.text_files import LONGEST_LINE, Problem, canonical_language, clean, read_lines, refuse

TEST, DEV = "test", "dev"
_LONGEST_FIELD = 1 << 20  # characters; WIT's longest context is far below: more is a quotation mark never closed


@dataclasses.dataclass
class Wit(CaptionedImages):
    """WIT as MURAL splits it (A.3): `wit:wit_v1.train.all-*.tsv.gz,images=downloads/wit`.

    Reference descriptions only, one record per row; each language is divided into train, dev and test by a hash of the
    image's address. MURAL's own division was never published. See docs/convert.md.

    Attributes:
      images: what img2dataset downloaded, or a folder of files.
      languages: joined by "+"; default all.
      salt: of the hash; another salt, another division.
      sizes: pairs in dev, and as many in test; the largest is taken of which a language has `fraction` to spare.
      fraction: the largest share of a language's pairs that dev and test may have together.
      scope: "all": an image held out in one language is in no language's training data; "language": each language by
        itself, as the paper says.
      split: "" divides as above; a name takes all rows for that split (WIT's own val and test files).
    """

    KIND: ClassVar[str] = "wit"
    languages: tuple[str, ...] = ()
    salt: str = "mural"
    sizes: tuple[str, ...] = ("5000", "3000", "1000")
    fraction: float = 0.5
    scope: str = "all"
    split: str = ""

    def prepare(self, folder: pathlib.Path, progress: bool) -> None:
        """Finds the images and decides which are held out."""
        if self.scope not in ("all", "language"):
            raise UserError(f"wit: scope={self.scope!r}; expected all or language.")
        super().prepare(folder, progress)
        self._held_out = None
        if not self.split:
            rows = (
                (caption.language, caption.image_id)
                for path in tqdm(self.files(), unit="file", desc="Dividing WIT", disable=not progress)
                for caption in read_wit(path, self.languages, lambda kind, place: None)
            )
            sizes = sorted((int(size) for size in self.sizes), reverse=True)
            self._held_out = hold_out(rows, folder / "held_out", self.salt, sizes, self.fraction, self.scope == "all")

    def read(self, reading: Reading) -> Iterator[ImageItem]:
        """Yields one item per row with a reference description."""
        for path in self.files():
            for caption in read_wit(path, self.languages, reading.problem, reading.at):
                split = self.split or self._split_of(caption)
                if not split:
                    reading.tally.leave_out("image that another language's dev or test holds", caption.location)
                    continue
                text = Text(caption.caption, caption.language, "", caption.location)
                yield ImageItem(caption.image_file, caption.image_id, [text], split)
            reading.file_done(path)

    def _split_of(self, caption) -> str:
        held_out: HeldOut | None = getattr(self, "_held_out", None)  # none where words are counted, without images
        return held_out.split_of(caption.language, caption.image_id) if held_out else "train"


def read_wit(
    path: str | pathlib.Path,
    languages: Sequence[str] = (),
    on_problem: Problem = refuse,
    on_position: Callable[[int], None] | None = None,
) -> Iterator[Caption]:
    """Reads the reference descriptions of one of WIT's TSV files (the captions under Wikipedia's images; MURAL, A.3).

    Rows without one are left out in silence: most have none. File and id are the image's address.

    Args:
      path: `wit_v1.train.all-00000-of-00010.tsv.gz` or the like.
      languages: keep these only; default all. They are Wikipedia's editions: a caption may be in another language.
      on_problem, on_position: see the module and `read_lines`.
    """
    wanted = {canonical_language(language) for language in languages}
    caption_column = "caption_reference_description"
    columns = ("language", "image_url", caption_column)
    for row, location in _read_quoted_tsv(path, columns, on_problem, on_position):
        if not clean(row[caption_column]):
            continue
        try:
            language = language_tag(row["language"])
        except UserError:
            on_problem("unknown language", f"{location}: {row['language']!r}")
            continue
        if not wanted or language in wanted:
            address = row["image_url"].strip()
            yield from checked(address, address, row[caption_column], language, location, on_problem)


def _read_quoted_tsv(path, columns: Sequence[str], on_problem, on_position) -> Iterator[tuple[dict[str, str], str]]:
    """Yields (row, place) of a TSV with a header and quoted fields, which may hold tabs and line breaks."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    lines = _LinesOfRows(read_lines(path, on_problem, on_position))
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

    def __init__(self, salt: str, everywhere: bool, splits: dict[str, dict[str, np.ndarray]]):
        self.salt, self.everywhere, self.splits = salt, everywhere, splits
        none = [np.empty(0, np.uint64)]
        self.images = np.unique(np.concatenate(none + [a for s in splits.values() for a in s.values()]))

    def split_of(self, language: str, image_id: str) -> str:
        """Returns train, dev or test; "" if the image is held out in another language only."""
        value = image_hash(self.salt, image_id)
        for split, hashes in self.splits.get(language, {}).items():
            if contains(hashes, value):
                return split
        return "" if self.everywhere and contains(self.images, value) else "train"


def image_hash(salt: str, image_id: str) -> np.uint64:
    """Returns the hash that places an image."""
    return np.uint64(text_hash(f"{salt}\t{image_id}"))


def hold_out(
    rows: Iterable[tuple[str, str]],
    folder: pathlib.Path,
    salt: str,
    sizes: Sequence[int],
    fraction: float,
    everywhere: bool,
) -> HeldOut:
    """Chooses the images that are held out, or reads a choice made before.

    Memory is bounded by the largest language: 8 bytes per pair.

    Args:
      rows: (language, image id) of every pair.
      folder: keeps hashes and choice.
      salt: of the hash.
      sizes: of dev and of test in pairs, largest first; a language gets the first of which both together are at most
        `fraction` of its pairs, or else the last, shrunk to that fraction.
      fraction: see sizes.
      everywhere: no image of a test set is in another language's dev set or training data, and so on.
    """
    chosen = folder / "chosen.json"
    if not chosen.exists():
        spool = Spool(folder / "hashes")
        names: dict[str, int] = {}
        for language, image_id in rows:
            spool.add(names.setdefault(language, len(names)), image_hash(salt, image_id))
        spool.close()
        splits = _choose({name: spool.read(number) for name, number in names.items()}, sizes, fraction, everywhere)
        content = {name: {s: [int(h) for h in a] for s, a in by_split.items()} for name, by_split in splits.items()}
        write_whole(chosen, json.dumps(content))
    content = json.loads(chosen.read_text(encoding="utf-8"))
    splits = {name: {s: np.array(h, np.uint64) for s, h in by_split.items()} for name, by_split in content.items()}
    return HeldOut(salt, everywhere, splits)


def _choose(hashes: dict[str, np.ndarray], sizes, fraction: float, everywhere: bool) -> dict:
    nothing = np.empty(0, np.uint64)
    splits: dict[str, dict[str, np.ndarray]] = {language: {} for language in sorted(hashes)}
    taken = {TEST: nothing, DEV: nothing}
    for split, other, from_top in ((TEST, DEV, False), (DEV, TEST, True)):
        for language, by_split in splits.items():
            images, counts = np.unique(hashes[language], return_counts=True)
            size = _size(int(counts.sum()), sizes, fraction)
            free = np.isin(images, taken[other] if everywhere else by_split.get(other, nothing), invert=True)
            by_split[split] = _first_pairs(images[free], counts[free], size, from_top)
        taken[split] = np.unique(np.concatenate([by_split[split] for by_split in splits.values()]))
    return splits


def _size(pairs: int, sizes: Sequence[int], fraction: float) -> int:
    for size in sizes:
        if 2 * size <= fraction * pairs:
            return size
    return int(fraction * pairs / 2)


def _first_pairs(images: np.ndarray, counts: np.ndarray, size: int, from_top: bool) -> np.ndarray:
    """Takes images in order while their pairs fit into `size`; one with too many pairs is passed over."""
    order = range(len(images) - 1, -1, -1) if from_top else range(len(images))
    found, total = [], 0
    for index in order:
        if total == size:
            break
        if total + counts[index] <= size:
            found.append(images[index])
            total += counts[index]
    return np.array(sorted(found), np.uint64)
