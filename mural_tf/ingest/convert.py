"""Converts sources to a data set: planned, decided, written and finished.

1. *Plan*: files are cut into units, and units grouped into shards; the same files and settings give the same plan.
2. *Decide*, only where something depends on all data: see decide.py.
3. *Write*: a worker makes the records of a shard's units and, last, its manifest: counts, what was skipped, checksums.
4. *Finish*: shards get their names, `dataset.json` the sums of the manifests, and the folder its name.

While it runs, everything lies in a hidden folder next to the output. The same command again makes the shards that have
no manifest yet. Engines may repeat a shard: they write the same bytes under another name and rename it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import heapq
import itertools
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

import google_crc32c

from mural_lite import shards
from mural_lite.dataset_folder import DESCRIPTION
from mural_lite.errors import UserError
from mural_lite.files import as_path, atomic_file, write_whole
from mural_lite.hashes import bytes_hash, text_hash
from mural_lite.progress import tqdm
from mural_lite.record_format import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair, serialize
from mural_lite.shards import Manifest, Part
from mural_lite.skipped import Tally
from mural_lite.text_files import Unit
from mural_lite.tfrecord import framed
from mural_lite.work import Step
from mural_tf.data.dataset_builder import counts_of, paths_and_sizes
from mural_tf.ingest.decide import SAME_IMAGE, SAME_PAIR, Look, Request, decide
from mural_tf.ingest.filters import Screen, hash_evaluation_images, hash_excluded, image_files
from mural_tf.ingest.source import Captioned, Kinds, Pair, Reading, Settings, Source, find_files
from mural_tf.ingest.translated_captions import translation_files

FORMAT = 6  # raised when the same input would give other bytes than before
SKIPPED = "skipped.tsv"
KINDS = Kinds({  # {name on the command line: "file of sources/:class"}
    "cc3m": "web_captions:Cc3m", "cc12m": "web_captions:Cc12m", "uc2": "web_captions:Uc2",
    "captions": "web_captions:CaptionsTsv", "img2dataset": "img2dataset:Img2dataset", "wit": "wit:Wit",
    "coco": "captioned_sets:Coco", "karpathy": "captioned_sets:Karpathy", "coco_cn": "captioned_sets:CocoCn",
    "multi30k": "captioned_sets:Multi30k", "opus": "translations:Opus", "lines": "translations:Lines",
    "tatoeba": "translations:Tatoeba", "pairs": "translations:Pairs", "records": "own_records:OwnRecords",
})  # fmt: skip


def convert(
    sources: Sequence[Source],
    output: str | os.PathLike,
    settings: Settings,
    restart: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Writes the records of the sources as the data set folder `output`, which appears when it is complete.

    The same sources, in any order, and settings give the same bytes. Stopped in any way, the same call goes on with
    the shards that are not finished. With workers, a script calls it below `if __name__ == "__main__":`.

    Args:
      sources: the sources, at least one.
      output: the folder of the data set.
      settings: the settings of the conversion.
      restart: whether to start again in place of going on with an unfinished conversion.
      progress: whether to show bars.

    Returns:
      The folder of the data set.

    Raises:
      UserError: unusable sources, too much of them skipped, another data set in `output`, an unfinished
        conversion of something else next to it, or a full disk.
      OSError: any other failed file operation.
    """
    settings.engine()  # raises for flags of Beam that do not fit, before anything is read
    output = as_path(output)
    sources = in_order(sources)
    for source in sources:
        source.check()
    identity = describe_input(sources, settings)
    folder = work_folder(output)
    with shards.work_in(folder, output, identity, restart, DESCRIPTION, "data set") as unfinished:
        if unfinished:
            (folder / "decided").mkdir(exist_ok=True)
            plan = make_plan(sources, settings, folder)
            _write_hashes(settings, folder, progress)
            _decide_and_write(plan, settings, progress)
            assemble_data_set(plan, output, identity, settings)
    return output


def in_order(sources: Sequence[Source]) -> list[Source]:
    """Returns the sources sorted by kind and options: the order on the command line does not count."""
    return sorted(sources, key=lambda source: json.dumps([source.KIND, _options(source)]))


def _options(source: Source) -> dict:
    """Returns {option: value} of a source as JSON values: a tuple is a list."""
    options = {}
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        if isinstance(value, tuple):
            value = list(value)
        options[field.name] = value
    return options


def work_folder(output: pathlib.Path) -> pathlib.Path:
    """Returns the folder of an unfinished conversion to `output`."""
    return output.parent / f".{output.name}.converting"


def describe_input(sources: Sequence[Source], settings: Settings) -> dict:
    """Returns a conversion's identity as JSON values: {"name", "format", "sources": [{option: value}], "settings"}.

    A source has its files with their sizes as the option "files". If settings name files, "files_of_settings" has a
    digest of these, {setting: 16 hexadecimal digits}.
    """
    descriptions = []
    for source in sources:
        files = paths_and_sizes(source.input_files())
        descriptions.append({"kind": source.KIND, **_options(source), "files": files})
    identity = {"name": "converted", "format": FORMAT, "sources": descriptions, "settings": settings.identity()}
    digests = {}
    for name, files in _files_of_settings(settings).items():
        digests[name] = f"{bytes_hash(json.dumps(files).encode()):016x}"
    if digests:
        identity["files_of_settings"] = digests
    return json.loads(json.dumps(identity))  # tuples become lists, as they are read from a file


def _files_of_settings(settings: Settings) -> dict[str, list]:
    """Returns {setting: its files, [path, size] each} of the settings that name files.

    In a store an evaluation image is only its path: there are many, and each size would be a request.
    """
    excluded_texts = paths_and_sizes(itertools.chain.from_iterable(map(find_files, settings.exclude_texts)))
    evaluation_images = []
    for path in image_files(settings.evaluation_images):
        is_local = isinstance(path, pathlib.Path)
        evaluation_images += paths_and_sizes([path]) if is_local else [str(path)]
    translations = itertools.chain.from_iterable(map(translation_files, settings.translations))
    files = {
        "exclude_texts": excluded_texts,
        "evaluation_images": evaluation_images,
        "translations": paths_and_sizes(translations),
    }
    return {setting: descriptions for setting, descriptions in files.items() if getattr(settings, setting)}


def _write_hashes(settings: Settings, folder: pathlib.Path, progress: bool) -> None:
    """Writes the hashes of evaluation images and of excluded texts, which all workers share, unless they are there."""
    if settings.evaluation_images:
        hash_evaluation_images(settings.evaluation_images, folder / "decided", progress)
    if settings.exclude_texts:
        hash_excluded(settings.exclude_texts, folder / "decided")


# The plan.


@dataclasses.dataclass
class Plan:
    """The plan of a conversion.

    Attributes:
      request: the sources, their units, the settings and the folder of decisions.
      shards: for each shard the numbers of its units.
      folder: the folder of the unfinished conversion.
    """

    request: Request
    shards: list[list[int]]
    folder: pathlib.Path

    @property
    def size(self) -> int:
        """The bytes of all units, as they lie in files, which will be read."""
        return sum(unit.size for _, unit in self.request.units)

    def units_of(self, shard: int) -> list[Unit]:
        """Returns the units of a shard."""
        units = []
        for number in self.shards[shard]:
            _, unit = self.request.units[number]
            units.append(unit)
        return units

    def size_of(self, shard: int) -> int:
        """Returns the bytes that a shard reads."""
        return sum(unit.size for unit in self.units_of(shard))


def make_plan(sources: Sequence[Source], settings: Settings, folder: pathlib.Path) -> Plan:
    """Returns the plan of a conversion: the sources' files are cut into units, and these are grouped into shards.

    A shard holds text pairs or images. Its units are from all sources, in proportion to their sizes, as far as there
    are enough; with `settings.shuffle` a hash deals them out.

    Args:
      sources: the sources, in the order of `in_order`.
      settings: the settings of the conversion.
      folder: the folder of the unfinished conversion.
    """
    units = []
    for source_number, source in enumerate(sources):
        units += [(source_number, unit) for unit in source.units(settings.unit_bytes)]
    request = Request(sources, units, settings, folder / "decided")
    groups: list[list[int]] = []
    for item_type in dict.fromkeys(sources[source_number].ITEM for source_number, _ in units):  # each type once
        numbers = [
            number for number, (source_number, _) in enumerate(units) if sources[source_number].ITEM == item_type
        ]
        groups += _grouped(_mixed(numbers, units, settings.shuffle), units, settings.shard_megabytes * 1_000_000)
    return Plan(request, groups, folder)


def _mixed(numbers: Sequence[int], units: Sequence[tuple[int, Unit]], shuffle: bool) -> list[int]:
    """Returns the numbers of units in the order in which shards take them.

    Args:
      numbers: the numbers of the units, which are indices of `units`.
      units: (number of the source, unit).
      shuffle: whether a hash of a unit's number and path decides the order. Otherwise it is the share of the source
        that comes before the unit: first the beginnings of all sources, last their ends.
    """

    def shuffle_key(number: int) -> int:
        _, unit = units[number]
        return text_hash(f"{number}\t{unit.path}")

    if shuffle:
        return sorted(numbers, key=shuffle_key)
    total_weights = collections.Counter()  # {number of a source: weight of all its units}
    for number in numbers:
        source_number, unit = units[number]
        total_weights[source_number] += max(1, unit.weight)  # above 0, because shares divide by it
    weights_so_far = collections.Counter()
    share_before = {}
    for number in numbers:
        source_number, unit = units[number]
        share_before[number] = weights_so_far[source_number] / total_weights[source_number]
        weights_so_far[source_number] += max(1, unit.weight)
    return sorted(numbers, key=lambda number: (share_before[number], number))


def _grouped(numbers: Sequence[int], units: Sequence[tuple[int, Unit]], least: int) -> list[list[int]]:
    """Returns the numbers of units in groups of at least `least` bytes of records, in order.

    A last group of less than half of this joins the group before it.
    """
    groups: list[list[int]] = [[]]
    size = 0
    for number in numbers:
        if size >= least and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(number)
        _, unit = units[number]
        size += unit.weight  # about how many bytes its records have
    if len(groups) > 1 and size < least // 2:
        rest = groups.pop()
        groups[-1] += rest
    return groups


# The work.


def _decide_and_write(plan: Plan, settings: Settings, progress: bool) -> None:
    """Takes the decisions that are missing, and writes all shards that are missing, with bars."""
    missing_shards = shards.missing_shards(plan.folder, len(plan.shards))
    if not missing_shards:  # killed before the end: nothing is left but `assemble_data_set`
        return
    for stage in plan.request.stages():
        _write_rows(plan, stage, progress)
        decide(plan.request, stage)
    sizes = [plan.size_of(shard) for shard in range(len(plan.shards))]
    with tqdm(total=plan.size, unit="B", unit_scale=True, desc="Converting", disable=not progress) as bar:
        watch = shards.Watch(plan.folder, sizes, settings.max_skipped_fraction, bar, Tally())
        settings.engine().map(Step("Write", WriteShard, (plan,)), missing_shards, plan.folder, watch)


def _write_rows(plan: Plan, stage: Sequence[str], progress: bool) -> None:
    """Writes the rows by which the decisions of a stage are taken, as far as they are missing, with a bar."""
    request = plan.request
    jobs = request.jobs(stage)
    with tqdm(total=len(jobs), unit=" units", desc=f"Deciding {', '.join(stage)}", disable=not progress) as bar:

        def update_bar() -> None:
            finished_jobs = len(jobs) - len(request.jobs(stage))
            bar.update(finished_jobs - bar.n)

        request.settings.engine().map(Step("Look", Look, (request, stage)), jobs, plan.folder, update_bar)


# Writing a shard.


class WriteShard:
    """Makes a shard of its units; made once in every worker. The same shard gives the same bytes."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.settings = plan.request.settings
        self.screen = Screen(self.settings, plan.request.folder)
        self.names = plan.request.names()
        self.duplicate_kinds = plan.request.duplicates()

    def __call__(self, number: int) -> None:
        """Writes the parts of the shard `number` and, last, its manifest."""
        tally = Tally()
        writers: dict[tuple[str, str], PartWriter] = {}  # {(type of records, split): writer}
        folder = self.plan.folder / "parts"
        with contextlib.ExitStack() as stack:
            for record_type, split, record, languages in self._records(number, tally):
                if (record_type, split) not in writers:
                    writer = PartWriter(folder, number, record_type, split, self.settings)
                    writers[record_type, split] = stack.enter_context(writer)
                writers[record_type, split].add(record, languages)
                tally.written += sum(languages.values())
        parts = itertools.chain.from_iterable(writer.parts for writer in writers.values())
        units = [[unit.path, unit.number, unit.parts, unit.size] for unit in self.plan.units_of(number)]
        manifest = Manifest(tally, sorted(parts, key=lambda part: part.name), units)
        shards.write_manifest(self.plan.folder, number, manifest)

    def _records(self, shard: int, tally: Tally) -> Iterator[tuple[str, str, bytes, dict[str, int]]]:
        """Yields (type of the record, split, serialised record, {language: number of texts}) of a shard's records.

        A text pair counts as one text in "de en". `tally` counts the texts that are skipped or left out.
        """
        for source, item, reading in self._items(shard, tally):
            for parsed in source.records(item, reading):
                if isinstance(parsed, Pair):
                    if self._accepts_pair(parsed, reading):
                        text_a, language_a, text_b, language_b, group, _, split = parsed
                        pair = TextPair(text_a, language_a, text_b, language_b, group)
                        yield TEXT_PAIRS, split, serialize(pair), {f"{language_a} {language_b}": 1}
                    continue
                accepted = self._accepted(parsed, reading)
                if accepted is not None:
                    captions, languages, groups, _ = zip(*accepted.texts)
                    record = ImageTextRecord(accepted.image_id, accepted.image, captions, languages, groups)
                    yield IMAGE_TEXT, accepted.split, serialize(record), collections.Counter(languages)

    def _accepted(self, captioned: Captioned, reading: Reading) -> Captioned | None:
        """Returns an image for a record, with the captions that pass all filters, or `None`; counts all others."""
        accepted = self.screen.accepted_texts(captioned, reading)
        if accepted is None or not self.screen.accepts_image(accepted, reading):
            return None
        accepted = reading.decided.without_duplicates(accepted, reading, self.duplicate_kinds)
        if accepted is None:
            return None
        return self.screen.record_of(accepted, reading)

    def _accepts_pair(self, pair: Pair, reading: Reading) -> bool:
        """Whether a pair passes the filters and is not a duplicate; `reading.tally` counts any other pair."""
        if not self.screen.accepts_pair(pair, reading.tally):
            return False
        for duplicate_kind in self.duplicate_kinds:
            if duplicate_kind == SAME_IMAGE:  # a pair of texts has no image
                continue
            if reading.decided.is_duplicate_pair(pair, duplicate_kind):
                reading.tally.leave_out(SAME_PAIR, pair.place)
                return False
        return True

    def _items(self, shard: int, tally: Tally) -> Iterator[tuple[Source, Any, Reading]]:
        """Yields (source, item, reading of the item's unit) of a shard's items.

        All units are read side by side, `SIDE_BY_SIDE` items at a time, in proportion to their sizes.
        """
        request = self.plan.request
        queue: list[tuple[float, int]] = []  # a heap of (items read so far per byte of a unit, the unit's number)
        streams = {}
        for number in self.plan.shards[shard]:
            source_number, unit = request.units[number]
            reading = Reading(tally, request.decided(number, self.names))
            source = request.sources[source_number]
            streams[number] = (source, source.read(unit, reading), reading)
            heapq.heappush(queue, (0.0, number))
        while queue:
            progress, number = heapq.heappop(queue)  # the unit of which the least is read
            source, items, reading = streams[number]  # `items` go on where they were left
            for count, item in enumerate(items, start=1):
                yield source, item, reading
                if count == SIDE_BY_SIDE:
                    _, unit = request.units[number]
                    heapq.heappush(queue, (progress + count / max(1, unit.weight), number))
                    break


SIDE_BY_SIDE = 100  # items taken from a unit at a time


class PartWriter:
    """Writes a shard's records of one type and split to files of about the size that shards should have.

    Attributes:
      parts: the finished files.
    """

    def __init__(self, folder: pathlib.Path, shard: int, record_type: str, split: str, settings: Settings):
        self._name = f"{shard:06d}.{record_type}.{split}"
        self._folder = folder
        self._record_type = record_type
        self._split = split
        self._most_bytes = settings.shard_megabytes * 1_500_000  # half more than a shard should have; 0: no bound
        self._shuffle = settings.shuffle
        self.parts: list[Part] = []
        self._stack = contextlib.ExitStack()
        self._part: Part | None = None  # the file that is being written

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *failure) -> None:
        if failure[0] is None and self._part is not None:
            self._close()
        self._stack.__exit__(*failure)  # after a failure it removes the unfinished file

    def add(self, record: bytes, languages: dict[str, int]) -> None:
        """Writes a record, or, where records are shuffled, keeps it until the file is closed.

        Args:
          record: the serialised record.
          languages: {language: number of the record's texts}.
        """
        if self._part is None:
            self._open()
        data = framed(record)
        part = self._part
        if self._shuffle:
            self._kept.append(data)
        else:
            self._write(data)
        part.bytes += len(data)
        part.records += 1
        for language, count in languages.items():
            part.texts += count
            part.languages[language] = part.languages.get(language, 0) + count
        if self._most_bytes and part.bytes >= self._most_bytes:
            self._close()

    def _open(self) -> None:
        """Opens the next file, without records or a checksum yet."""
        name = f"{self._name}.{len(self.parts):04d}.tfrecord"
        self._part = Part(
            kind=self._record_type, split=self._split, name=name, bytes=0, crc32c="", records=0, texts=0, languages={}
        )
        partial = self._stack.enter_context(atomic_file(self._folder / name))
        self._file: IO[bytes] = self._stack.enter_context(partial.open("wb"))
        self._kept: list[bytes] = []
        self._checksum = google_crc32c.Checksum()

    def _write(self, data: bytes) -> None:
        """Writes bytes to the file, and adds them to its checksum."""
        self._file.write(data)
        self._checksum.update(data)

    def _close(self) -> None:
        """Writes the kept records in the order of their hashes, and adds the file to the finished files."""
        for data in sorted(self._kept, key=bytes_hash):
            self._write(data)
        self._stack.close()
        self._part.crc32c = self._checksum.hexdigest().decode()
        self._part.languages = dict(sorted(self._part.languages.items()))
        self.parts.append(self._part)
        self._part = None


# The end.


def assemble_data_set(plan: Plan, output: pathlib.Path, identity: dict, settings: Settings) -> None:
    """Turns the folder of finished shards into the data set `output`; every step can be repeated after a kill.

    Args:
      plan: the plan, all shards of which are finished.
      output: the folder of the data set.
      identity: the conversion's identity, see `describe_input`.
      settings: the settings of the conversion.

    Raises:
      UserError: a part is not as its manifest says, too much was skipped, or there is nothing to write.
    """
    folder = plan.folder
    tally = Tally()
    parts: dict[tuple[str, str], list[Part]] = {}  # {(type of records, split): parts}
    for manifest in shards.read_manifests(folder, len(plan.shards), tally, settings.max_skipped_fraction):
        for part in manifest.parts:
            parts.setdefault((part.kind, part.split), []).append(part)
    if not parts:
        raise UserError("Nothing to write: " + "; ".join(line.strip() for line in tally.lines()) + ".")
    complete = shards.complete_folder(folder, output)
    files: dict[str, dict] = {}
    for (record_type, split), split_parts in sorted(parts.items()):
        (complete / record_type).mkdir(parents=True, exist_ok=True)
        for index, part in enumerate(split_parts):
            name = f"{record_type}/{split}-{index:05d}-of-{len(split_parts):05d}.tfrecord"
            shards.rename_part(folder, part, complete / name)
            files[name] = {field: getattr(part, field) for field in ("bytes", "crc32c", "records", "languages")}
    shards.join_skipped(folder, len(plan.shards), complete / SKIPPED)
    description = {**identity, **counts_of(files), **tally.described(), "shards": files}
    text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    write_whole(complete / DESCRIPTION, text)
    shards.publish_work(folder, output)


def describe_plan(sources: Sequence[Source], output: str | os.PathLike, settings: Settings) -> str:
    """Returns a text on the sizes, sources, steps and engine of a conversion, which is planned but not run.

    Args:
      sources, output, settings: as `convert` takes them.

    Raises:
      UserError: a source is unusable.
    """
    sources = in_order(sources)
    for source in sources:
        source.check()
    plan = make_plan(sources, settings, work_folder(as_path(output)))
    units = len(plan.request.units)
    lines = [f"{units} units of {len(sources)} sources, {plan.size:,} bytes, to {len(plan.shards)} shards"]
    lines += [f"  {source.KIND}:{source.path}, {len(source.input_files())} files" for source in sources]
    decisions = [f"Look | Decide {', '.join(stage)}" for stage in plan.request.stages()]
    lines.append(f"Steps: {' | '.join([*decisions, 'Write'])}")
    lines += settings.engine().describe()
    return "\n".join([*lines, f"Output: {output}"])
