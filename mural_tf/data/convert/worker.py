"""Converts one block: items to records to part files, and the block's report when they are complete."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from mural_tf.config import PARTIAL, ConfigurationError
from mural_tf.data.convert.blocks import Block
from mural_tf.data.convert.screen import Screen
from mural_tf.data.convert.settings import Settings
from mural_tf.data.convert.source import Captioned, Pair, Source
from mural_tf.data.convert.tally import Tally
from mural_tf.data.records import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair, serialize


@dataclasses.dataclass
class BlockReport:
    """What a finished block holds.

    Attributes:
      tally: see there; its `places` are in the block's own file.
      parts: [kind, split, bytes] of each part file.
      counts: {kind: {split: {"records": n, "texts": n, "languages": {language or "a-b": n}}}}.
    """

    tally: Tally
    parts: list[list]
    counts: dict


def report_path(folder: pathlib.Path, number: int) -> pathlib.Path:
    """The file whose presence says that a block is finished."""
    return folder / "parts" / f"{number:06d}.json"


def places_path(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Kind and place of every item that the block skipped."""
    return folder / "parts" / f"{number:06d}.skipped.tsv"


def part_path(folder: pathlib.Path, number: int, kind: str, split: str) -> pathlib.Path:
    """A block's records of one kind and split."""
    return folder / "parts" / f"{number:06d}.{kind}.{split}.tfrecord"


def read_report(folder: pathlib.Path, number: int) -> BlockReport | None:
    """Returns a block's report, `None` if it is not finished."""
    try:
        content = json.loads(report_path(folder, number).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return BlockReport(Tally(**content["tally"]), content["parts"], content["counts"])


class Converter:
    """Turns blocks into parts. One per process; what it needs from disk is read once."""

    def __init__(self, sources: Sequence[Source], settings: Settings, folder: pathlib.Path):
        self.sources, self.folder = sources, folder
        self.screen = Screen(settings, folder)

    def __call__(self, block: Block) -> BlockReport:
        """Writes the block's parts and, last, its report."""
        tally = block.tally
        counts: dict = {}
        writers: dict[tuple[str, str], tf.io.TFRecordWriter] = {}
        try:
            for kind, split, record in self._records(block, tally):
                key = (kind, split)
                if key not in writers:
                    name = part_path(self.folder, block.number, kind, split)
                    writers[key] = tf.io.TFRecordWriter(f"{name}{PARTIAL}")
                writers[key].write(serialize(record))
                tally.written += _count(counts, kind, split, record)
        except tf.errors.OpError as error:  # how TensorFlow's writer reports a full disk
            raise ConfigurationError(f"Cannot write to {self.folder}: {error.message}. Free space there.") from None
        finally:
            for writer in writers.values():
                writer.close()
        parts = []
        for kind, split in sorted(writers):
            name = part_path(self.folder, block.number, kind, split)
            os.replace(f"{name}{PARTIAL}", name)
            parts.append([kind, split, os.path.getsize(name)])
        return self._finish(block.number, BlockReport(tally, parts, counts))

    def _records(self, block: Block, tally: Tally) -> Iterator[tuple[str, str, ImageTextRecord | TextPair]]:
        for index, item in block.items:
            for found in self.sources[index].records(item, tally):
                if isinstance(found, Pair):
                    if self.screen.accepts_pair(found, tally):
                        values = (found.text_a, found.language_a, found.text_b, found.language_b, found.group)
                        yield TEXT_PAIRS, found.split, TextPair(*values)
                elif isinstance(found, Captioned):
                    record = self.screen.image_text_record(found, tally)
                    if record is not None:
                        yield IMAGE_TEXT, found.split, record

    def _finish(self, number: int, report: BlockReport) -> BlockReport:
        if report.tally.places:
            lines = "".join(f"{kind}\t{place}\n" for kind, place in report.tally.places)
            _write(places_path(self.folder, number), lines)
            report.tally.places.clear()
        _write(report_path(self.folder, number), json.dumps(dataclasses.asdict(report), ensure_ascii=False))
        return report


def _count(counts: dict, kind: str, split: str, record: ImageTextRecord | TextPair) -> int:
    of_split = counts.setdefault(kind, {}).setdefault(split, {"records": 0, "texts": 0, "languages": {}})
    if kind == TEXT_PAIRS:
        languages = {"-".join(sorted((record.language_a, record.language_b))): 1}
    else:
        languages = collections.Counter(record.languages)
    of_split["records"] += 1
    of_split["texts"] += sum(languages.values())
    for language, count in languages.items():
        of_split["languages"][language] = of_split["languages"].get(language, 0) + count
    return sum(languages.values())


def _write(path: pathlib.Path, text: str) -> None:
    temporary = path.with_name(path.name + PARTIAL)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
