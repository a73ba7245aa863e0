"""Parquet files, read by row group; COYO's and LAION's metadata joined to downloaded images."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.image_store import CaptionedImages, ImageItem
from mural_tf.data.convert.source import Reading, Text, language_tag
from mural_tf.data.text_files import Problem, clean

ROWS = 1024  # that are read at a time


def open_parquet(path: pathlib.Path):
    """Returns the file as pyarrow sees it; raises `ConfigurationError` if it cannot be read."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigurationError(
            f"Reading {path} needs a package that is not installed: pip install pyarrow (or mural-tf[convert])."
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ConfigurationError(f"{path} is no readable Parquet file: {error}") from None


def column_names(path: pathlib.Path) -> list[str]:
    """Returns the names of a file's columns."""
    return open_parquet(path).schema_arrow.names


def read_rows(
    path: pathlib.Path, columns: Sequence[str] | None, on_problem: Problem
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 0, row) in memory bounded by the rows read at a time."""
    import pyarrow

    file = open_parquet(path)
    number = 0
    try:
        for batch in file.iter_batches(batch_size=ROWS, columns=columns):
            for row in batch.to_pylist():
                yield number, row
                number += 1
    except (pyarrow.ArrowException, OSError):
        on_problem("Parquet file that is damaged: what follows is lost", f"{path}, row {number}")


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
                raise ConfigurationError(f"{path} lacks the column {missing.pop()!r}; it has {', '.join(names)}.")
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
        except ConfigurationError:
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
