"""CC3M's and CC12M's TSVs of captions and addresses, and WIT, joined to downloaded images."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import ClassVar

from tqdm import tqdm

from mural_tf.config import ConfigurationError
from mural_tf.data.caption_files import read_wit
from mural_tf.data.convert.held_out import HeldOut, hold_out
from mural_tf.data.convert.image_store import CaptionedImages, ImageItem
from mural_tf.data.convert.source import Reading, Text
from mural_tf.data.text_files import canonical_language, clean, read_lines


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
            raise ConfigurationError(f"wit: scope={self.scope!r}; expected all or language.")
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
