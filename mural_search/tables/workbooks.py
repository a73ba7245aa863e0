"""Rows of Excel's workbooks, with the pictures and links of their cells, read by openpyxl.

openpyxl reads values row by row, but merged cells, links and pictures only where it holds the whole sheet in memory; so
these are read from the sheet's XML here.
"""

from __future__ import annotations

import collections
import dataclasses
import html
import itertools
import pathlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import openpyxl
from openpyxl.packaging.relationship import RelationshipList, get_dependents, get_rels_path
from openpyxl.reader.drawings import find_images
from openpyxl.utils import range_boundaries

from mural_search.tables.table_rows import FIRST_ROWS, Heading, Row, Value, names_picture, value_of

MOST_COLUMNS = 16_384  # of a sheet, as Excel has them
_FORMULA = re.compile(rb'<c r="(\w+)"[^>]*><f[^>]*>([^<]*)</f>(?:<v>([^<]*)</v>)?')
_ZEROS = re.compile("0{2,}")  # a format of numbers
_LINK = re.compile(rb'(?:_xlfn\.)?(?:HYPERLINK|IMAGE)\("([^"]*)"', re.I)  # a formula that names an address


@dataclasses.dataclass
class _Extras:
    """What a sheet has besides the values of its cells: {row, from 1: {column, from 0: what is there}}.

    Attributes:
      merged: the last row of a merged cell of several rows.
      links: addresses.
      pictures: pictures that begin in a cell.
      without_value: formulas whose values the file lacks.
      hidden_columns, hidden_rows: columns, from 0, and rows, from 1, that Excel does not show.
    """

    merged: dict[int, dict[int, int]]
    links: dict[int, dict[int, str]]
    pictures: dict[int, dict[int, tuple[bytes, ...]]]
    without_value: dict[int, dict[int, bytes]]
    hidden_columns: list[int] = dataclasses.field(default_factory=list)
    hidden_rows: list[int] = dataclasses.field(default_factory=list)


def read_rows(path: pathlib.Path, file: IO[bytes], most_rows: int, heading: Heading) -> Iterator[Row]:
    """Yields the rows of one sheet of a workbook.

    Args:
      path: the workbook's path, for messages.
      file: its content.
      most_rows: how many rows are read at most.
      heading: takes the names of columns, and notes.
    """
    book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    sheet = _sheet_with_table(book, heading)
    with zipfile.ZipFile(file) as archive:
        # XlsxWriter writes 0 for every formula, and that the values are to be calculated; Excel then calculates them.
        are_zeros_missing = bool(book.calculation.fullCalcOnLoad)
        extras = _extras(archive, sheet._worksheet_path, are_zeros_missing, most_rows, heading)
    if any(map(_ZEROS.fullmatch, book._number_formats)):
        rows = (list(map(_shown, cells)) for cells in sheet.iter_rows())
    else:
        rows = sheet.iter_rows(values_only=True)
    rows = itertools.islice(rows, most_rows)
    yield from _named_rows(path, _texts(rows, extras), extras, heading)


def _shown(cell) -> Any:
    """Returns a cell's value; a whole number is a text with its zeros where the format is one, 00123 by 00000."""
    if type(cell.value) is int and _ZEROS.fullmatch(cell.number_format):
        return f"{cell.value:0{len(cell.number_format)}d}"
    return cell.value


def _sheet_with_table(book: openpyxl.Workbook, heading: Heading):
    """Returns the first sheet that names pictures, otherwise that has two rows; the open sheet comes first."""
    sheets = sorted(book.worksheets, key=lambda sheet: sheet is not book.active)  # a chart may have been open
    ranks = []
    for sheet in sheets:
        sheet.reset_dimensions()  # the size that a file names is only a hint
        first_rows = list(itertools.islice(sheet.iter_rows(values_only=True), FIRST_ROWS))
        texts = filter(None, map(str, itertools.chain.from_iterable(first_rows)))
        rows_of_cells = [row for row in first_rows if sum(value is not None for value in row) > 1]
        ranks.append((any(map(names_picture, texts)), len(rows_of_cells) > 1))
    sheet = sheets[ranks.index(max(ranks))]
    others = [repr(other.title) for other in sheets if other is not sheet]
    if others:
        heading.say(f"sheet {sheet.title!r} is read, not {', '.join(others)}; to choose, save it with one sheet alone")
    return sheet


def _extras(archive: zipfile.ZipFile, part: str, are_zeros_missing: bool, most_rows: int, heading: Heading) -> _Extras:
    """Returns what a sheet, whose XML is a part of the archive, has besides values.

    `are_zeros_missing`: whether a formula whose value is 0 was never calculated. A picture beyond the last of
    `most_rows` or of `MOST_COLUMNS` is left out: rows are counted up to the last picture.
    """
    extras = _Extras(*(collections.defaultdict(dict) for _ in range(4)))
    relations = RelationshipList()
    if get_rels_path(part) in archive.namelist():
        relations = get_dependents(archive, get_rels_path(part))
    xml = archive.read(part)
    if b"<f" in xml:  # otherwise the expression for formulas would go through the whole sheet for nothing
        _find_formulas(extras, xml, are_zeros_missing)
    _find_merged_and_links(extras, xml, relations)
    if b"hidden=" in xml:
        _find_hidden(extras, xml)
    if b' vm="' in xml:
        heading.say("pictures within cells are not read: place them over the cells")
    try:
        for relation in relations:
            if relation.Type.endswith("/drawing"):
                _, images = find_images(archive, relation.target)
                for image in images:
                    _put_picture(extras, image, most_rows, heading)
    except Exception:  # noqa: BLE001 - parsers of XML raise many classes on drawings that openpyxl does not know
        heading.say("the pictures in the workbook cannot be read")
    return extras


def _find_formulas(extras: _Extras, xml: bytes, are_zeros_missing: bool) -> None:
    """Notes the links that a sheet's formulas make, and the formulas without a value, see `_extras`."""
    for cell, formula, value in _FORMULA.findall(xml):
        link = _LINK.match(formula)
        if link:
            _put(extras.links, cell.decode(), html.unescape(link[1].decode()))
        if not value or (are_zeros_missing and value == b"0"):
            _put(extras.without_value, cell.decode(), formula)


def _find_merged_and_links(extras: _Extras, xml: bytes, relations: RelationshipList) -> None:
    """Notes the merged cells and the links of cells, which a sheet's XML lists behind its rows."""
    behind_rows = xml[xml.rfind(b"sheetData>") :]
    for tag in re.findall(rb"<(?:\w+:)?(?:mergeCell|hyperlink) [^>]*>", behind_rows):
        attributes = _attributes_of(tag)
        if b"mergeCell" in tag:
            _, _, _, last_row = range_boundaries(attributes["ref"])
            _put(extras.merged, attributes["ref"], last_row)
        elif "id" in attributes:  # other links lead to a cell
            _put(extras.links, attributes["ref"], relations.get(attributes["id"]).Target)


def _attributes_of(tag: bytes) -> dict[str, str]:
    """Returns {name: value} of the attributes in a tag of XML."""
    return dict(re.findall(r'(\w+)="([^"]*)"', tag.decode()))


def _find_hidden(extras: _Extras, xml: bytes) -> None:
    """Notes the columns and rows that a sheet's XML calls hidden, by hand or by a filter."""
    for tag, listed_attributes in re.findall(rb'<(?:\w+:)?(col|row) ([^>]*\bhidden="(?:1|true)"[^>]*)>', xml):
        attributes = _attributes_of(listed_attributes)
        if tag == b"row":
            extras.hidden_rows.append(int(attributes.get("r", 0)))
        else:
            extras.hidden_columns += range(int(attributes["min"]) - 1, min(int(attributes["max"]), MOST_COLUMNS))


def _put_picture(extras: _Extras, image, most_rows: int, heading: Heading) -> None:
    """Puts one of openpyxl's images at the cell where it begins; an image may have a place on the page only."""
    start = getattr(image.anchor, "_from", None)
    if start is None:
        return
    is_in_sheet = 0 <= start.row < most_rows and 0 <= start.col < MOST_COLUMNS
    if not is_in_sheet:
        heading.say(f"a picture in row {start.row + 1}, column {start.col + 1} is outside of the sheet")
        return
    row_pictures = extras.pictures[start.row + 1]
    others = row_pictures.get(start.col, ())
    row_pictures[start.col] = (*others, image.ref.getvalue())


def _put(things: dict[int, dict[int, Any]], cells: str, thing: Any) -> None:
    """Puts a thing at the first of some cells: "B2" or "B2:B5"."""
    column, row, *_ = range_boundaries(cells)
    things[row][column - 1] = thing


def _texts(rows: Iterator[Sequence], extras: _Extras) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, texts) of each row, at least to the last picture; a merged cell has its text in all its rows."""
    merged: dict[int, tuple[int, str]] = {}  # column -> (last row, text) of its latest merged cell
    to_last_picture = range(max(extras.pictures, default=0))
    padded_rows = itertools.zip_longest(rows, to_last_picture, fillvalue=())
    for number, (values, _) in enumerate(padded_rows, start=1):
        cells = [str(value_of(value)) for value in values]
        for column, (last_row, text) in merged.items():
            if number <= last_row and column < len(cells):
                cells[column] = cells[column] or text
        for column, last_row in extras.merged.get(number, {}).items():
            if column < len(cells):
                merged[column] = last_row, cells[column]
        yield number, cells


def _named_rows(
    path: pathlib.Path, rows: Iterator[tuple[int, list[str]]], extras: _Extras, heading: Heading
) -> Iterator[Row]:
    """Yields the rows below the names of the columns."""
    first_rows = []  # without empty rows
    for number, cells in itertools.islice(rows, FIRST_ROWS):
        if number in extras.pictures or any(map(str.strip, cells)):
            first_rows.append((number, cells))
    start, header = heading.find_names([cells for _, cells in first_rows], [number for number, _ in first_rows])
    header_row = 0
    if start:
        header_row, _ = first_rows[start - 1]
    _say_hidden(extras, header, header_row, heading)
    header += [f"column {number}" for number in range(len(header) + 1, MOST_COLUMNS + 1)]
    for number, cells in itertools.chain(first_rows[start:], rows):
        values = _values_of_row(number, cells, header, extras, heading)
        if values:
            yield Row(f"{path}, row {number}", values)


def _say_hidden(extras: _Extras, header: Sequence[str], header_row: int, heading: Heading) -> None:
    """Notes which columns, and how many rows below the names of the columns, Excel does not show."""
    hidden_names = [header[column] for column in sorted(set(extras.hidden_columns)) if column < len(header)]
    if hidden_names:
        heading.say(f"hidden in the workbook, and read: the columns {', '.join(hidden_names)}")
    hidden_rows = [number for number in extras.hidden_rows if number > header_row]
    if hidden_rows:
        heading.say(f"hidden in the workbook, and read: {len(hidden_rows)} x row, first row {min(hidden_rows)}")


def _values_of_row(
    number: int, cells: Sequence[str], header: Sequence[str], extras: _Extras, heading: Heading
) -> dict[str, Value]:
    """Returns {column: value} of a row, with its pictures and links; notes formulas without values."""
    values: dict[str, Value] = {name: cell for name, cell in zip(header, cells) if cell.strip()}
    links = extras.links.get(number, {})
    for column in extras.without_value.get(number, ()):
        values.pop(header[column], None)
        if column not in links:
            heading.say(f"{header[column]} holds formulas without values: open the workbook in Excel and save it")
    for column, pictures in extras.pictures.get(number, {}).items():
        name = header[column]
        if name in values:  # the cell below the picture holds text
            name = f"{name} picture"
        values[name] = pictures
    for column, address in links.items():
        values[f"{header[column]} link"] = address
    return values
