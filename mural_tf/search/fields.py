"""Fields of items, such as the brand of a product: filters by them, and the file that holds those of a data set."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mural_tf.errors import UserError
from mural_tf.files import as_path
from mural_tf.remote_folders import local_copy
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


def describe_known(known: Mapping[str, Sequence[str]], filters: Sequence[Filter]) -> str:
    """Returns what the user of filters that nothing passes may want to know of `Index.common_values`."""
    unknown = [name for name, _ in filters if name not in known]
    if unknown:
        return f"fields are {', '.join(known)}" if known else "no item has fields"
    return "; ".join(f"{name} is {', '.join(known[name]) or 'of many values'}" for name, _ in filters)


def fields_file(record_file: str | os.PathLike) -> pathlib.Path | None:
    """Returns the file of fields of the data set that a file of records belongs to, None if it has none."""
    path = as_path(record_file).parent.parent / FILE
    return path if path.is_file() else None


def fields_by_id(path: pathlib.Path | None) -> Callable[[str], dict[str, str]]:
    """Returns a function from an image's id to its fields in a data set's file of fields, if it has one.

    Of several lines of one id the last counts. Raises `UserError` for a line that is damaged.
    """
    if path is None:
        return lambda image_id: {}
    state = path.stat()
    return _read(path, (state.st_size, getattr(state, "st_mtime_ns", 0)))


@functools.lru_cache(maxsize=4)
def _read(path: pathlib.Path, state: tuple) -> Callable[[str], dict[str, str]]:
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # a temporary file where it is large
    database.executescript("PRAGMA journal_mode = OFF; CREATE TABLE fields (image PRIMARY KEY, fields); BEGIN")
    with open(local_copy(path), "rb") as file:
        database.executemany("INSERT OR REPLACE INTO fields VALUES (?, ?)", _lines(path, file))

    def fields_of(image_id: str) -> dict[str, str]:
        found = database.execute("SELECT fields FROM fields WHERE image = ?", (image_id,)).fetchone()
        return json.loads(found[0]) if found else {}

    weakref.finalize(fields_of, database.close)
    return fields_of


def _lines(path: pathlib.Path, file: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(bounded_lines(file), start=1):
        if line is None or line.strip():
            try:
                values = parse_object(line or b"")
            except ValueError:
                values = {}
            image_id, fields = values.get("image_id"), values.get("fields")
            is_fine = is_text(image_id) and isinstance(fields, dict)
            if not (is_fine and all(isinstance(text, str) for text in fields.values())):
                expected = '{"image_id": text, "fields": {name: text, …}}'
                raise UserError(f"{path}, line {number}: expected a line {expected}; correct it, or make it again.")
            yield image_id, json.dumps({name: text for name, text in fields.items() if text})
