"""Fields of items, such as the brand of a product: the file that holds those of a data set, and filters by them."""

from __future__ import annotations

import array
import collections
import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mural_tf.errors import UserError
from mural_tf.files import as_path
from mural_tf.hashes import text_hash
from mural_tf.remote_folders import local_copy
from mural_tf.search.items import Item, ItemTable, is_fields
from mural_tf.text_files import bounded_lines, is_text, parse_object

FILE = "fields.jsonl"  # beside dataset.json: a line {"image_id": …, "fields": {name: text}} an image


class Filter(NamedTuple):
    """Finds only items whose field `name` is `value`."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def parse_filters(texts: Iterable[str]) -> tuple[Filter, ...]:
    """Returns the filters that "name=value" stand for; raises `UserError` for anything else."""
    filters = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip()):
            raise UserError(f"The filter {text!r} is not of the form name=value, such as brand=acme.")
        filters.append(Filter(name.strip(), value.strip()))
    return tuple(dict.fromkeys(filters))


def rows_of(items: Sequence[Item], filters: Sequence[Filter]) -> np.ndarray:
    """Returns the rows, int64 [K] rising, that have one of the values wanted of every field that is named."""
    values = collections.defaultdict(set)
    for name, value in filters:
        values[name].add(value)
    found = [_rows_with(items, name, wanted) for name, wanted in values.items()]
    return functools.reduce(np.intersect1d, found)


def _rows_with(items: Sequence[Item], name: str, values: set[str]) -> np.ndarray:
    rows = {row for value in values for row in _candidates(items, name, value)}
    return np.array(sorted(row for row in rows if items[row].fields.get(name) in values), np.int64)


def _candidates(items: Sequence[Item], name: str, value: str) -> Iterable[int]:
    return items.rows_holding(name, value) if isinstance(items, ItemTable) else range(len(items))


LOOKED_AT = 10_000  # items, evenly spread, that say which fields and values there are
FEW = 50  # values of a field that are offered; one of more is taken for a text or a number


def common_values(items: Sequence[Item], most: int = FEW) -> dict[str, list[str]]:
    """Returns the fields of the items and the values of each, the most frequent ones first; [] where they are many."""
    counts = collections.defaultdict(collections.Counter)
    for row in range(0, len(items), -(-len(items) // LOOKED_AT)):
        for name, value in items[row].fields.items():
            counts[name][value] += 1
    few = {name: [value for value, _ in of_name.most_common()] for name, of_name in sorted(counts.items())}
    return {name: values if len(values) <= most else [] for name, values in few.items()}


def describe_known(known: Mapping[str, Sequence[str]], filters: Sequence[Filter]) -> str:
    """Returns what the user of filters that nothing passes may want to know of the `common_values`."""
    unknown = [name for name, _ in filters if name not in known]
    if unknown:
        return f"fields are {', '.join(known)}" if known else "no item has fields"
    return "; ".join(f"{name} is {', '.join(known[name]) or 'of many values'}" for name, _ in filters)


def fields_file(record_file: str | os.PathLike) -> pathlib.Path | None:
    """Returns the file of fields of the data set that a file of records belongs to, None if it has none."""
    path = as_path(record_file).parent.parent / FILE
    return path if path.is_file() else None


class FieldsById:
    """The fields of a data set's images by their ids, read when they are asked for; 16 bytes a line in memory.

    Of several lines of one id the last counts. Raises `UserError` for a line that is damaged.
    """

    def __init__(self, path: pathlib.Path):
        self._path, self._file = path, open(local_copy(path), "rb")  # noqa: SIM115 - lives as long as this
        hashes, places = array.array("Q"), array.array("q")
        for place, image_id, _ in self._lines():
            hashes.append(text_hash(image_id))
            places.append(place)
        order = np.argsort(np.frombuffer(hashes, np.uint64), kind="stable")
        self._hashes, self._places = np.frombuffer(hashes, np.uint64)[order], np.frombuffer(places, np.int64)[order]

    def __call__(self, image_id: str) -> dict[str, str]:
        """Returns the fields of an image, {} if there are none."""
        wanted = np.uint64(text_hash(image_id))
        begin, end = np.searchsorted(self._hashes, wanted), np.searchsorted(self._hashes, wanted, side="right")
        for place in self._places[begin:end][::-1]:
            self._file.seek(place)
            found, fields = self._parse(self._file.readline(), place)
            if found == image_id:
                return fields
        return {}

    def _lines(self) -> Iterator[tuple[int, str, dict[str, str]]]:
        place = 0
        for line in bounded_lines(self._file):
            if line is None or line.strip():
                yield place, *self._parse(line or b"", place)
            place += len(line)

    def _parse(self, line: bytes, place: int) -> tuple[str, dict[str, str]]:
        try:
            values = parse_object(line)
        except ValueError:
            values = {}
        image_id, fields = values.get("image_id"), values.get("fields")
        if not (is_text(image_id) and is_fields(fields)):
            expected = '{"image_id": text, "fields": {name: text, …}}'
            raise UserError(f"{self._path}, byte {place}: expected a line {expected}; correct it, or make it again.")
        return image_id, {name: text for name, text in fields.items() if text}


@functools.lru_cache(maxsize=4)
def _opened(path: pathlib.Path, state: tuple) -> FieldsById:
    return FieldsById(path)


def fields_by_id(path: pathlib.Path | None) -> Callable[[str], dict[str, str]]:
    """Returns a function from an image's id to its fields in a data set's file of fields, if it has one.

    Raises `UserError` if the file is damaged.
    """
    if path is None:
        return lambda image_id: {}
    state = path.stat()
    return _opened(path, (state.st_size, getattr(state, "st_mtime_ns", 0)))
