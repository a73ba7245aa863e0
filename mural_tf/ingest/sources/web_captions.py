"""Captions and addresses of images on the web, joined to downloaded images: CC3M, CC12M, UC2."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from mural_lite.text_files import Unit, canonical_language, clean
from mural_tf.ingest.source import Reading, Text, lines_of
from mural_tf.ingest.sources.img2dataset import CaptionedImages, ImageItem


class TsvOfCaptions(CaptionedImages):
    """Base of sources of TSV, whose rows have an image's address and a caption in the columns `url` and `caption`."""

    url: ClassVar[int] = 0
    caption: ClassVar[int] = 1
    header: ClassVar[bool] = False
    language: ClassVar[str] = "en"

    def read(self, unit: Unit, reading: Reading) -> Iterator[ImageItem]:
        """Yields an item for each usable row; `reading.tally` counts the others."""
        language = canonical_language(self.language)
        for line, location in lines_of(unit, reading, self.header):
            fields = line.split("\t")
            if len(fields) <= max(self.url, self.caption):
                reading.tally.skip("row with too few columns, which tabs divide", location)
                continue
            address = fields[self.url].strip()
            text = clean(fields[self.caption])
            if not self._is_usable(fields):
                reading.tally.skip("row that says it failed", location)
            elif not address or not text:
                reading.tally.skip("row without address or caption", location)
            else:
                yield ImageItem(address, address, [Text(text, language, "", location)], self.split)

    def _is_usable(self, fields: list[str]) -> bool:
        """Whether the row does not say that its translation failed; a family with such rows overrides it."""
        del fields
        return True


@dataclasses.dataclass
class CaptionsTsv(TsvOfCaptions):
    """Any TSV of addresses (or file names) and captions: `captions:mine.tsv,url=0,caption=1,images=downloads/mine`.

    Attributes:
      images: the output of img2dataset, or a folder of files; see docs/data.md.
      url, caption: numbers of the columns, from 0.
      language: the captions' language.
      header: whether the first line names the columns.
      split: the records' split.
    """

    KIND: ClassVar[str] = "captions"
    split: str = "train"
    language: str = "en"
    header: bool = False
    url: int = 0
    caption: int = 1


@dataclasses.dataclass
class Cc3m(TsvOfCaptions):
    """CC3M: `cc3m:Train_GCC-training.tsv,images=downloads/cc3m`: caption first, then address.

    Attributes:
      images: see captions.
    """

    KIND: ClassVar[str] = "cc3m"
    url: ClassVar[int] = 1
    caption: ClassVar[int] = 0
    split: ClassVar[str] = "train"


@dataclasses.dataclass
class Cc12m(TsvOfCaptions):
    """CC12M: `cc12m:cc12m.tsv,images=downloads/cc12m`: address first, then caption.

    Attributes:
      images: see captions.
    """

    KIND: ClassVar[str] = "cc12m"
    split: ClassVar[str] = "train"


@dataclasses.dataclass
class Uc2(TsvOfCaptions):
    """UC2's translations of CC3M: `uc2:train_imageId2Ann_de.tsv,language=de,images=downloads/cc3m`.

    Columns img_id, img_url, caption, success; rows whose success is "fail" or "false" are skipped.

    Attributes:
      images, language: see captions.
    """

    KIND: ClassVar[str] = "uc2"
    url: ClassVar[int] = 1
    caption: ClassVar[int] = 2
    split: ClassVar[str] = "train"
    language: str = "en"

    def _is_usable(self, fields: list[str]) -> bool:
        """Whether the column "success", the fourth, is missing or does not say no."""
        return len(fields) < 4 or fields[3].strip().lower() not in ("fail", "false", "0")
