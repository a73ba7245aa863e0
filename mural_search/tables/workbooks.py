"""Rows of Excel's workbooks, with the pictures and links of their cells, read by openpyxl.

openpyxl reads values row by row, but merged cells, links and pictures only where it holds the whole sheet in memory; so
these are read from the sheet's XML here.
"""

from __future__ import annotations

import collections
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
_ZEROS = re.compile("0{2,}")  # a format of numbers with leading zeros
_LINK = re.compile(rb'(?:_xlfn\.)?(?:HYPERLINK|IMAGE)\("([^"]*)"', re.I)  # a formula that names an address


def read_rows(path: pathlib.Path, file: IO[bytes], most_rows: int, heading: Heading) -> Iterator[Row]:
    """Yields the rows of one sheet of a workbook, below the names of its columns, with pictures and links.

    Args:
      path: the workbook's path, for messages.
      file: the workbook's content.
      most_rows: how many rows of the sheet are read at most.
      heading: takes the names of columns, and notes.
    """
    book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    sheet = _sheet_with_table(book, heading)
    with zipfile.ZipFile(file) as archive:
        # XlsxWriter writes 0 for every formula, and that the values are to be calculated; Excel then calculates them.
        are_zeros_missing = bool(book.calculation.fullCalcOnLoad)
        extras = _Extras(heading, most_rows)
        extras.read(archive, sheet._worksheet_path, are_zeros_missing)
    if any(map(_ZEROS.fullmatch, book._number_formats)):
        rows = (list(map(_shown_value, cells)) for cells in sheet.iter_rows())
    else:
        rows = sheet.iter_rows(values_only=True)
    rows = itertools.islice(rows, most_rows)
    yield from _named_rows(path, _texts(rows, extras), extras, heading)


def _shown_value(cell) -> Any:
    """Returns a cell's value; a whole number is a text with leading zeros if its format has them: 00123 by 00000."""
    if type(cell.value) is int and _ZEROS.fullmatch(cell.number_format):
        return f"{cell.value:0{len(cell.number_format)}d}"
    return cell.value


def _sheet_with_table(book: openpyxl.Workbook, heading: Heading):
    """Returns the first sheet that names pictures, or else the first sheet with two rows of several cells.

    The sheet that was open when the workbook was saved comes first. Adds a note on the other sheets to `heading`.
    """
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


class _Extras:
    """Contents of a sheet besides the values of its cells; most are {row, from 1: {column, from 0: content}}.

    Args:
      heading: takes notes.
      most_rows: how many rows of the sheet are read at most; a picture behind these or behind `MOST_COLUMNS` is left
        out, because rows are counted up to the last picture.

    Attributes:
      merged: the last row of each merged cell, at its first row and column.
      links: addresses to which cells lead.
      pictures: the encoded pictures that begin in a cell.
      without_value: formulas whose values the file lacks.
      hidden_columns, hidden_rows: columns, from 0, and rows, from 1, that Excel does not show.
    """

    def __init__(self, heading: Heading, most_rows: int):
        self._heading = heading
        self._most_rows = most_rows
        self.merged = collections.defaultdict(dict)
        self.links = collections.defaultdict(dict)
        self.pictures = collections.defaultdict(dict)
        self.without_value = collections.defaultdict(dict)
        self.hidden_columns = []
        self.hidden_rows = []

    def read(self, archive: zipfile.ZipFile, part: str, are_zeros_missing: bool) -> None:
        """Reads all contents of a sheet besides values into the attributes, and notes pictures that cannot be read.

        Args:
          archive: the workbook.
          part: the name of the sheet's XML in the archive.
          are_zeros_missing: whether a formula whose value is 0 was never calculated.
        """
        relations = RelationshipList()
        if get_rels_path(part) in archive.namelist():
            relations = get_dependents(archive, get_rels_path(part))
        xml = archive.read(part)
        if b"<f" in xml:  # otherwise the expression for formulas would go through the whole sheet for nothing
            self._read_formulas(xml, are_zeros_missing)
        self._read_merged_and_links(xml, relations)
        if b"hidden=" in xml:
            self._read_hidden(xml)
        if b' vm="' in xml:  # an attribute of cells whose value is a picture
            self._heading.say("pictures within cells are not read: place them over the cells")
        try:
            for relation in relations:
                if relation.Type.endswith("/drawing"):
                    _, images = find_images(archive, relation.target)
                    for image in images:
                        self._add_picture(image)
        except Exception:  # noqa: BLE001 - parsers of XML raise many classes on drawings that openpyxl does not know
            self._heading.say("the pictures in the workbook cannot be read")

    def _read_formulas(self, xml: bytes, are_zeros_missing: bool) -> None:
        """Reads `links` that formulas make, and `without_value`; see `read` for `are_zeros_missing`."""
        for cell, formula, value in _FORMULA.findall(xml):
            link = _LINK.match(formula)
            lacks_value = not value or (are_zeros_missing and value == b"0")
            if not link and not lacks_value:
                continue
            row, column = _first_cell(cell.decode())
            if link:
                self.links[row][column] = html.unescape(link[1].decode())
            if lacks_value:
                self.without_value[row][column] = formula

    def _read_merged_and_links(self, xml: bytes, relations: RelationshipList) -> None:
        """Reads the merged cells and the links of cells, which a sheet's XML lists behind its rows."""
        behind_rows = xml[xml.rfind(b"sheetData>") :]
        for tag in re.findall(rb"<(?:\w+:)?(?:mergeCell|hyperlink) [^>]*>", behind_rows):
            attributes = _attributes_of(tag)
            if b"mergeCell" in tag:
                column, row, _, last_row = range_boundaries(attributes["ref"])
                self.merged[row][column - 1] = last_row
            elif "id" in attributes:  # other links lead to a cell
                row, column = _first_cell(attributes["ref"])
                self.links[row][column] = relations.get(attributes["id"]).Target

    def _read_hidden(self, xml: bytes) -> None:
        """Reads the columns and rows that are hidden, by hand or by a filter."""
        for tag, listed_attributes in re.findall(rb'<(?:\w+:)?(col|row) ([^>]*\bhidden="(?:1|true)"[^>]*)>', xml):
            attributes = _attributes_of(listed_attributes)
            if tag == b"row":
                self.hidden_rows.append(int(attributes.get("r", 0)))  # 0, above all rows, if the number is left out
            else:
                self.hidden_columns += range(int(attributes["min"]) - 1, min(int(attributes["max"]), MOST_COLUMNS))

    def _add_picture(self, image) -> None:
        """Adds one of openpyxl's images to the cell where it begins; drops an image that lies on no cell."""
        start = getattr(image.anchor, "_from", None)
        if start is None:
            return
        is_in_sheet = 0 <= start.row < self._most_rows and 0 <= start.col < MOST_COLUMNS
        if not is_in_sheet:
            self._heading.say(f"a picture in row {start.row + 1}, column {start.col + 1} is outside of the sheet")
            return
        row_pictures = self.pictures[start.row + 1]
        row_pictures[start.col] = (*row_pictures.get(start.col, ()), image.ref.getvalue())


def _first_cell(cells: str) -> tuple[int, int]:
    """Returns (row, from 1, column, from 0) of the first of some cells: (2, 1) for "B2" and for "B2:B5"."""
    column, row, *_ = range_boundaries(cells)
    return row, column - 1


def _attributes_of(tag: bytes) -> dict[str, str]:
    """Returns {name: value} of the attributes in a tag of XML."""
    return dict(re.findall(r'(\w+)="([^"]*)"', tag.decode()))


def _texts(rows: Iterator[Sequence], extras: _Extras) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, texts of its cells) of each row; a merged cell has its text in all of its rows.

    Rows go on at least to the last picture, which may be below the last cell with a value.
    """
    merged: dict[int, tuple[int, str]] = {}  # {column: (last row, text) of its latest merged cell}
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
    """Finds the names of the columns, adds them to `heading`, and yields the rows below.

    Args:
      path: the workbook's path, for the rows' places.
      rows: (number, texts of its cells) of each row of the sheet.
      extras: the sheet's other contents, which are added to the rows.
      heading: takes the names of columns, and notes.
    """
    first_rows = []  # without empty rows
    for number, cells in itertools.islice(rows, FIRST_ROWS):
        if number in extras.pictures or any(map(str.strip, cells)):
            first_rows.append((number, cells))
    start, header = heading.find_names([cells for _, cells in first_rows], [number for number, _ in first_rows])
    header_row = 0
    if start:
        header_row, _ = first_rows[start - 1]
    _say_hidden(extras, header, header_row, heading)
    header += [f"column {number}" for number in range(len(header) + 1, MOST_COLUMNS + 1)]  # later rows may be longer
    for number, cells in itertools.chain(first_rows[start:], rows):
        values = _values_of_row(number, cells, header, extras, heading)
        if values:
            yield Row(f"{path}, row {number}", values)


def _say_hidden(extras: _Extras, header: Sequence[str], header_row: int, heading: Heading) -> None:
    """Notes in `heading` which columns, and how many rows below the row `header_row`, Excel does not show."""
    hidden_names = [header[column] for column in sorted(set(extras.hidden_columns)) if column < len(header)]
    if hidden_names:
        heading.say(f"hidden in the workbook, and read: the columns {', '.join(hidden_names)}")
    hidden_rows = [number for number in extras.hidden_rows if number > header_row]
    if hidden_rows:
        heading.say(f"hidden in the workbook, and read: {len(hidden_rows)} x row, first row {min(hidden_rows)}")


def _values_of_row(
    number: int, cells: Sequence[str], header: Sequence[str], extras: _Extras, heading: Heading
) -> dict[str, Value]:
    """Returns {column: value} of a row, with its pictures and links; notes formulas without values in `heading`.

    Args:
      number: the number of the row in the sheet.
      cells: the texts of its cells.
      header: the names of all columns.
      extras: the sheet's other contents.
      heading: takes the notes.
    """
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
