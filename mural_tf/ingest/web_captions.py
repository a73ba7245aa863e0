"""CC3M's and CC12M's TSVs of captions and addresses, and WIT, joined to downloaded images."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar

from tqdm import tqdm

from mural_tf.errors import UserError
from mural_tf.ingest.caption_files import read_wit
from mural_tf.ingest.downloads import ROWS, column_names, open_parquet, read_rows
from mural_tf.ingest.image_store import CaptionedImages, ImageItem
from mural_tf.ingest.source import Reading, Text, language_tag
from mural_tf.ingest.tables import HeldOut, hold_out
from mural_tf.ingest.text_files import canonical_language, clean, read_lines


@dataclasses.dataclass
class CaptionsTsv(CaptionedImages):
    """Any TSV of addresses (or file names) and captions: `captions:mine.tsv,url=0,caption=1,images=downloads/mine`.

    Attributes:
      images: what img2dataset downloaded, or a folder of files; see docs/convert.md.
      url, caption: numbers of the columns, from 0.
      language: of the captions.
      header: whether the first line names the columns.
      split: which the records go to.
    """

    KIND: ClassVar[str] = "captions"
    language: str = "en"
    header: bool = False
    url: int = 0
    caption: int = 1

    def read(self, reading: Reading) -> Iterator[ImageItem]:
        """Yields one item a line."""
        language = canonical_language(self.language)
        for path in self.files():
            for number, line in read_lines(path, reading.problem, reading.at):
                if line is None or (self.header and number == 1):
                    continue
                fields = line.split("\t")
                place = f"{path}:{number}"
                if len(fields) <= max(self.url, self.caption):
                    reading.problem("row with the wrong number of columns", place)
                    continue
                url, caption = fields[self.url].strip(), clean(fields[self.caption])
                if not self._is_usable(fields):
                    reading.problem("row that says it failed", place)
                elif not url or not caption:
                    reading.problem("row without address or caption", place)
                else:
                    yield ImageItem(url, url, [Text(caption, language, "", place)], self.split)
            reading.file_done(path)

    def _is_usable(self, fields: list[str]) -> bool:
        del fields
        return True


@dataclasses.dataclass
class Cc3m(CaptionsTsv):
    """CC3M: `cc3m:Train_GCC-training.tsv,images=downloads/cc3m`: caption first, then address.

    Attributes: see captions.
    """

    KIND: ClassVar[str] = "cc3m"
    url: int = 1
    caption: int = 0


@dataclasses.dataclass
class Cc12m(CaptionsTsv):
    """CC12M: `cc12m:cc12m.tsv,images=downloads/cc12m`: address first, then caption.

    Attributes: see captions.
    """

    KIND: ClassVar[str] = "cc12m"


@dataclasses.dataclass
class Uc2(CaptionsTsv):
    """UC2's translations of CC3M: `uc2:train_imageId2Ann_de.tsv,language=de,images=downloads/cc3m`.

    Columns img_id, img_url, caption, success; rows whose success is "fail" or "false" are skipped.

    Attributes: see captions.
    """

    KIND: ClassVar[str] = "uc2"
    url: int = 1
    caption: int = 2

    def _is_usable(self, fields: list[str]) -> bool:
        return len(fields) < 4 or fields[3].strip().lower() not in ("fail", "false", "0")


@dataclasses.dataclass
class Wit(CaptionedImages):
    """WIT as MURAL splits it (A.3): `wit:wit_v1.train.all-*.tsv.gz,images=downloads/wit`.

    Reference descriptions only, one record a row; each language is divided into train, dev and test by a hash of the
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
        """Yields one item a row with a reference description."""
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


# Parquet files, read by row group; COYO's and LAION's metadata joined to downloaded images.


@dataclasses.dataclass
class ParquetCaptions(CaptionedImages):
    """What COYO and LAION share; the names of their columns differ.

    Attributes:
      images: what img2dataset downloaded, or a folder of files; see docs/convert.md.
      language: of the captions.
      min_clip_similarity: rows that state less are left out; 0 is no bound.
      split: which the records go to.
    """

    language: str = "en"
    min_clip_similarity: float = 0.0
    URL: ClassVar[str] = ""
    TEXT: ClassVar[str] = ""
    SIMILARITY: ClassVar[str] = ""
    OPTIONAL: ClassVar[tuple[str, ...]] = ()

    def read(self, reading: Reading) -> Iterator[ImageItem]:
        """Yields one item a row."""
        for path in self.files():
            names = column_names(path)
            missing = {self.URL, self.TEXT} - set(names)
            if missing:
                raise UserError(f"{path} lacks the column {missing.pop()!r}; it has {', '.join(names)}.")
            columns = [name for name in (self.URL, self.TEXT, self.SIMILARITY, *self.OPTIONAL) if name in names]
            rows = open_parquet(path).metadata.num_rows
            for number, row in read_rows(path, columns, reading.problem):
                if number % ROWS == 0:
                    reading.at(int(path.stat().st_size * number / max(1, rows)))
                yield from self._item(row, f"{path}, row {number}", reading)
            reading.file_done(path)

    def _item(self, row: dict[str, Any], place: str, reading: Reading) -> Iterator[ImageItem]:
        url, text = row[self.URL], clean(row[self.TEXT])
        if not url or not text:
            reading.problem("row without address or text", place)
            return
        reason = self.reason_against(row)
        similarity = row.get(self.SIMILARITY)
        if not reason and self.min_clip_similarity and similarity is not None:  # a similarity may be negative
            reason = "CLIP similarity below min_clip_similarity" if similarity < self.min_clip_similarity else ""
        if reason:
            reading.tally.leave_out(reason, place)
            return
        try:
            language = self.language_of(row)
        except UserError:
            reading.problem("unknown language", place)
            return
        yield ImageItem(url, url, [Text(text, language, "", place)], self.split)

    def reason_against(self, row: dict[str, Any]) -> str:
        """Returns why a row is not wanted, or ""."""
        del row
        return ""

    def language_of(self, row: dict[str, Any]) -> str:
        """Returns the caption's language."""
        del row
        return language_tag(self.language)


@dataclasses.dataclass
class Coyo(ParquetCaptions):
    """COYO-700M's Parquet metadata and images downloaded from them: `coyo:coyo/part-*.parquet,images=downloads/coyo`.

    Attributes:
      images: what img2dataset downloaded, or a folder of files; see docs/convert.md.
      language: COYO is English.
      min_clip_similarity: of clip_similarity_vitb32.
      max_watermark_score, max_nsfw_score: upper bounds, of watermark_score and nsfw_score_opennsfw2.
      split: which the records go to.
    """

    KIND: ClassVar[str] = "coyo"
    URL: ClassVar[str] = "url"
    TEXT: ClassVar[str] = "text"
    SIMILARITY: ClassVar[str] = "clip_similarity_vitb32"
    OPTIONAL: ClassVar[tuple[str, ...]] = ("watermark_score", "nsfw_score_opennsfw2")
    max_watermark_score: float = 1.0
    max_nsfw_score: float = 1.0

    def reason_against(self, row: dict[str, Any]) -> str:
        """A score that is missing is no reason."""
        for column, bound in (("watermark_score", "max_watermark_score"), ("nsfw_score_opennsfw2", "max_nsfw_score")):
            if (row.get(column) or 0.0) > getattr(self, bound):
                return f"{column} above {bound}"
        return ""


@dataclasses.dataclass
class Laion(ParquetCaptions):
    """LAION's Parquet metadata and images downloaded from them: `laion:laion/*.parquet,images=downloads/laion`.

    Attributes:
      images: what img2dataset downloaded, or a folder of files; see docs/convert.md.
      language: of the captions where the column LANGUAGE (2B-multi) is missing or empty.
      min_clip_similarity: of the column similarity.
      allow_unsafe: keep rows whose NSFW is neither UNLIKELY nor empty.
      split: which the records go to.
    """

    KIND: ClassVar[str] = "laion"
    URL: ClassVar[str] = "URL"
    TEXT: ClassVar[str] = "TEXT"
    SIMILARITY: ClassVar[str] = "similarity"
    OPTIONAL: ClassVar[tuple[str, ...]] = ("LANGUAGE", "NSFW")
    allow_unsafe: bool = False

    def reason_against(self, row: dict[str, Any]) -> str:
        """LAION's tag is UNLIKELY, UNSURE or NSFW."""
        unsafe = (row.get("NSFW") or "UNLIKELY").upper() != "UNLIKELY"
        return "NSFW is not UNLIKELY" if unsafe and not self.allow_unsafe else ""

    def language_of(self, row: dict[str, Any]) -> str:
        """The column's, or the option's."""
        return language_tag(row.get("LANGUAGE") or self.language)
