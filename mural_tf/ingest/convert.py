"""Runs a conversion: workers side by side, resumed where it stopped, joined to a data set at the end.

While it runs, everything lies in a hidden folder beside the output: `plan.json` (what is converted and how), the
sources' indexes, and for every finished block its parts and report. Running the same command again reads the input
again but converts only the blocks whose report is missing.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from mural_tf.data.dataset_folder import DESCRIPTION, is_built
from mural_tf.errors import UserError
from mural_tf.files import exclusive_lock, publish, remove_partial, whole, write_whole
from mural_tf.ingest.blocks import Block, map_blocks, read_blocks
from mural_tf.ingest.captioned_sets import Coco, CocoCn, Karpathy, Multi30k
from mural_tf.ingest.filters import Screen, count_frequent, hash_evaluation_images
from mural_tf.ingest.img2dataset import Img2dataset
from mural_tf.ingest.own_records import OwnRecords
from mural_tf.ingest.source import Pair, Settings, Source, Tally
from mural_tf.ingest.translated_captions import build_translations
from mural_tf.ingest.translations import GoogleTranslations, Lines, Opus, Opus100, PairsTsv, Tatoeba, Tmx
from mural_tf.ingest.web_captions import CaptionsTsv, Cc3m, Cc12m, Coyo, Laion, Uc2
from mural_tf.ingest.wit import Wit

FORMAT = 2  # raised when the same input would give other bytes than before
PLAN = "plan.json"
SKIPPED = "skipped.tsv"
_KINDS = (
    *(Cc3m, Cc12m, Uc2, CaptionsTsv, Img2dataset, Coyo, Laion, Wit),
    *(Coco, Karpathy, CocoCn, Multi30k),
    *(Opus, Opus100, Lines, Tatoeba, PairsTsv, Tmx, GoogleTranslations, OwnRecords),
)
KINDS: dict[str, type[Source]] = {cls.KIND: cls for cls in _KINDS}  # by the name that the command line knows


def convert(
    sources: Sequence[Source],
    output: str | pathlib.Path,
    settings: Settings,
    restart: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Converts the sources into the data set folder `output`, which appears when it is complete.

    The same sources and settings give the same bytes. Stopped in any way, the same call goes on after the last
    finished block; with `restart` it starts again. With workers, a script calls it below `if __name__ == "__main__":`.

    Raises:
      UserError: unusable sources, too much of them skipped, another data set in `output`, an unfinished
        conversion of something else beside it, or a full disk.
      OSError: any other failed file operation.
    """
    output = pathlib.Path(output)
    identity = describe_input(sources, settings)
    folder = output.parent / f".{output.name}.converting"
    if is_built(output, identity):
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed after its last step but one
        return output
    output.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(output.parent / f".{output.name}.lock"):
        if is_built(output, identity):  # another process finished it while we waited
            return output
        _open_folder(folder, identity, restart)
        try:
            _prepare(sources, settings, folder, progress)
            numbers, tally = _convert_blocks(sources, settings, folder, progress)
        except KeyboardInterrupt:
            message = "Interrupted. Finished blocks are kept: run the same command again to go on."
            raise KeyboardInterrupt(message) from None
        tally.check(settings.max_skipped_fraction, at_end=True)
        assemble(folder, output, identity, numbers, tally, settings.shard_megabytes)
    return output


def _prepare(sources: Sequence[Source], settings: Settings, folder: pathlib.Path, progress: bool) -> None:
    """Prepares what must be known before the first block, unless it is there already."""
    for index, source in enumerate(sources):
        source.prepare(folder / f"source-{index}", progress)
    if settings.evaluation_images:
        hash_evaluation_images(settings.evaluation_images, folder, progress)
    if settings.translations:
        build_translations(settings.translations, settings.translation_languages, folder)
    count_frequent(sources, settings, folder, progress)


def describe_input(sources: Sequence[Source], settings: Settings) -> dict:
    """Returns what identifies a conversion, as JSON values: kinds, options, files with their sizes, settings."""
    described = []
    for source in sources:
        files = [[str(path), os.path.getsize(path)] for path in source.input_files()]
        options = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(source).items() if name[0] != "_"}
        described.append({"kind": source.KIND, **options, "files": files})
    identity = {"name": "converted", "format": FORMAT, "sources": described, "settings": settings.identity()}
    return json.loads(json.dumps(identity))


def _open_folder(folder: pathlib.Path, identity: dict, restart: bool) -> None:
    plan = folder / PLAN
    if restart:
        shutil.rmtree(folder, ignore_errors=True)
    if plan.is_file() and json.loads(plan.read_text(encoding="utf-8")) == identity:
        remove_partial(folder)
        return
    if any((folder / "parts").glob("*.json")):
        raise UserError(
            f"{folder} holds an unfinished conversion of other sources or with other settings: run that one to its "
            "end, or start again with --restart."
        )
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "parts").mkdir(parents=True)
    write_whole(plan, json.dumps(identity, ensure_ascii=False))


def _convert_blocks(sources, settings: Settings, folder: pathlib.Path, progress: bool) -> tuple[list[int], Tally]:
    """Converts what is not converted yet; returns the blocks' numbers and the sum of their tallies."""
    numbers: list[int] = []
    tally, positions = Tally(), {}
    total = sum(source.size() for source in sources)
    with tqdm(total=total, unit="B", unit_scale=True, desc="Converting", disable=not progress) as bar:

        def pending() -> Iterator[Block]:
            for block in read_blocks(sources, settings, folder):
                numbers.append(block.number)
                positions[block.number] = block.position
                report = read_report(folder, block.number)
                if report is None:
                    yield block
                else:
                    finished(block.number, report)

        def finished(number, report):
            tally.add(report.tally)
            bar.update(max(0, positions.pop(number) - bar.n))
            bar.set_postfix_str(f"{tally.written} written, {tally.skipped.total} skipped", refresh=False)
            tally.check(settings.max_skipped_fraction)

        for number, report in map_blocks(pending(), settings.workers, Converter, (list(sources), settings, folder)):
            finished(number, report)
    in_order = Tally()  # so that "first" means first in the input, whichever worker was faster
    for number in numbers:
        in_order.add(read_report(folder, number).tally)
    return numbers, in_order


class Converter:
    """Turns blocks into parts. One per process, which then imports TensorFlow; what it needs from disk is read once."""

    def __init__(self, sources: Sequence[Source], settings: Settings, folder: pathlib.Path):
        self.sources, self.folder = sources, folder
        self.screen = Screen(settings, folder)

    def __call__(self, block: Block) -> BlockReport:
        """Writes the block's parts and, last, its report."""
        import tensorflow as tf

        from mural_tf.data.records import serialize

        counts: dict = {}
        writers: dict[tuple[str, str], tf.io.TFRecordWriter] = {}
        try:
            with contextlib.ExitStack() as stack:
                for kind, split, record in self._records(block):
                    if (kind, split) not in writers:
                        partial = stack.enter_context(whole(part_path(self.folder, block.number, kind, split)))
                        writers[kind, split] = stack.enter_context(tf.io.TFRecordWriter(str(partial)))
                    writers[kind, split].write(serialize(record))
                    block.tally.written += _count(counts, kind, split, record)
        except tf.errors.OpError as error:  # how TensorFlow's writer reports a full disk
            raise UserError(f"Cannot write to {self.folder}: {error.message}. Free space there.") from None
        sizes = {key: os.path.getsize(part_path(self.folder, block.number, *key)) for key in sorted(writers)}
        report = BlockReport(block.tally, [[*key, size] for key, size in sizes.items()], counts)
        write_report(self.folder, block.number, report)
        return report

    def _records(self, block: Block) -> Iterator[tuple[str, str, Any]]:
        """Yields (kind, split, record), as in data/records.py."""
        from mural_tf.data.records import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair

        for index, item in block.items:
            for found in self.sources[index].records(item, block.tally):
                if isinstance(found, Pair):
                    if self.screen.accepts_pair(found, block.tally):
                        values = (found.text_a, found.language_a, found.text_b, found.language_b, found.group)
                        yield TEXT_PAIRS, found.split, TextPair(*values)
                elif (accepted := self.screen.accepted(found, block.tally)) is not None:
                    captions, languages, groups, _ = zip(*accepted.texts)
                    record = ImageTextRecord(accepted.image_id, accepted.image, captions, languages, groups)
                    yield IMAGE_TEXT, accepted.split, record


def _count(counts: dict, kind: str, split: str, record) -> int:
    """Adds a record to `BlockReport.counts`; returns its captions, or 1 for a text pair."""
    of_split = counts.setdefault(kind, {}).setdefault(split, {"records": 0, "texts": 0, "languages": {}})
    if kind == "text_pairs":
        languages = {"-".join(sorted((record.language_a, record.language_b))): 1}
    else:
        languages = collections.Counter(record.languages)
    of_split["records"] += 1
    of_split["texts"] += sum(languages.values())
    for language, count in languages.items():
        of_split["languages"][language] = of_split["languages"].get(language, 0) + count
    return sum(languages.values())


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
    """Writes the places of what was skipped, and the report last: the block is finished then."""
    if report.tally.places:
        lines = "".join(f"{kind}\t{place}\n" for kind, place in report.tally.places)
        write_whole(places_path(folder, number), lines)
        report.tally.places.clear()
    write_whole(report_path(folder, number), json.dumps(dataclasses.asdict(report), ensure_ascii=False))


def assemble(
    folder: pathlib.Path, output: pathlib.Path, identity: dict, numbers: Sequence[int], tally: Tally, megabytes: int
) -> None:
    """Turns the folder of a finished conversion into `output`.

    TFRecord files are joined by appending one to the other; a part that is large enough becomes a shard by renaming.
    Every step can be repeated: a conversion that is killed here goes on here.

    Args:
      folder: the conversion's hidden folder, with the parts and reports of all blocks.
      output: the data set's folder.
      identity: opens `dataset.json`.
      numbers: of the blocks, in order.
      tally: of all blocks.
      megabytes: smallest size of a shard, except for the last of a split.
    """
    counts: dict = {}
    parts: dict[tuple[str, str], list[tuple[pathlib.Path, int]]] = {}
    for number in numbers:
        report = read_report(folder, number)
        for kind, split, size in report.parts:
            parts.setdefault((kind, split), []).append((part_path(folder, number, kind, split), size))
        _add(counts, report.counts)
    if not parts:
        raise UserError("Nothing to write: " + "; ".join(line.strip() for line in tally.lines()) + ".")
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
    publish(complete, output)
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
        with whole(shard) as partial, open(partial, "wb") as joined:
            for part in parts:
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, joined, 1 << 20)
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
