"""What a finished block leaves behind: its parts, and the report that says so."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib

from mural_tf.config import PARTIAL
from mural_tf.data.convert.tally import Tally


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


def write_report(folder: pathlib.Path, number: int, report: BlockReport) -> None:
    """Writes the places of what was skipped, and the report last: from then on the block is finished."""
    if report.tally.places:
        lines = "".join(f"{kind}\t{place}\n" for kind, place in report.tally.places)
        _write(places_path(folder, number), lines)
        report.tally.places.clear()
    _write(report_path(folder, number), json.dumps(dataclasses.asdict(report), ensure_ascii=False))


def _write(path: pathlib.Path, text: str) -> None:
    temporary = path.with_name(path.name + PARTIAL)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
