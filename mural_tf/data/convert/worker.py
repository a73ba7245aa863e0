"""Converts one block: items to records to part files, and the block's report when they are complete."""

from __future__ import annotations

import collections
import os
import pathlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from mural_tf.config import PARTIAL, ConfigurationError
from mural_tf.data.convert.blocks import Block
from mural_tf.data.convert.report import BlockReport, part_path, write_report
from mural_tf.data.convert.screen import Screen
from mural_tf.data.convert.settings import Settings
from mural_tf.data.convert.source import Captioned, Pair, Source
from mural_tf.data.convert.tally import Tally
from mural_tf.data.records import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair, serialize


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
        report = BlockReport(tally, parts, counts)
        write_report(self.folder, block.number, report)
        return report

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
