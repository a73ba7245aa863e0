"""Image-text pairs downloaded by img2dataset, in any of its output formats.

    webdataset   00000.tar with 000000000.jpg, .txt, .json
    files        00000/000000000.jpg, .txt, .json
    tfrecord     00000.tfrecord with features key, jpg, txt, json
    parquet      00000.parquet with columns key, jpg, caption (or txt), url, status, …

The metadata (JSON or columns) hold url, caption, and whatever `save_additional_columns` named.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator
from typing import ClassVar

from mural_tf.errors import UserError
from mural_tf.ingest.downloads import Sample, find_shards, read_samples
from mural_tf.ingest.source import FILE, Captioned, Reading, Source, Tally, Text, language_tag
from mural_tf.ingest.text_files import clean


@dataclasses.dataclass
class Img2dataset(Source):
    """The output folder of img2dataset in any format: `img2dataset:downloads/cc12m,language=en`.

    Attributes:
      language: of the captions.
      language_column: the name of saved metadata that hold each caption's language (LAION-2B-multi: LANGUAGE).
      split: which the records go to.
    """

    KIND: ClassVar[str] = "img2dataset"
    ITEM: ClassVar[str] = FILE
    language: str = "en"
    language_column: str = ""
    split: str = "train"

    def files(self) -> list[pathlib.Path]:
        """Returns the shards."""
        return find_shards(self.path)

    def prepare(self, folder: pathlib.Path, progress: bool) -> None:
        """Checks the language before anything is read."""
        del folder, progress
        language_tag(self.language)

    def read(self, reading: Reading) -> Iterator[pathlib.Path]:
        """Yields the shards: workers read them."""
        for path in self.files():
            reading.file_done(path)
            yield path

    def records(self, item: pathlib.Path, tally: Tally) -> Iterable[Captioned]:
        """Yields what a shard holds."""
        for sample in read_samples(item, tally.skip):
            text = self._text(sample, item, tally)
            if text is not None:
                yield Captioned(self._image_id(sample), sample.image, [text], self.split)

    def texts(self, item: pathlib.Path) -> Iterable[tuple[str, Text]]:
        """Yields (image id, caption) of a shard."""
        unheard = Tally()
        for sample in read_samples(item, unheard.skip, images=False):
            text = self._text(sample, item, unheard)
            if text is not None:
                yield self._image_id(sample), text

    def _image_id(self, sample: Sample) -> str:
        """The address, which tells the same image in another data set, or else the key."""
        return sample.metadata.get("url") or f"{pathlib.Path(self.path).name}/{sample.key}"

    def _text(self, sample: Sample, shard: pathlib.Path, tally: Tally) -> Text | None:
        place = f"{shard}, {sample.key}"
        code = (sample.metadata.get(self.language_column) or "") if self.language_column else self.language
        try:
            language = language_tag(code)
        except UserError:
            tally.skip("unknown language", f"{place}: {code!r}")
            return None
        caption = clean(sample.caption)
        if not caption:
            tally.skip("empty caption", place)
            return None
        return Text(caption, language, "", place)
