"""Rows of Excel's workbooks, with the pictures and links of their cells, read by openpyxl.

openpyxl reads values row by row, but merged cells, links and pictures only where it holds the whole sheet in memory; so
these are read from the sheet's XML here.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pathlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO

import openpyxl
from openpyxl.packaging.relationship import RelationshipList, get_dependents, get_rels_path
from openpyxl.reader.drawings import find_images
from openpyxl.utils import range_boundaries

from mural_search.tables.table_rows import FIRST_ROWS, Heading, Row, Value, names_picture, value_of

_RICH_VALUES = "xl/richData/richValueRel.xml"  # lists the pictures that lie within cells
_NO_VALUE = ("", "#VALUE!")  # the text of a cell with a picture within it


@dataclasses.dataclass
class _Extras:
    """What a sheet has besides the values of its cells, by row, from 1, and column, from 0.

    Attributes:
      merged: (first row, column) -> last row of a merged cell.
      links: row -> {column: address}.
      pictures: row -> {column: pictures that begin in the cell, or lie within it}.
      has_formulas: whether any cell has a formula.
      without_value: columns with formulas whose values the file lacks.
    """

    merged: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    links: dict[int, dict[int, str]] = dataclasses.field(default_factory=dict)
    pictures: dict[int, dict[int, tuple[bytes, ...]]] = dataclasses.field(default_factory=dict)
    has_formulas: bool = False
    without_value: set[int] = dataclasses.field(default_factory=set)


def read_rows(path: pathlib.Path, file: IO[bytes], most_rows: int, heading: Heading) -> Iterator[Row]:
    """Yields the rows of one sheet of a workbook.

    Args:
      path: of the workbook, for messages.
      file: its content.
      most_rows: that are read.
    """
    book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    sheet = _sheet_with_table(book, heading)
    with zipfile.ZipFile(file) as archive:
        extras = _extras(archive, sheet._worksheet_path, heading)
    rows = itertools.islice(sheet.iter_rows(values_only=True), most_rows)
    if extras.has_formulas:
        formulas = openpyxl.load_workbook(file, read_only=True)[sheet.title]
        formulas.reset_dimensions()
        are_old = bool(book.calculation.fullCalcOnLoad)
        rows = _calculated(rows, formulas.iter_rows(values_only=True), are_old, extras)
    yield from _named_rows(path, _texts(rows, extras), extras, heading)


def _sheet_with_table(book: openpyxl.Workbook, heading: Heading):
    """Returns the first sheet that names pictures, else that has two rows; the sheet that was open comes first."""
    sheets = sorted(book.worksheets, key=lambda sheet: sheet is not book.active)  # a chart may have been open
    ranks = []
    for sheet in sheets:
        sheet.reset_dimensions()  # the size that a file names is only a hint
        first = list(itertools.islice(sheet.iter_rows(values_only=True), FIRST_ROWS))
        names_pictures = any(isinstance(value, str) and names_picture(value) for row in first for value in row)
        wide = [row for row in first if sum(value is not None for value in row) > 1]
        ranks.append((names_pictures, len(wide) > 1))
    sheet = sheets[ranks.index(max(ranks))]
    others = [repr(other.title) for other in sheets if other is not sheet]
    if others:
        heading.say(f"sheet {sheet.title!r} is read, not {', '.join(others)}; to choose, save it with one sheet alone")
    return sheet


def _extras(archive: zipfile.ZipFile, part: str, heading: Heading) -> _Extras:
    """Returns what a sheet, whose XML is a part of the archive, has besides values."""
    extras = _Extras()
    tail: collections.deque = collections.deque(maxlen=64)  # merged cells and links come behind the rows
    with archive.open(part) as xml:
        for block in iter(lambda: xml.read(1 << 20), b""):
            tail.append(block)
            extras.has_formulas = extras.has_formulas or b"<f>" in block or b"<f " in block
    tail = b"".join(tail)
    for attributes in _attributes("mergeCell", tail):
        left, top, _, bottom = range_boundaries(attributes["ref"])
        if bottom > top:
            extras.merged[top, left - 1] = bottom
    relations = RelationshipList()
    if get_rels_path(part) in archive.namelist():
        relations = get_dependents(archive, get_rels_path(part))
    for attributes in _attributes("hyperlink", tail):
        if "id" in attributes:  # other links lead to a cell
            left, top, *_ = range_boundaries(attributes["ref"])
            extras.links.setdefault(top, {})[left - 1] = relations.get(attributes["id"]).Target
    try:
        _add_pictures(archive, part, relations, extras)
    except Exception:  # noqa: BLE001 - of parsers of XML, on drawings that openpyxl does not know
        heading.say("the pictures in the workbook cannot be read")
    return extras


def _attributes(tag: str, xml: bytes) -> Iterator[dict[str, str]]:
    """Yields the attributes, without their prefixes, of each such tag."""
    for attributes in re.findall(rb"<(?:\w+:)?%s\s([^>]*)>" % tag.encode(), xml):
        yield dict(re.findall(r'(\w+)="([^"]*)"', attributes.decode()))


def _add_pictures(archive: zipfile.ZipFile, part: str, relations: RelationshipList, extras: _Extras) -> None:
    for relation in relations:
        if relation.Type.endswith("/drawing"):
            for image in find_images(archive, relation.target)[1]:
                start = getattr(image.anchor, "_from", None)  # a picture may have a place on the page only
                row, column = (start.row + 1, start.col) if start is not None else (1, 0)
                of_row = extras.pictures.setdefault(row, {})
                of_row[column] = (*of_row.get(column, ()), image.ref.getvalue())
    if _RICH_VALUES in archive.namelist():
        # A cell has the number of its value, from 1, and a value the number of its picture.
        targets = get_dependents(archive, get_rels_path(_RICH_VALUES))
        ids = [attributes["id"] for attributes in _attributes("rel", archive.read(_RICH_VALUES))]
        values = re.findall(rb"<rv [^>]*><v>(\d+)</v>", archive.read("xl/richData/rdrichvalue.xml"))
        for attributes in _attributes("c", archive.read(part)):
            if "vm" in attributes:
                left, top, *_ = range_boundaries(attributes["r"])
                target = targets.get(ids[int(values[int(attributes["vm"]) - 1])]).target
                extras.pictures.setdefault(top, {})[left - 1] = (archive.read(target),)


_TEXT = re.compile(r'"((?:[^"]|"")*)"')
_JOINS = re.compile(r"=(?:(?:_xlfn\.)?CONCAT(?:ENATE)?\()?[\s,;&]*\)?", re.I)  # of texts, which are cut out
_LEADS = re.compile(r"=(?:_xlfn\.)?(?:HYPERLINK|IMAGE)\(", re.I)


def _calculated(
    rows: Iterator[tuple], formulas: Iterator[tuple], are_old: bool, extras: _Extras
) -> Iterator[list[object]]:
    """Yields the values of rows; a formula without a value has the texts that it names, if it needs nothing else.

    `are_old`: whether the file says that its values are to be calculated; XlsxWriter then writes 0 for each.
    """
    for number, (values, texts) in enumerate(zip(rows, formulas), start=1):
        values = list(values)
        for column, formula in enumerate(texts[: len(values)]):
            if not (isinstance(formula, str) and formula.startswith("=")):
                continue
            named = [text.replace('""', '"') for text in _TEXT.findall(formula)]
            has_no_value = values[column] is None or (are_old and values[column] == 0)
            if named and _LEADS.match(formula):
                extras.links.setdefault(number, {})[column] = named[0]
                values[column] = named[-1] if has_no_value else values[column]
            elif has_no_value:
                is_text = _JOINS.fullmatch(_TEXT.sub("", formula))
                values[column] = "".join(named) if is_text else None
                extras.without_value.update(() if is_text else (column,))
        yield values


def _texts(rows: Iterator[Sequence], extras: _Extras) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, texts) of the rows, as far as there are pictures; a merged cell has its text in all its rows."""
    held: dict[int, tuple[int, str]] = {}  # column -> (last row, text) of the merged cell that is met
    pictured = range(max(extras.pictures, default=0))
    for number, (values, _) in enumerate(itertools.zip_longest(rows, pictured, fillvalue=()), start=1):
        cells = [str(value_of(value)) for value in values]
        for column, (last, text) in held.items():
            if number <= last and column < len(cells):
                cells[column] = cells[column] or text
        for column, cell in enumerate(cells):
            if (number, column) in extras.merged:
                held[column] = extras.merged[number, column], cell
        yield number, cells


def _named_rows(
    path: pathlib.Path, rows: Iterator[tuple[int, list[str]]], extras: _Extras, heading: Heading
) -> Iterator[Row]:
    """Yields the rows below the names of the columns."""
    first = list(itertools.islice(rows, FIRST_ROWS))
    filled = [(number, cells) for number, cells in first if any(map(str.strip, cells))]
    width = max([len(cells) for _, cells in filled], default=0)
    for columns in (*extras.pictures.values(), *extras.links.values()):
        width = max(width, *(column + 1 for column in columns))
    padded = [[*cells, *[""] * (width - len(cells))] for _, cells in filled]
    start, header = heading.find_names(padded, [number for number, _ in filled])
    for number, cells in itertools.chain(filled[start:], rows):
        values: dict[str, Value] = {name: cell for name, cell in zip(header, cells) if cell.strip()}
        for column, pictures in extras.pictures.get(number, {}).items():
            name = header[column]
            values[name if values.get(name, "") in _NO_VALUE else f"{name} picture"] = pictures
        for column, address in extras.links.get(number, {}).items():
            values[f"{header[column]} link"] = address
        for column in extras.without_value:
            heading.say(f"{header[column]} holds formulas without values: open the workbook in Excel and save it")
        if values:
            yield Row(f"{path}, row {number}", values)
