"""Rows of tables, from any form of file: their values, lists and objects in cells, the names of the columns."""

from __future__ import annotations

import ast
import collections
import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mural_lite.pictures import ENDINGS
from mural_lite.text_files import clean

Value = str | bytes | tuple[str | bytes, ...]
DEEPEST = 4  # levels of objects that become columns; deeper levels stay JSON


class Row(NamedTuple):
    """A row: {column: value} without empty columns; `place` is "file:line" or the like."""

    place: str
    values: dict[str, Value]


def several(value: Value) -> tuple:
    """Returns the parts of a value; a single text or picture is its only part."""
    if isinstance(value, tuple):
        return value
    return (value,)


def texts_of(value: Value) -> tuple[str, ...]:
    """Returns the texts of a value, without pictures."""
    if isinstance(value, str):
        return (value,)
    return tuple(text for text in several(value) if isinstance(text, str))


# Behind the ending of a picture's name: the number of its caption, as in Flickr30K's file, or a version.
_SUFFIX = re.compile(rf"(\.(?:{'|'.join(ENDINGS)}))[?#][^/]*$", re.I)


def without_suffix(name: str) -> str:
    """Returns a picture's name without a suffix: "a.jpg#0" or "a.jpg?v=2" -> "a.jpg"; an address stays as it is."""
    if "://" in name:
        return name
    return _SUFFIX.sub(r"\1", name)


# How pictures begin in texts: as data URLs, and JPEG, PNG, GIF, WebP and TIFF in base64.
ENCODED = ("data:image/", "/9j/", "_9j_", "iVBORw0KGgo", "R0lGOD", "UklGR", "SUkqA", "TU0AK")


def is_encoded(text: str) -> bool:
    """Whether a text is a picture; names of files may begin alike, but are shorter."""
    return text.startswith(ENCODED) and len(text) >= 60


def names_picture(value: Value) -> bool:
    """Whether a value is a picture, or the name or address of one by its ending."""
    first = next(iter(several(value)), "")
    if isinstance(first, bytes):
        return True
    name = without_suffix(first.strip())
    if is_encoded(name):
        return True
    if "://" in name:
        name = re.split(r"[?#]", name)[0]
    _, point, ending = name.rpartition(".")
    return point != "" and ending.lower() in ENDINGS


# The names of columns.

FIRST_ROWS = 30  # rows in which the names of the columns are looked for


def find_names(rows: Sequence[Sequence[str]]) -> tuple[int, list[str]]:
    """Returns (number of rows up to the names of the columns, a name of its own for each column).

    The rows may begin with a title or with instructions. Names are in the last row above the first picture that is as
    full as any row there, has no text twice, and is unlike the row of the picture. Where the first row names a picture,
    no row has names, and columns have their numbers: "1", "2".

    Args:
      rows: the first rows that are not empty.
    """
    cell_counts = [sum(bool(cell.strip()) for cell in cells) for cells in rows]
    # The number of the first row with a picture; without one only the first row that is at least half as full as any
    # may have the names.
    pictured = next((number for number, cells in enumerate(rows) if any(map(names_picture, cells))), None)
    candidates = [number for number, count in enumerate(cell_counts[:pictured]) if count > 1]
    if pictured is None:
        candidates = [number for number in candidates if 2 * cell_counts[number] >= max(cell_counts)][:1]
    if not candidates:
        columns = max(map(len, rows), default=0)
        return pictured or 0, [str(number) for number in range(1, columns + 1)]
    fullest = max(cell_counts[number] for number in candidates)
    name_row, *_ = candidates  # if none is better
    for number in candidates:
        if cell_counts[number] == fullest and _may_name(rows, number, pictured):
            name_row = number
    return name_row + 1, _unique_names(rows[name_row])


@dataclasses.dataclass
class Heading:
    """Findings on a table while its rows are read.

    Attributes:
      names: the names of the columns, where they are not in the rows themselves.
      notes: lines on what was chosen, or is not read; a dictionary keeps their order, each once.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    notes: dict[str, None] = dataclasses.field(default_factory=dict)

    def say(self, line: str) -> None:
        """Adds a note, once."""
        self.notes.setdefault(line)

    def find_names(self, rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> tuple[int, list[str]]:
        """Returns what `find_names` returns for the first rows, and notes the names and where they are.

        `numbers` are the rows' numbers in the file, for the note.
        """
        start, names = find_names(rows)
        self.names = list(dict.fromkeys([*self.names, *names]))
        if start > 1:
            self.say(f"names of columns in row {numbers[start - 1]}; the rows above it are not read")
        return start, names


def _may_name(rows: Sequence[Sequence[str]], number: int, pictured: int | None) -> bool:
    """Whether a row has no text twice, and no text of the row of the first picture, such as a brand or "A-1", "A-2"."""
    texts = [cell.strip() for cell in rows[number] if cell.strip()]
    if len(set(texts)) < len(texts):
        return False
    if not pictured:
        return True
    for cell, cell_below in zip(rows[number], rows[pictured]):
        if cell.strip() and _shape(cell) == _shape(cell_below):
            return False
    return True


def _shape(cell: str) -> str:
    """Returns a cell's text with a 0 for each number."""
    return re.sub(r"\d+", "0", cell)


def _unique_names(cells: Sequence[str]) -> list[str]:
    """Returns a name for each cell, its text if that is not taken or empty."""
    names: dict[str, None] = {}  # in order
    for number, cell in enumerate(cells, start=1):
        name = clean(cell).lstrip("\ufeff") or f"column {number}"
        while name in names:
            name = f"{name} ({number})"
        names[name] = None
    return list(names)


# Lists and objects.


def columns_of_lists(rows: Iterable[Row]) -> frozenset[str]:
    """Returns the columns in which most texts are lists or objects, as JSON or as Python writes them."""
    counts: collections.Counter = collections.Counter()
    for row in rows:
        for name, value in row.values.items():
            if isinstance(value, str):
                is_list = _parsed(value) is not None
                counts[name] += 1 if is_list else -1  # above 0 in the end: most are lists
    return frozenset(name for name, count in counts.items() if count > 0)


def with_lists(row: Row, names: Collection[str]) -> Row:
    """Returns a row whose texts in the columns `names` have become the lists and objects that they write."""
    values: dict[str, Value] = {}
    for name, value in row.values.items():
        parsed = None
        if name in names and isinstance(value, str):
            parsed = _parsed(value)
        if parsed is None:
            values[name] = value
        else:
            values.update(flattened({name: parsed}))
    return Row(row.place, values)


# A string, and the space between it and another string.
_STRING = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(\s+(?=['"]))?""")


def _with_comma(match: re.Match) -> str:
    """Returns a string with a comma before another string: NumPy writes none, and Python would join the two."""
    if match[2]:
        return f"{match[1]},"
    return match[1]


def _parsed(text: str) -> list | dict | None:
    """Returns the list or object that a text writes, such as `["a", "b"]`, `['a', nan]` or `['a' 'b']`; else `None`."""
    text = text.strip()
    if text[:1] + text[-1:] not in ("[]", "{}"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        tree = ast.parse(_STRING.sub(_with_comma, text), mode="eval").body
        if isinstance(tree, ast.List):
            tree.elts = [part for part in tree.elts if ast.unparse(part) != "nan"]
        value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    if not isinstance(value, (list, dict)):
        return None
    return value


def flattened(values: Mapping[str, Any], before: str = "", depth: int = 1) -> dict[str, Value]:
    """Returns {column: value} for a row of JSON or Parquet; objects become columns "name.key".

    `before`: what the names of columns begin with; `depth`: the level of these values, 1 for the row itself.
    """
    columns: dict[str, Value] = {}
    if before and values.get("bytes"):  # an image of Hugging Face's `datasets`: {"bytes", "path"}, both of one picture
        values = {key: value for key, value in values.items() if key != "path"}
    for key, value in values.items():
        name = f"{before}{key}"
        if _is_map(value):
            value = {str(part): text for part, text in value}
        objects = value if isinstance(value, list) else [value]
        if value and all(isinstance(part, dict) for part in objects) and depth < DEEPEST:
            for part in objects:  # of a list of objects, each column holds the values of all objects
                for column, text in flattened(part, f"{name}.", depth + 1).items():
                    if column in columns:
                        text = (*several(columns[column]), *several(text))
                    columns[column] = text
            continue
        value = value_of(value)
        if any(item.strip() for item in several(value)):
            columns[name] = value
    return columns


def _is_map(value: Any) -> bool:
    """Whether a value is a map of Parquet: a list of pairs."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, tuple) and len(item) == 2 for item in value)


def value_of(value: Any) -> Value:
    """Returns a value of JSON, Parquet or Excel as a value of a row; an empty cell is ""."""
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(part for part in map(value_of, _parts_of(value)) if part.strip())
    if value is None or value != value:  # NaN, which tables of numbers have in empty cells
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict):
        return _deep_json(value) if value else ""
    return str(value)


def _parts_of(values: Sequence) -> list:
    """Returns the parts of a list and of the lists in it, however deep: [[1, 2], [3]] -> [1, 2, 3]."""
    parts = []
    rest = [values]
    while rest:
        value = rest.pop()
        if isinstance(value, (list, tuple)):
            rest += reversed(value)
        else:
            parts.append(value)
    return parts


def _deep_json(value: dict) -> str:
    """Returns an object as JSON, "" where it cannot be written so, for example because it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):
        return ""
