"""Adds to a data set's `dataset.json` what its files hold, where another program wrote them (docs/data.md).

    python -m mural_tf count data/mine --workers=8

Training then knows how many texts each language has, and that the files are whole, without reading them at its start.
Conversions write the same by themselves.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
from collections.abc import Iterator

import google_crc32c

from mural_tf.data import tfrecord
from mural_tf.data.record_format import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, UnusableRecord, parse_record
from mural_tf.data.skipped import CountsByKind
from mural_tf.errors import UserError
from mural_tf.files import as_path, open_path, read_json, remove_tree, write_whole
from mural_tf.progress import tqdm
from mural_tf.work import Engine, Stage, Step

AT_ONCE = 1 << 20  # bytes


class CountFile:
    """Counts what is in a file of records and writes that beside its like; made once in every worker."""

    def __init__(self, folder: pathlib.Path, done: pathlib.Path):
        self.folder, self.done = folder, done

    def __call__(self, job: tuple[int, str]) -> Iterator[int]:
        """Yields the file's number."""
        number, name = job
        found, problems = describe_file(self.folder, name)
        write_whole(self.done / f"{number}.json", json.dumps([name, found, problems], ensure_ascii=False))
        yield number


def describe_file(folder: pathlib.Path, name: str) -> tuple[dict, CountsByKind]:
    """Returns what a description says of a file of records, and what in it cannot be used."""
    path, languages, problems, records = folder / name, collections.Counter(), CountsByKind(), 0
    for index, (_, serialized) in enumerate(tfrecord.read_all(path, problems.add, open_path)):
        records += 1
        try:
            record = parse_record(serialized, name, index)
        except UnusableRecord as error:
            problems.add(error.kind, f"{name}, record {index}")
            continue
        if isinstance(record, ImageTextRecord):
            languages.update(record.languages)
        else:
            languages[f"{record.language_a} {record.language_b}"] += 1
    size, checksum = _checksum(path)
    found = {"bytes": size, "crc32c": checksum, "records": records, "languages": dict(sorted(languages.items()))}
    return found, problems


def files_of(folder: pathlib.Path) -> list[str]:
    """Returns the names of a data set's files of records, below its folder."""
    return [f"{kind}/{p.name}" for kind in (IMAGE_TEXT, TEXT_PAIRS) for p in sorted((folder / kind).glob("*.tfrecord"))]


def _checksum(path: pathlib.Path) -> tuple[int, str]:
    checksum, size = google_crc32c.Checksum(), 0
    with open_path(path, "rb") as file:
        while data := file.read(AT_ONCE):
            checksum.update(data)
            size += len(data)
    return size, checksum.hexdigest().decode()


def count_folder(folder: str | os.PathLike, workers: int = 2, beam: str = "", progress: bool = True) -> list[str]:
    """Counts the records of a data set in the project's format and writes `shards` into its `dataset.json`.

    Whoever runs it again after an interruption counts the rest.

    Args:
      folder: with image_text/*.tfrecord or text_pairs/*.tfrecord.
      workers, beam: as `Engine` takes them.
      progress: whether to show a bar.

    Returns:
      Lines that say what was found, and what is damaged.

    Raises:
      UserError: no such files, or a description that is damaged.
    """
    folder = as_path(folder)
    names = files_of(folder)
    if not names:
        raise UserError(f"No records in {folder}: expected {IMAGE_TEXT}/*.tfrecord or {TEXT_PAIRS}/*.tfrecord there.")
    description = read_json(folder / "dataset.json") if (folder / "dataset.json").is_file() else {}
    done, identity = folder / ".counting", [[name, (folder / name).stat().st_size] for name in names]
    plan = done / "plan.json"
    if not plan.is_file() or json.loads(plan.read_text(encoding="utf-8")) != identity:
        remove_tree(done)
        done.mkdir(parents=True)
        write_whole(plan, json.dumps(identity))
    finished = {path.name for path in done.glob("*.json")}
    jobs = [(number, name) for number, name in enumerate(names) if f"{number}.json" not in finished]
    with tqdm(desc="Counting records", unit=" files", total=len(names), disable=not progress) as bar:
        watch = lambda: bar.update(sum(1 for _ in done.glob("*.json")) - 1 - bar.n)  # noqa: E731
        Engine(workers, beam).run([Stage(jobs, [Step("Count", CountFile, (folder, done))])], done, watch)
    shards, problems = {}, CountsByKind()
    for number in range(len(names)):
        name, found, problems_of_file = json.loads((done / f"{number}.json").read_text(encoding="utf-8"))
        shards[name] = found
        problems.merge(CountsByKind(problems_of_file))
    text = json.dumps({**description, "shards": shards}, indent=1, ensure_ascii=False) + "\n"
    write_whole(folder / "dataset.json", text)
    remove_tree(done)
    records = sum(shard["records"] for shard in shards.values())
    return [*(f"Damaged: {line}" for line in problems.lines()), f"{records} records in {len(shards)} files of {folder}"]
