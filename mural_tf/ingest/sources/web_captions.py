"""Captions and addresses of images on the web, joined to downloaded images: CC3M, CC12M, UC2."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from mural_tf.ingest.source import Reading, Text, language_tag, lines_of
from mural_tf.ingest.sources.img2dataset import CaptionedImages, ImageItem
from mural_tf.text_files import Unit, clean


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
