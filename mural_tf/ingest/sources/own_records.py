"""The project's own TFRecords as a source: to join data sets, to filter one again, to count its words."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator
from typing import ClassVar

from mural_lite import tfrecord
from mural_lite.errors import UserError
from mural_lite.files import as_path, open_path
from mural_lite.record_format import (
    IMAGE_TEXT,
    TEXT_PAIRS,
    ImageTextRecord,
    TextPair,
    UnusableRecord,
    missing_shards,
    parse_record,
)
from mural_lite.skipped import MISSING_SHARD, Tally
from mural_lite.text_files import Unit
from mural_tf.ingest.source import Captioned, Pair, Reading, ShardSource, Text


@dataclasses.dataclass
class OwnRecords(ShardSource):
    """A data set in the project's format: `records:data/mine,splits=train`; images, captions and text pairs.

    Attributes:
      splits: the splits to read, joined by "+".
    """

    KIND: ClassVar[str] = "records"
    splits: tuple[str, ...] = ("train",)

    def files(self) -> list[pathlib.Path]:
        """Returns the shards of the splits; raises `UserError` if no split has a shard."""
        root = as_path(self.path)
        shards: list[pathlib.Path] = []
        for record_type in (IMAGE_TEXT, TEXT_PAIRS):
            for split in self.splits:
                shards += sorted((root / record_type).glob(f"{split}-*.tfrecord"))
        if not shards:
            raise UserError(
                f"No records of split {'+'.join(self.splits)} in {root}: expected image_text/train-*.tfrecord or "
                "text_pairs/train-*.tfrecord there."
            )
        return shards

    def read(self, unit: Unit, reading: Reading) -> Iterator[pathlib.Path]:
        """Yields the shard; the tally of the first shard also counts missing shards."""
        names = [str(path) for path in self.files()]
        if unit.path == names[0]:
            for name in missing_shards(names):
                reading.tally.skip(MISSING_SHARD, name)
        yield from super().read(unit, reading)

    def records(self, item: pathlib.Path, reading: Reading) -> Iterable[Captioned | Pair]:
        """Yields the usable records of a shard; `reading.tally` counts the others."""
        tally = reading.tally
        split = item.name.split("-")[0]
        for record, location in _parsed(item, tally):
            if isinstance(record, ImageTextRecord):
                texts = _usable_texts(record, location, tally)
                if texts:
                    yield Captioned(record.image_id, record.image, texts, split)
                elif not record.captions:
                    tally.skip("image without captions", location)
            elif not record.text_a.strip() or not record.text_b.strip():
                tally.skip("empty text", location)
            else:
                yield Pair(
                    record.text_a, record.language_a, record.text_b, record.language_b, record.group_id, location, split
                )

    def texts(self, item: pathlib.Path) -> Iterable[tuple[str, Text]]:
        """Yields (image id, caption), and both texts of a text pair with "" as the id."""
        for record in self.records(item, Reading()):
            if isinstance(record, Captioned):
                for text in record.texts:
                    yield record.image_id, text
            else:
                yield "", Text(record.text_a, record.language_a, "", record.place)
                yield "", Text(record.text_b, record.language_b, "", record.place)


def _parsed(path: pathlib.Path, tally: Tally) -> Iterator[tuple[ImageTextRecord | TextPair, str]]:
    """Yields (record, place) of the readable records of a shard; `tally` counts the others."""
    for number, (_, serialized) in enumerate(tfrecord.read_all(path, tally.skip, open_path)):
        location = f"{path}, record {number}"
        try:
            yield parse_record(serialized, str(path), number), location
        except UnusableRecord as error:
            tally.skip(error.problem, location)


def _usable_texts(record: ImageTextRecord, location: str, tally: Tally) -> list[Text]:
    """Returns the captions of a record that are not empty; `tally` counts the empty captions."""
    texts = []
    for caption, language, group in zip(record.captions, record.languages, record.caption_groups):
        if caption.strip():
            texts.append(Text(caption, language, group, location))
    if len(texts) < len(record.captions):
        tally.skip("empty caption", location, len(record.captions) - len(texts))
    return texts
