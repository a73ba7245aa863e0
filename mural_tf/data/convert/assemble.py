"""Joins the parts of a finished conversion to shards and writes `dataset.json`.

TFRecord files can be joined by appending one to the other. A part that is large enough becomes a shard by renaming.
Every step can be repeated: a conversion that is killed here goes on here.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Sequence

from mural_tf.config import PARTIAL, ConfigurationError
from mural_tf.data.convert.report import part_path, places_path, read_report
from mural_tf.data.convert.tally import Tally
from mural_tf.data.dataset_folder import DESCRIPTION

SKIPPED = "skipped.tsv"


def assemble(
    folder: pathlib.Path, output: pathlib.Path, identity: dict, numbers: Sequence[int], tally: Tally, megabytes: int
) -> None:
    """Turns the folder of a finished conversion into `output`.

    Args:
      folder: the conversion's hidden folder, with the parts and reports of all blocks.
      output: the data set's folder.
      identity: opens `dataset.json`.
      numbers: of the blocks, in order.
      tally: of all blocks.
      megabytes: least size of a shard, but for the last of a split.
    """
    counts: dict = {}
    parts: dict[tuple[str, str], list[tuple[pathlib.Path, int]]] = {}
    for number in numbers:
        report = read_report(folder, number)
        for kind, split, size in report.parts:
            parts.setdefault((kind, split), []).append((part_path(folder, number, kind, split), size))
        _add(counts, report.counts)
    if not parts:
        raise ConfigurationError("Nothing to write: " + "; ".join(line.strip() for line in tally.lines()) + ".")
    complete = folder / "complete"
    for (kind, split), files in sorted(parts.items()):
        (complete / kind).mkdir(parents=True, exist_ok=True)
        groups = _groups(files, megabytes * 1_000_000)
        for index, group in enumerate(groups):
            _join(group, complete / kind / f"{split}-{index:05d}-of-{len(groups):05d}.tfrecord")
    _write_skipped([places_path(folder, number) for number in numbers], complete / SKIPPED)
    description = {**identity, **_description(counts, tally)}
    text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    (complete / DESCRIPTION).write_text(text, encoding="utf-8")
    if output.exists():
        output.rmdir()  # empty, or `is_built` would have raised
    os.replace(complete, output)
    shutil.rmtree(folder)


def _groups(files: Sequence[tuple[pathlib.Path, int]], least: int) -> list[list[pathlib.Path]]:
    """Divides parts, in order, into groups of at least `least` bytes; a small rest joins the last group."""
    groups: list[list[pathlib.Path]] = [[]]
    size = 0
    for path, part_size in files:
        if size >= least and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += part_size
    if len(groups) > 1 and size < least // 2:
        rest = groups.pop()
        groups[-1] += rest
    return groups


def _join(parts: Sequence[pathlib.Path], shard: pathlib.Path) -> None:
    """Makes one file of the parts, which are gone afterwards; does nothing if it is there already."""
    if not shard.exists():
        if len(parts) == 1:
            os.replace(parts[0], shard)
            return
        temporary = shard.with_name(shard.name + PARTIAL)
        with open(temporary, "wb") as joined:
            for part in parts:
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, joined, 1 << 20)
        os.replace(temporary, shard)
    for part in parts:
        part.unlink(missing_ok=True)


def _write_skipped(files: Sequence[pathlib.Path], path: pathlib.Path) -> None:
    """Lists kind and place of everything skipped; there is no file where nothing was."""
    files = [file for file in files if file.exists()]
    if files:
        with open(path, "wb") as joined:
            for file in files:
                joined.write(file.read_bytes())


def _add(counts: dict, more: dict) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            _add(counts.setdefault(key, {}), value)
        else:
            counts[key] = counts.get(key, 0) + value


def _description(counts: dict, tally: Tally) -> dict:
    """What `dataset.json` says of the records, in the words of the emoji benchmark's."""
    images = counts.get("image_text", {})
    pairs = counts.get("text_pairs", {})
    languages: dict = {}
    for kind, splits in counts.items():
        for split, of_split in splits.items():
            for language, count in of_split["languages"].items():
                languages.setdefault(language, {}).setdefault(kind, {})[split] = count
    return {
        "counts": {
            "image_text": {split: {"images": c["records"], "captions": c["texts"]} for split, c in images.items()},
            "text_pairs": {split: c["records"] for split, c in pairs.items()},
        },
        "languages": dict(sorted(languages.items())),
        "skipped": {kind: {"count": count, "first": first} for kind, (count, first) in tally.skipped.items()},
        "left_out": {kind: {"count": count, "first": first} for kind, (count, first) in tally.left_out.items()},
    }
