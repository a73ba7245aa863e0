"""Captions and addresses of images on the web, joined to downloaded images: CC3M, CC12M, UC2, COYO and LAION."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

from mural_tf.errors import UserError
from mural_tf.files import as_path
from mural_tf.ingest.source import Reading, Text, known_language, language_tag, lines_of
from mural_tf.ingest.sources.img2dataset import (
    TYPICAL_IMAGE,
    CaptionedImages,
    ImageItem,
    UnreadableParquet,
    open_parquet,
    read_rows,
)
from mural_tf.text_files import Unit, clean, cut, is_text


@dataclasses.dataclass
class CaptionsTsv(CaptionedImages):
    """Any TSV of addresses (or file names) and captions: `captions:mine.tsv,url=0,caption=1,images=downloads/mine`.

    Attributes:
      images: what img2dataset downloaded, or a folder of files; see docs/data.md.
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

    def read(self, unit: Unit, reading: Reading) -> Iterator[ImageItem]:
        """Yields one item per line."""
        language = language_tag(self.language)
        for line, place in lines_of(unit, reading, self.header):
            fields = line.split("\t")
            if len(fields) <= max(self.url, self.caption):
                reading.tally.skip("row with the wrong number of columns", place)
                continue
            url, caption = fields[self.url].strip(), clean(fields[self.caption])
            if not self._is_usable(fields):
                reading.tally.skip("row that says it failed", place)
            elif not url or not caption:
                reading.tally.skip("row without address or caption", place)
            else:
                yield ImageItem(url, url, [Text(caption, language, "", place)], self.split)

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


# COYO's and LAION's metadata: Parquet files, read by row group.


@dataclasses.dataclass
class ParquetCaptions(CaptionedImages):
    """What COYO and LAION share; the names of their columns differ.

    Attributes:
      images: what img2dataset downloaded, or a folder of files; see docs/data.md.
      language: of the captions.
      min_clip_similarity: rows that state less are left out; 0 leaves out none.
      split: which the records go to.
    """

    language: str = "en"
    min_clip_similarity: float = 0.0
    URL: ClassVar[str] = ""
    TEXT: ClassVar[str] = ""
    SIMILARITY: ClassVar[str] = ""
    OPTIONAL: ClassVar[tuple[str, ...]] = ()

    def units(self, unit_bytes: int) -> list[Unit]:
        """Row groups are read by themselves; a file that cannot be read is one unit, and reported where it is read."""
        units = []
        for path in self.files():
            with contextlib.suppress(UnreadableParquet):
                metadata = open_parquet(path).metadata
                units += cut(path, metadata.num_rows * TYPICAL_IMAGE, unit_bytes, metadata.num_row_groups)
                continue
            units += cut(path, 0, unit_bytes)
        return units

    def read(self, unit: Unit, reading: Reading) -> Iterator[ImageItem]:
        """Yields one item per row."""
        path = as_path(unit.path)
        try:
            file = open_parquet(path)
        except UnreadableParquet as error:
            reading.tally.skip("Parquet file that cannot be read", str(error))
            return
        names = file.schema_arrow.names
        missing = {self.URL, self.TEXT} - set(names)
        if missing:
            raise UserError(f"{path} lacks the column {missing.pop()!r}; it has {', '.join(names)}.")
        columns = [name for name in (self.URL, self.TEXT, self.SIMILARITY, *self.OPTIONAL) if name in names]
        for number, row in read_rows(path, columns, reading.tally.skip, unit.share(file.num_row_groups)):
            yield from self._item(row, f"{path}, row {number}", reading)

    def _item(self, row: dict[str, Any], place: str, reading: Reading) -> Iterator[ImageItem]:
        url, text = row[self.URL], row[self.TEXT]
        if url is None or text is None or url == "" or is_text(text) and not clean(text):
            reading.tally.skip("row without address or text", place)
            return
        if not is_text(url) or not is_text(text):
            reading.tally.skip("address or text that is not text", place)
            return
        try:
            reason = self.reason_against(row) or self._below_similarity(row)
        except (TypeError, ValueError, AttributeError):
            reading.tally.skip("score of another type", place)
            return
        if reason:
            reading.tally.leave_out(reason, place)
            return
        language = known_language(self.language_of(row))
        if not language:
            reading.tally.skip("unknown language", place)
            return
        yield ImageItem(url, url, [Text(clean(text), language, "", place)], self.split)

    def _below_similarity(self, row: dict[str, Any]) -> str:
        similarity = row.get(self.SIMILARITY)
        if not self.min_clip_similarity or similarity is None or similarity >= self.min_clip_similarity:
            return ""
        return "CLIP similarity below min_clip_similarity"

    def reason_against(self, row: dict[str, Any]) -> str:
        """Returns why a row is not wanted, or ""; raises what Python raises for values of other types."""
        del row
        return ""

    def language_of(self, row: dict[str, Any]) -> str:
        """Returns the code of the caption's language."""
        del row
        return self.language


@dataclasses.dataclass
class Coyo(ParquetCaptions):
    """COYO-700M's Parquet metadata and images downloaded from them: `coyo:coyo/part-*.parquet,images=downloads/coyo`.

    Attributes:
      images: what img2dataset downloaded, or a folder of files; see docs/data.md.
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
        """A missing score is not a reason."""
        for column, bound in (("watermark_score", "max_watermark_score"), ("nsfw_score_opennsfw2", "max_nsfw_score")):
            if (row.get(column) or 0.0) > getattr(self, bound):
                return f"{column} above {bound}"
        return ""


@dataclasses.dataclass
class Laion(ParquetCaptions):
    """LAION's Parquet metadata and images downloaded from them: `laion:laion/*.parquet,images=downloads/laion`.

    Attributes:
      images: what img2dataset downloaded, or a folder of files; see docs/data.md.
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
        return row.get("LANGUAGE") or self.language
