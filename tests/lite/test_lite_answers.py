"""What small functions answer: tests/snapshots/answers_of_lite.txt has calls, and the whole answer of each."""
# ruff: noqa: F401 - the calls use what is imported

import errno
import io
import json
import types
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict
from snapshots import assert_answers

import mural_lite
from mural_lite import (
    beam,
    config_file,
    dataset_folder,
    embedder,
    errors,
    files,
    hashes,
    hugging_face,
    img2dataset,
    printable,
    record_format,
    remote_folders,
    skipped,
    text_files,
    tfrecord,
    trust,
)  # fmt: skip
from mural_lite.config import base_config, prompts_of
from mural_lite.record_format import ImageTextRecord, TextPair
from mural_lite.skipped import CountsByKind, Tally
from mural_lite.text_files import Part, Unit


def defaults(branch):
    """The values of a branch of the configuration, "" for what is in none."""
    values = base_config().to_dict()
    if branch:
        return values[branch]
    return {name: value for name, value in values.items() if not isinstance(value, dict)}


def parsed(*more):
    """A configuration's changed fields."""
    stored = json.loads(json.dumps(base_config().to_dict(), default=list))
    for name, value in more:
        *parents, key = name.split(".")
        branch = stored
        for parent in parents:
            branch = branch[parent]
        branch[key] = value
    found = config_file.parse_config(stored, "config.json").to_dict()
    before = base_config().to_dict()
    changed = {name: value for name, value in found.items() if value != before[name]}
    for name, value in changed.items():
        if isinstance(value, dict):
            changed[name] = {key: one for key, one in value.items() if one != before[name].get(key)}
    return changed


def prompts(*entries):
    config = base_config()
    config.vocabulary.prompts = entries
    return prompts_of(config)


def records(record):
    """A record that is written and read, or what is read of bytes."""
    content = record if isinstance(record, bytes) else record_format.serialize(record)
    return record_format.parse_record(content, "a.tfrecord", 7)


def example(**values):
    made = record_format.Example()
    for name, value in values.items():
        made.features.feature[name].bytes_list.value.extend(value)
    return made.SerializeToString(deterministic=True)


def tallied(skip, left, written, *checks):
    tally = Tally(written=written)
    for place, (problem, count) in enumerate(skip):
        tally.skip(problem, f"t.csv:{place}", count)
    for problem, count in left:
        tally.leave_out(problem, "a\n b \udcff" + 300 * "x", count)
    other = Tally()
    other.add(tally)
    other.add(tally)
    tally.check(*checks)
    return tally.read, tally.lines(), tally.described(), tally.places, other.lines()


def skipped_to(content, begin):
    reader = io.BufferedReader(io.BytesIO(content))
    return text_files.skip_to(reader, Part(begin, 99))[0], reader.read()


def lines(content, begin=0, end=None):
    return list(text_files.bounded_lines(io.BytesIO(content[begin:]), Part(begin, end)))


class ResourceExhaustedError(Exception):
    """As TensorFlow's."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message


def is_image(value):
    return embedder._is_image(value)


def batch_sizes(*arguments):
    return [len(batch) for batch in embedder._batches(*arguments)]


def units_of(*arguments):
    return text_files.cut(Path("none.txt.gz"), *arguments)


@pytest.fixture(autouse=True)
def short_lines(monkeypatch):
    """Lines and blocks are shorter than the texts."""
    monkeypatch.setattr(text_files, "LONGEST_LINE", 5)
    monkeypatch.setattr(text_files, "_COUNTED_CHUNK", 2)


def test_answers():
    assert_answers("answers_of_lite", globals())
