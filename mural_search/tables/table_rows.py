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
    """A row of a table.

    Attributes:
      place: where the row is, for messages: "hats.csv:3".
      values: {column: value} of the columns that are not empty.
    """

    place: str
    values: dict[str, Value]


def several(value: Value) -> tuple:
    """Returns the parts of a value: a tuple's items, or the only text or picture."""
    if isinstance(value, tuple):
        return value
    return (value,)


def texts_of(value: Value) -> tuple[str, ...]:
    """Returns the texts of a value, without its pictures."""
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
    """Whether a text is a picture in base64 or a data URL; names of files may begin alike, but are shorter."""
    return text.startswith(ENCODED) and len(text) >= 60  # characters of a tiny picture


def names_picture(value: Value) -> bool:
    """Whether the first part of a value is a picture, or its name or address by the ending, such as "hat.jpg"."""
    parts = several(value)
    if not parts:
        return False
    if isinstance(parts[0], bytes):
        return True
    name = without_suffix(parts[0].strip())
    if is_encoded(name):
        return True
    if "://" in name:
        name = re.split(r"[?#]", name)[0]
    _, point, ending = name.rpartition(".")
    return point != "" and ending.lower() in ENDINGS


# The names of columns.

FIRST_ROWS = 30  # rows in which the names of the columns are looked for


def find_names(rows: Sequence[Sequence[str]]) -> tuple[int, list[str]]:
    """Returns (number of rows before the first row of data, a different name for each column).

    The rows may begin with a title or with instructions. Names are in the last row above the first picture that is as
    full as any row there, has no text twice, and is unlike the row of the picture; if no row is so, in the first with
    two texts. If no row names a picture, they are in the first that has two texts and is half as full as any. Without
    such a row, the columns' names are their numbers, "1", "2", and the data begin with the picture, or at the top.

    Args:
      rows: the cells of the first rows that are not empty.
    """
    text_counts = [len(_texts(cells)) for cells in rows]
    # The number of the first row with a picture, or len(rows).
    picture_row = next((number for number, cells in enumerate(rows) if any(map(names_picture, cells))), len(rows))
    candidates = [number for number in range(picture_row) if text_counts[number] > 1]  # a title has one text
    first_row = picture_row
    if picture_row == len(rows):
        candidates = [number for number in candidates if 2 * text_counts[number] >= max(text_counts)][:1]
        first_row = 0
    if not candidates:
        columns = max(map(len, rows), default=0)
        return first_row, [str(number) for number in range(1, columns + 1)]
    fullest_count = max(text_counts[number] for number in candidates)
    name_row = candidates[0]  # if no other row qualifies
    for number in candidates[1:]:  # there is a picture, or they are one
        if text_counts[number] == fullest_count and _may_name(rows[number], rows[picture_row]):
            name_row = number
    return name_row + 1, _unique_names(rows[name_row])


@dataclasses.dataclass
class Heading:
    """The names of a table's columns, and notes for the user, which come up while rows are read.

    Attributes:
      names: the names of the columns of CSV or Excel; rows of other forms name their columns themselves.
      notes: {note: None} in their order, each once: which sheet was chosen, or which parts are not read.
    """

    names: list[str] = dataclasses.field(default_factory=list)
    notes: dict[str, None] = dataclasses.field(default_factory=dict)

    def say(self, line: str) -> None:
        """Adds a note, unless it is there."""
        self.notes.setdefault(line)

    def find_names(self, rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> tuple[int, list[str]]:
        """Returns the result of the function `find_names`, and keeps the names and a note on their place.

        Args:
          rows: the cells of the first rows that are not empty.
          numbers: the number of each of these rows in the file, for the note.
        """
        start, names = find_names(rows)
        self.names = list(dict.fromkeys([*self.names, *names]))
        if start > 1:
            self.say(f"names of columns in row {numbers[start - 1]}; the rows above it are not read")
        return start, names


def _texts(cells: Sequence[str]) -> list[str]:
    """Returns the cells that are not empty, without the white space around them."""
    return [cell.strip() for cell in cells if cell.strip()]


def _may_name(cells: Sequence[str], cells_below: Sequence[str]) -> bool:
    """Whether a row's cells may be the names of the columns; `cells_below` are of the first row with a picture.

    No text may be there twice, nor equal, except for digits, the cell below: a brand, or "A-1" above "A-2".
    """
    texts = _texts(cells)
    if len(set(texts)) < len(texts):
        return False
    for cell, cell_below in zip(cells, cells_below):
        if cell.strip() and _shape(cell) == _shape(cell_below):
            return False
    return True


def _shape(cell: str) -> str:
    """Returns a cell's text with a 0 for each number: "A-0" for "A-12"."""
    return re.sub(r"\d+", "0", cell)


def _unique_names(cells: Sequence[str]) -> list[str]:
    """Returns a different name for each cell: "price", then "price (5)" for column 5; "column 3" for an empty cell."""
    names: list[str] = []
    taken_names: set[str] = set()
    for number, cell in enumerate(cells, start=1):
        name = clean(cell).lstrip("\ufeff") or f"column {number}"  # without a byte order mark
        while name in taken_names:
            name = f"{name} ({number})"
        names.append(name)
        taken_names.add(name)
    return names


# Lists and objects.


def columns_of_lists(rows: Iterable[Row]) -> frozenset[str]:
    """Returns the columns in which more than half of the texts are lists or objects, as JSON or Python writes them."""
    text_counts: collections.Counter = collections.Counter()
    list_counts: collections.Counter = collections.Counter()
    for row in rows:
        for name, value in row.values.items():
            if isinstance(value, str):
                text_counts[name] += 1
                if _parsed(value) is not None:
                    list_counts[name] += 1
    return frozenset(name for name, count in list_counts.items() if 2 * count > text_counts[name])


def with_lists(row: Row, names: Collection[str]) -> Row:
    """Returns a row whose texts in the columns `names` are replaced by the lists and objects that they write.

    An object becomes columns of its own, see `flattened`; a text that writes neither stays as it is.
    """
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
    """Returns the list or object that a text writes as JSON, Python or NumPy does; `None` for another text.

    For example `["a", "b"]`, `{'a': 'b'}`, `['a', nan]` or `['a' 'b']`.
    """
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
            tree.elts = [item for item in tree.elts if ast.unparse(item) != "nan"]  # no literal of Python
        value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    if not isinstance(value, (list, dict)):
        return None
    return value


def flattened(values: Mapping[str, Any], before: str = "", depth: int = 1) -> dict[str, Value]:
    """Returns {column: value} for a row of JSON or Parquet, in which objects become columns of their own.

    For example {"size": "36", "brand.name": "acme"} for {"size": 36, "brand": {"name": "acme"}}. In a list of objects,
    a column holds the values of all objects. Empty columns are left out.

    Args:
      values: the row, or an object within a row.
      before: the beginning of the columns' names, "brand." for the object "brand".
      depth: the level of the object, 1 for the row itself; objects below the level `DEEPEST` stay JSON.
    """
    columns: dict[str, Value] = {}
    if before and values.get("bytes"):  # an image of Hugging Face's `datasets`: {"bytes", "path"}, both of one picture
        values = {key: value for key, value in values.items() if key != "path"}
    for key, value in values.items():
        name = f"{before}{key}"
        if _is_map(value):
            value = {str(map_key): map_value for map_key, map_value in value}
        objects = value if isinstance(value, list) else [value]
        if value and all(isinstance(item, dict) for item in objects) and depth < DEEPEST:
            for item in objects:
                for column, item_value in flattened(item, f"{name}.", depth + 1).items():
                    if column in columns:
                        item_value = (*several(columns[column]), *several(item_value))
                    columns[column] = item_value
            continue
        value = value_of(value)
        if any(part.strip() for part in several(value)):
            columns[name] = value
    return columns


def _is_map(value: Any) -> bool:
    """Whether a value is a map of Parquet: a list of (key, value)."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, tuple) and len(item) == 2 for item in value)


def value_of(value: Any) -> Value:
    """Returns a value of JSON, Parquet or Excel as a value of a row.

    An empty cell is "", a list is a tuple of the values in it, a whole number has no point, and an object is JSON.
    """
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(item for item in map(value_of, _items_of(value)) if item.strip())
    if value is None or value != value:  # NaN, which tables of numbers have in empty cells
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict):
        return _deep_json(value) if value else ""
    return str(value)


def _items_of(values: Sequence) -> list:
    """Returns the items of a list and of the lists in it, however deep: [1, 2, 3] for [[1, 2], [3]]."""
    items = []
    rest = [values]  # the last is next; no recursion, for which a list may be too deep
    while rest:
        value = rest.pop()
        if isinstance(value, (list, tuple)):
            rest += reversed(value)
        else:
            items.append(value)
    return items


def _deep_json(value: dict) -> str:
    """Returns an object as JSON; "" if JSON cannot write it, for example because it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):
        return ""
