"""Rows of tables as people keep them: CSV, Excel, JSON, Parquet, img2dataset's output, folders of pictures with texts.

CSV is read by the standard library, Parquet by pyarrow, .xlsx by openpyxl (workbooks.py). A row is a dictionary of the
names of columns and their values: a text, the bytes of a picture, or several of them; objects within JSON and Parquet,
and lists of objects, become columns of their own, "captions.de" (table_rows.py). Files of text are held in memory, the
others are streamed. Rows that cannot be read go to `on_problem(reason, place)`: see text_files.py.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import pathlib
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mural_lite.errors import UserError, install_extra
from mural_lite.files import as_path, find
from mural_lite.img2dataset import find_shards, is_download, read_samples
from mural_lite.pictures import ENDINGS, BadImage, path_below
from mural_lite.text_files import (
    DAMAGED,
    Problem,
    is_text,
    known_language,
    open_binary,
    parse_object,
    refuse_failure,
)
from mural_search.picture_folders import picture_files
from mural_search.tables.table_rows import (
    ENCODED,
    FIRST_ROWS,
    Heading,
    Row,
    find_names,
    flattened,
    names_picture,
    texts_of,
    value_of,
    with_lists,
)
from mural_search.words_inside import WordsInside

CSV = "CSV"
JSON = "JSON"
PARQUET = "Parquet"
EXCEL = "Excel workbook"
DOWNLOADS = "img2dataset's output"
PICTURES = "folder of pictures"
_FORMS = {".csv": CSV, ".tsv": CSV, ".tab": CSV, ".txt": CSV, ".token": CSV, ".jsonl": JSON}
_FORMS |= {".ndjson": JSON, ".json": JSON, ".parquet": PARQUET, ".xlsx": EXCEL}
_OF_TEXT = (".txt", ".caption")  # endings of texts next to pictures; programs that train on drawings write .caption
_PACKED = (".gz", ".bz2", ".xz")
LARGEST = 2**30  # bytes of a file that is held in memory, unpacked
CUT_OFF = "file that is damaged or cut off: what follows is lost"


@dataclasses.dataclass(frozen=True)
class Form:
    """How a file of text is written.

    Attributes:
      encoding: the name of its encoding.
      delimiter: the character between the columns of CSV.
      reader_options: (name, value) of further arguments of `csv.reader`.
    """

    encoding: str = "utf-8"
    delimiter: str = ""
    reader_options: tuple[tuple[str, Any], ...] = ()

    def reader(self, lines: Iterator[str]):
        """Returns a `csv.reader` of lines in this form, which yields each row as a list of its cells."""
        return csv.reader(lines, delimiter=self.delimiter, **dict(self.reader_options))


@dataclasses.dataclass(frozen=True)
class OwnTable:
    """A table in one file, or in several files of one form.

    Attributes:
      files: the files of the table; of a folder of pictures, the pictures and the texts next to them.
      file_type: the type of all files, such as `CSV`.
      folder: the folder to which the names of the table's pictures are relative.
      form: how its files of text are written.
      uses_names: whether pictures of a folder that have no other words have their file names as captions.
      unread_files: {reason: paths} of files in a folder of pictures that are not read.
      inside: reads the words inside the pictures of a folder.
      lists: columns whose texts are lists or objects, see `table_rows.columns_of_lists`.
      heading: the names of the columns, and notes for the user, which come up while rows are read.
    """

    files: Sequence[pathlib.Path]
    file_type: str
    folder: pathlib.Path
    form: Form = Form()
    uses_names: bool = False
    unread_files: Mapping[str, Sequence[pathlib.Path]] = dataclasses.field(default_factory=dict)
    inside: WordsInside = WordsInside()
    lists: frozenset[str] = frozenset()
    heading: Heading = dataclasses.field(default_factory=Heading)

    def describe(self) -> str:
        """Returns the table's form in words, for the user to check: "hats.csv: utf-8, columns separated by ','"."""
        if self.file_type in (DOWNLOADS, PICTURES):
            name = str(self.folder)
        else:
            name = str(self.files[0])
            if len(self.files) > 1:
                name += f" and {len(self.files) - 1} more"
        if self.file_type == CSV:
            separator = "tabs" if self.form.delimiter == "\t" else repr(self.form.delimiter)
            return f"{name}: {self.form.encoding}, columns separated by {separator}"
        return f"{name}: {self.file_type}"

    def rows(self, on_problem: Problem) -> Iterator[Row]:
        """Yields the usable rows, in the order of the files, with parsed lists and objects in the columns `lists`.

        Args:
          on_problem: called with the reason and the place of each row that cannot be read or used.
        """
        readers = {
            CSV: _read_csv, JSON: _read_json, PARQUET: _read_parquet, EXCEL: _read_excel, DOWNLOADS: _read_downloads,
        }  # fmt: skip
        if self.file_type == PICTURES:
            rows = _read_pictures(self, on_problem)
        else:
            read_file = readers[self.file_type]
            rows = itertools.chain.from_iterable(read_file(path, on_problem, self) for path in self.files)
        for row in rows:
            problem = _problem_with(row)
            if problem:
                on_problem(problem, row.place)
            elif self.lists:
                yield with_lists(row, self.lists)
            else:
                yield row


def open_table(name: str, encoding: str = "", captions: str = "") -> OwnTable:
    """Returns the table in a file, in several files, or in a folder; its rows are not read yet.

    Args:
      name: the path of a file or folder, or a pattern of files, on this machine or in an object store.
      encoding: the encoding of the table's text, such as "utf-8" or "cp1252"; "": it is found by `_find_encoding`.
      captions: where a folder of pictures has its captions. "texts": in text files next to the pictures. "inside": also
        in the words inside the pictures. "names": as "", and in the names of pictures without any other words. "":
        "inside", but "texts" in an object store.

    Raises:
      UserError: there is no such file; it is not a table, is too large, empty, or has only one column; the folder has
        neither tables nor pictures; the encoding is unknown or cannot be found; `captions` with another table than a
        folder of pictures.
    """
    try:
        codecs.lookup(encoding or "utf-8")  # "" is found out
    except LookupError:
        raise UserError(f"Unknown encoding {encoding!r}: expected a name such as utf-8, cp1252 or shift_jis.") from None
    if as_path(name).is_dir():
        table = _open_folder(as_path(name), captions, encoding)
    else:
        table = _open_files(name, encoding)
    if captions and table.file_type != PICTURES:
        raise UserError(
            f"--captions={captions} is for a folder of pictures; {name} has columns: --columns=caption=NAME."
        )
    return table


def _open_files(name: str, encoding: str) -> OwnTable:
    """Returns the table in a file, or in the files that a pattern names; the first file decides how all are read.

    Raises `UserError` for no file, files of several types, and for a first file as in `open_table`.
    """
    if as_path(name).is_file():
        files = [as_path(name)]
    else:
        files = sorted(find(name))
    if not files:
        raise UserError(f"There is no file {name}.")
    file_types = {_file_type_of(path) for path in files}
    if len(file_types) > 1:
        raise UserError(f"{name} matches files of several kinds ({', '.join(sorted(file_types))}): give one kind.")
    file_type = file_types.pop()
    path = files[0]
    if file_type in (PARQUET, EXCEL):
        return OwnTable(files, file_type, path.parent)
    data = _content(path, _ignore)  # `OwnTable.rows` reports its damage
    form = Form(encoding or _find_encoding(data, path))
    if file_type == CSV:
        form = _find_form(data, path, form)
    return OwnTable(files, file_type, path.parent, form)


def _file_type_of(path: pathlib.Path) -> str:
    """Returns the type of a file by its ending; raises `UserError` for a file that is not a table."""
    unpacked = path.with_suffix("") if path.suffix in _PACKED else path
    file_type = _FORMS.get(unpacked.suffix.lower())
    if file_type is None or path.is_dir():
        raise UserError(
            f"{path} is not a table that can be read: expected {', '.join(_FORMS)}, or a folder of pictures. "
            "Other spreadsheets: save as .xlsx or as CSV (UTF-8)."
        )
    return file_type


def _open_folder(folder: pathlib.Path, captions: str, encoding: str) -> OwnTable:
    """Returns the table in a folder: img2dataset's output, Parquet files, or pictures; see `open_table`."""
    shards = []
    if is_download(folder):
        shards = find_shards(folder)
    if shards and shards[0].suffix != ".parquet":  # shards of Parquet are read as any Parquet
        return OwnTable(shards, DOWNLOADS, folder)
    parquet_files = shards or sorted(folder.glob("*.parquet"))
    if parquet_files:
        return OwnTable(parquet_files, PARQUET, folder)
    return _open_pictures(folder, captions, encoding)


def _open_pictures(folder: pathlib.Path, captions: str, encoding: str) -> OwnTable:
    """Returns the table of the pictures in a folder, with the texts next to and inside them; see `open_table`.

    Raises `UserError` for a folder without pictures.
    """
    files, others = picture_files(folder, [ending[1:] for ending in _OF_TEXT])
    pictures = [path for path in files if path.suffix.lower() not in _OF_TEXT]
    if not pictures:
        raise UserError(f"{folder} holds no pictures: expected files ending in .{', .'.join(ENDINGS)}.")
    inside = WordsInside()
    # In a store each picture would be fetched, also where nothing is new.
    is_read_by_default = captions != "texts" and isinstance(folder, pathlib.Path)
    if captions == "inside" or is_read_by_default:
        other_files = itertools.chain.from_iterable(others.values())
        inside = WordsInside(pictures, [path for path in other_files if _is_file_below(folder, path)])
        unread = {}  # `others` without the files that are read for their words, such as hat.jpg.xmp
        for reason, paths in others.items():
            unread_paths = [path for path in paths if path not in inside.sidecars]
            if unread_paths:
                unread[reason] = unread_paths
        others = unread
    uses_names = captions == "names"
    return OwnTable(files, PICTURES, folder, Form(encoding), uses_names=uses_names, unread_files=others, inside=inside)


# Text: encodings and separators.

_MARKS = (  # the longer first: UTF-32's begins as UTF-16's does
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_SUGGESTED = ("shift_jis", "euc_kr", "big5", "gb18030", "cp1251", "cp1253", "cp1256")  # encodings that a message names


def _ignore(reason: str, location: str) -> None:
    """Does nothing, as the `on_problem` of a first look at a file: problems are reported when all of it is read."""


def _content(path: pathlib.Path, on_problem: Problem) -> bytes:
    """Returns the content of a file, unpacked, up to the first damage, which is reported.

    Raises `UserError` for a file of more than `LARGEST` bytes.
    """
    data = bytearray()
    with open_binary(path) as (content, _):
        read_block = getattr(content, "read1", content.read)  # returns everything before the damage
        try:
            while block := read_block(1 << 20):  # bytes at a time
                data += block
                if len(data) > LARGEST:
                    raise UserError(
                        f"{path} is too large to be held in memory: cut it up, 'part*.csv' reads the parts."
                    )
        except DAMAGED as error:
            refuse_failure(error, path)
            on_problem(CUT_OFF, f"{path}, behind {len(data):,} bytes")
    return bytes(data)


def _find_encoding(data: bytes, path: pathlib.Path) -> str:
    """Returns the likeliest encoding of text, in which a few bytes may be damaged.

    A byte order mark decides; without a mark the text is UTF-16, UTF-8, or else Windows-1252. Raises `UserError` for
    text in another encoding; `path` is for its message.
    """
    begin = data[: 1 << 12]  # bytes, enough to show UTF-16
    for mark, name in _MARKS:
        if begin.startswith(mark):
            return name
    unmarked = _unmarked_utf_16(begin)
    if unmarked:
        return unmarked
    lines = [line for line in data.split(b"\n") if not line.isascii()]
    broken_lines = [line for line in lines if not is_text(line.decode("utf-8", "surrogateescape"))]
    if 2 * len(broken_lines) <= len(lines):  # damage is in few lines, another encoding in all
        return "utf-8"
    # Words of Windows-1252 have an accent here and there; words of other scripts have only bytes above 127.
    runs = re.findall(rb"[\x80-\xff]+", b"\n".join(lines))
    long_runs = [run for run in runs if len(run) > 2]  # longer than two accents in a row
    if 2 * sum(map(len, long_runs)) <= sum(map(len, runs)):
        return "cp1252"
    # At most three of these are named, to keep the message short; if no encoding fits, an example.
    encodings = [name for name in _SUGGESTED if _decodes(data, name)] or ["shift_jis"]
    raise UserError(
        f"{path} is neither UTF-8 nor in a Western encoding: name the encoding, such as "
        f"{' or '.join(f'--encoding={name}' for name in encodings[:3])}, or save the file as UTF-8."
    )


def _unmarked_utf_16(begin: bytes) -> str:
    """Returns "utf-16-le" or "utf-16-be" if text that begins so is UTF-16, though it has no mark; otherwise "".

    It shows by the digits, signs and Latin letters of a table: every second byte of these is 0. More than half of the
    characters, of two bytes each, must be of this kind.
    """
    even_zeros = begin[::2].count(0)
    odd_zeros = begin[1::2].count(0)
    if 4 * odd_zeros > len(begin) and not even_zeros:
        return "utf-16-le"
    if 4 * even_zeros > len(begin) and not odd_zeros:
        return "utf-16-be"
    return ""


def _decodes(data: bytes, encoding: str) -> bool:
    """Whether all bytes are text in an encoding."""
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _text(data: bytes, encoding: str) -> str:
    """Returns the text that bytes encode; damaged bytes become lone surrogates, which `is_text` finds, or U+FFFD."""
    if not encoding.lower().startswith(("utf-16", "utf-32")):
        with contextlib.suppress(UnicodeDecodeError):  # some encodings of two bytes only know "replace"
            return data.decode(encoding, "surrogateescape")
    return data.decode(encoding, "replace")


def _lines(text: str) -> list[str]:
    """Returns the lines of a text with their ends; unlike `splitlines`, it does not divide at U+2028."""
    return list(io.StringIO(text, newline=""))


_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE = 1 << 18  # characters in which the delimiter is looked for
_USUAL = ()
_QUOTINGS = (  # how quotes may be written, as arguments of `csv.reader`; the usual way comes first
    _USUAL, (("skipinitialspace", True),), (("escapechar", "\\"),),
    (("escapechar", "\\"), ("skipinitialspace", True)), (("quoting", csv.QUOTE_NONE),),
)  # fmt: skip


def _find_form(data: bytes, path: pathlib.Path, form: Form) -> Form:
    """Returns the form of CSV, in `form.encoding`, in which most rows of a file have the same number of columns.

    Raises `UserError` for a file without text, or with one column in every form; `path` is for its message.
    """
    text = _text(data[: 4 * _SAMPLE], form.encoding)  # a character has at most four bytes
    lines = _lines(text[:_SAMPLE])
    if not text.strip():
        raise UserError(f"{path} is empty: expected columns for pictures and captions.")
    separator_line = re.fullmatch(r"sep=([,;|\t])\s*", lines[0])  # Excel writes and reads this line
    if separator_line:
        return dataclasses.replace(form, delimiter=separator_line[1])
    best_form = form
    best_share = 0.0
    for most_titles, quoting, delimiter in itertools.product((0, FIRST_ROWS), _QUOTINGS, _DELIMITERS):
        candidate = Form(form.encoding, delimiter, quoting)
        share = _agreement(lines, candidate, most_titles)
        # Unusual quotes, or titles above the table, must be better by these shares of the rows, not as good.
        if quoting != _USUAL:
            share -= 0.05
        if most_titles:
            share -= 0.02
        if share > best_share:
            best_form = candidate
            best_share = share
    if not best_share:
        raise UserError(
            f"{path} has one column only: expected columns for pictures and captions, separated "
            f"by one of {' '.join(map(repr, _DELIMITERS))}."
        )
    return best_form


def _agreement(lines: Sequence[str], form: Form, most_titles: int) -> float:
    """Returns the share of rows, 0 to 1, that have the most frequent number of columns, if `lines` have the form.

    Returns 0 if this number is 1, or if each of the first `most_titles` + 1 rows has one column: the comma of "1,5" in
    the prices of all rows separates no columns, because the row with the columns' names has no comma.
    """
    column_counts = list(_column_counts(form.reader(iter(lines))))
    if len(column_counts) > 1:
        column_counts.pop()  # the sample may end within its last row
    column_counts = [count for count in column_counts if count]
    if all(count == 1 for count in column_counts[: most_titles + 1]):
        return 0.0
    rows, columns = max((column_counts.count(count), count) for count in set(column_counts))
    if columns == 1:
        return 0.0
    return rows / len(column_counts)


def _column_counts(reader: Iterator[list[str]]) -> Iterator[int]:
    """Yields the number of columns of each row; 0 for a row that is not CSV, or has a quote that nothing closes."""
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            cells = []
        has_open_quote = any(len(cell) > _SAMPLE // 4 for cell in cells)  # whose cell is most of the sample
        yield 0 if has_open_quote else len(cells)


# Each form of table.


def _read_csv(path: pathlib.Path, on_problem: Problem, table: OwnTable) -> Iterator[Row]:
    """Yields the rows of CSV below the names of the columns; fills `table.heading` by these names.

    A picture in a cell raises `csv.field_size_limit`, which holds for the whole process.
    """
    form = table.form
    lines = _lines(_text(_content(path, on_problem), form.encoding))
    for line in lines:
        if len(line) > csv.field_size_limit() and any(begin in line for begin in ENCODED):
            csv.field_size_limit(len(line))  # a picture in a cell may have any size
    first_rows = list(itertools.islice(_rows_of_csv(path, lines, form, [], 0, _ignore), FIRST_ROWS))
    line_numbers = [begin + 1 for begin, _, _ in first_rows]
    start, header = table.heading.find_names([cells for _, _, cells in first_rows], line_numbers)
    header_end = 0
    if start:
        _, header_end, _ = first_rows[start - 1]
    for begin, _, cells in _rows_of_csv(path, lines, form, header, header_end, on_problem):
        yield Row(f"{path}:{begin + 1}", {name: cell for name, cell in zip(header, cells) if cell.strip()})


def _rows_of_csv(
    path: pathlib.Path, lines: Sequence[str], form: Form, header: Sequence[str], start: int, on_problem: Problem
) -> Iterator[tuple[int, int, list[str]]]:
    """Yields (number of its first line, number of the line behind it, cells) of each row that is whole and not empty.

    Args:
      path: the file, for the places of problems.
      lines: the lines of the file, with their ends.
      form: how the file is written.
      header: the names of the columns; empty before they are known, and then every row of CSV is whole.
      start: the line, from 0, with which the first row begins.
      on_problem: takes rows that are not whole. The line behind their first line is a row again.
    """
    end = start
    while end < len(lines):
        begin = end
        end = begin + 1
        try:
            cells, row_end = _read_row(lines, begin, form)
            problem = ""
            if header:
                problem = _problem_with_cells(cells, header, form)
        except csv.Error as error:
            problem = f"row that is no CSV ({error})"
        if problem:
            on_problem(problem, f"{path}:{begin + 1}")
            continue
        end = row_end
        if not _is_empty(cells):
            yield begin, end, cells


def _is_empty(cells: Sequence[str]) -> bool:
    """Whether a row has no text, or is Excel's line with the separator, "sep=;"."""
    return not any(map(str.strip, cells)) or bool(re.fullmatch(r"sep=.?", "".join(cells)))


def _read_row(lines: Sequence[str], begin: int, form: Form) -> tuple[list[str], int]:
    """Returns (cells, line behind the row) of the row that begins with the line `begin`; raises `csv.Error`."""
    # Each row has a new reader, because a reader cannot go back. A quote that nothing closes, as in `1.jpg,"a cat`,
    # makes a cell of the whole rest of the file; so only this line is lost, and the next line begins a row.
    rest = map(lines.__getitem__, range(begin, len(lines)))  # not a slice, which would copy the rest for each row
    reader = form.reader(rest)
    cells = next(reader)
    return cells, begin + max(1, reader.line_num)  # the number of lines that the reader took


def _problem_with_cells(cells: Sequence[str], header: Sequence[str], form: Form) -> str:
    """Returns why a row of CSV cannot be a row below these names of columns, "" if it can."""
    if any(map(str.strip, cells[len(header) :])):
        return 'row with more columns than the first, perhaps by a quote within quotes, to be written ""'
    cells_of_lines = [cell for cell in cells if "\n" in cell or "\r" in cell]
    is_short = len(cells) < len(header)
    if cells_of_lines and (is_short or any(_holds_rows(cell, form, len(header)) for cell in cells_of_lines)):
        return "row with a quote that nothing closes"
    return ""


def _holds_rows(cell: str, form: Form, columns: int) -> bool:
    """Whether a cell holds a whole row of the table: a line with all columns and the name of a picture.

    A line with fewer columns may belong to a cell: a list of pictures, or a description with commas and an address.
    """
    try:
        rows = csv.reader(cell.splitlines(), delimiter=form.delimiter, quoting=csv.QUOTE_NONE)
        return any(len(row) >= columns and any(map(names_picture, row)) for row in rows)
    except csv.Error:
        return True


def _read_json(path: pathlib.Path, on_problem: Problem, table: OwnTable) -> Iterator[Row]:
    """Yields the rows of a JSON document, or of lines with an object each; the file may have the ending of either.

    Raises `UserError` for a .json file that is neither, and for a document without rows.
    """
    text = _text(_content(path, on_problem), table.form.encoding).lstrip("\ufeff")
    is_json_file = ".json" in path.suffixes  # also hats.json.gz
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if is_json_file and not _begins_with_object(text):
            raise UserError(f"{path} is not valid JSON: {str(error) or 'it is nested too deeply'}.") from None
        content = None  # an object in each line
    # A .jsonl file of one line is a valid document, too. So is `null`, which is reported as a line without a row.
    is_document = content is not None and (is_json_file or isinstance(content, list))
    if is_document:
        yield from _rows_of_document(content, path, on_problem)
    else:
        yield from _rows_of_lines(text, path, on_problem)


def _begins_with_object(text: str) -> bool:
    """Whether the first line with content is a whole object, so that each line of the file is an object."""
    for line in io.StringIO(text):
        if line.strip() not in ("", "["):
            return _object_of(line) is not None
    return False


def _rows_of_lines(text: str, path: pathlib.Path, on_problem: Problem) -> Iterator[Row]:
    """Yields the row of each line with an object; the brackets of a list may have lines of their own."""
    for number, line in enumerate(io.StringIO(text), start=1):
        if line.strip() not in ("", "[", "]"):
            yield from _row_of_object(_object_of(line), f"{path}:{number}", "line", on_problem)


def _rows_of_document(content: Any, path: pathlib.Path, on_problem: Problem) -> Iterator[Row]:
    """Yields the rows of a JSON document: a list of objects, a list of lists, or an object, see `_objects_within`.

    Reports entries that cannot be rows. Raises `UserError` for a document that is neither a list nor an object.
    """
    if _is_object(content):
        content = _objects_within(content, path)
    if not isinstance(content, list):
        raise UserError(f"{path} holds a {type(content).__name__}: expected a list of objects, a row each.")
    if content and all(isinstance(cells, list) for cells in content):  # the first list may be the names of columns
        first_rows = []
        for cells in content[:FIRST_ROWS]:
            first_rows.append([str(value_of(cell)) for cell in cells])
        start, names = find_names(first_rows)
        for number, cells in enumerate(content[start:], start=start + 1):
            if _has_more(cells, names):
                on_problem("entry with more values than names of columns", f"{path}, list {number}")
            else:
                yield Row(f"{path}, list {number}", flattened(dict(zip(names, cells))))
        return
    for number, values in enumerate(content, start=1):
        yield from _row_of_object(values, f"{path}, object {number}", "entry", on_problem)


def _objects_within(document: dict, path: pathlib.Path) -> list:
    """Returns the rows in an object, which may have any form of pandas' `to_json` or of Hugging Face's `to_dict`.

    An object of another form is a single row, unless it holds a list of objects: then these are the rows.

    Raises:
      UserError: columns differ in length, or have names or cells of another form.
    """
    values = list(document.values())
    if isinstance(document.get("columns"), list) and isinstance(document.get("data"), list):  # orient="split", "tight"
        return _rows_of_split(document, path)
    if values and all(map(names_picture, document)):
        return _rows_by_picture(document)
    are_lists = bool(values) and all(isinstance(column, list) for column in values)
    if are_lists and not all(map(_is_object, itertools.chain.from_iterable(values))):  # to_dict, orient="list"
        lengths = sorted(set(map(len, values)))
        if len(lengths) > 1:
            raise UserError(f"{path} has columns of different lengths, {lengths}: expected a value for each row.")
        return [dict(zip(document, row)) for row in zip(*values)]
    are_objects = len(values) > 1 and all(map(_is_object, values))  # {"size": {"eu": 36}} is a row
    if are_objects and all(value.keys() == values[0].keys() for value in values):
        return _rows_of_objects(document)
    # Exports wrap their rows, for example {"version": 1, "products": [{"image": "1.jpg"}, {"image": "2.jpg"}]}.
    for value in values:
        if isinstance(value, list) and any(map(_is_object, value)):
            return value
    return [document]


def _rows_of_split(document: dict, path: pathlib.Path) -> list[dict]:
    """Returns the rows of {"columns": [name, …], "data": [[cell, …], …]}; raises `UserError` for other names or cells.

    "index", a list of labels, is optional, see `_labelled`.
    """
    names = document["columns"]
    has_names = all(isinstance(name, (str, int)) for name in names)
    if not has_names or not all(isinstance(cells, list) for cells in document["data"]):
        raise UserError(
            f'{path} has "columns" and "data" of another form: expected a text for each column, as pandas writes '
            "them without a MultiIndex, and a list of values for each row."
        )
    for number, cells in enumerate(document["data"], start=1):
        if _has_more(cells, names):
            raise UserError(f'{path}: row {number} of "data" has {len(cells)} values, expected {len(names)}.')
    rows = [dict(zip(names, cells)) for cells in document["data"]]
    labels = document.get("index") or range(len(rows))
    if len(labels) != len(rows):
        raise UserError(f'{path} has {len(rows)} rows in "data" and {len(labels)} labels in "index": expected as many.')
    return _labelled(rows, labels)


def _has_more(cells: list, names: Sequence) -> bool:
    """Whether a row has more values than the table has columns; `None` and "" do not count."""
    return any(cell not in (None, "") for cell in cells[len(names) :])


def _rows_by_picture(document: dict) -> list[dict]:
    """Returns the rows [{"image": "1.jpg", "caption": "a hat"}] of {"1.jpg": "a hat"} or {"1.jpg": {"caption": …}}."""
    rows = []
    for name, value in document.items():
        columns = value if _is_object(value) else {"caption": value}
        rows.append({"image": name, **columns})
    return rows


def _rows_of_objects(document: dict[str, dict]) -> list[dict]:
    """Returns the rows of an object of objects with the same keys, as pandas' `to_json` writes it.

    With orient="index" it is {label: row}; with orient="columns" it is {name: {label: cell}}. These are told apart by
    labels that are numbers, or else by a column of pictures.
    """
    first_object, *_ = document.values()
    are_columns = all(map(str.isdigit, first_object))
    if not are_columns and not all(map(str.isdigit, document)):
        are_columns = any(map(_names_pictures, document.values()))
    if not are_columns:
        return _labelled(document.values(), document)
    rows = []
    for label in first_object:
        rows.append({name: column[label] for name, column in document.items()})
    return _labelled(rows, first_object)


def _names_pictures(column: dict) -> bool:
    """Whether all cells of a column {label: cell} name pictures."""
    return all(map(names_picture, map(str, column.values())))


def _labelled(rows: Iterable[dict], labels: Iterable) -> list[dict]:
    """Returns rows with their labels in a column "key", unless all labels are numbers: pandas' index may be a "sku"."""
    labels = list(map(str, labels))
    if all(map(str.isdigit, labels)):
        return list(rows)
    return [{"key": label, **row} for label, row in zip(labels, rows)]


def _row_of_object(values: Any, location: str, part: str, on_problem: Problem) -> Iterator[Row]:
    """Yields the row of an object, if `values` is an object, and otherwise reports the value.

    `part` is the word for the value in the report, "line" or "entry".
    """
    if _is_object(values):
        yield Row(location, flattened(values))
    else:
        on_problem(f"{part} that is no JSON object", location)


def _is_object(value: Any) -> bool:
    """Whether a value of JSON is an object."""
    return isinstance(value, dict)


def _object_of(line: str) -> dict | None:
    """Returns the object in a line, perhaps with a comma behind it; `None` for another line."""
    content = line.strip().rstrip(",")
    try:
        return parse_object(content.encode("utf-8", "surrogateescape"))  # refuses bytes that are not UTF-8
    except ValueError:
        return None


def _read_parquet(path: pathlib.Path, on_problem: Problem, _: OwnTable) -> Iterator[Row]:
    """Yields the rows of Parquet, with all columns, without holding the file in memory."""
    from mural_lite.parquet import read_rows

    for number, values in read_rows(path, None, on_problem):
        yield Row(f"{path}, row {number}", flattened(values))


MOST_ROWS = 1_048_576  # of a workbook's sheet, as Excel has them


def _read_excel(path: pathlib.Path, on_problem: Problem, table: OwnTable) -> Iterator[Row]:
    """Yields the rows of a sheet of an Excel workbook, and fills `table.heading`, see `workbooks.read_rows`.

    Raises `UserError` if openpyxl is not installed, and for a file that is too large or not a workbook.
    """
    try:
        import openpyxl  # noqa: F401 - `workbooks` needs it
    except ImportError:
        raise UserError(f"{path} needs openpyxl: {install_extra('catalogue')}; or save it as CSV (UTF-8).") from None
    from mural_search.tables import workbooks

    try:
        file = io.BytesIO(_content(path, _ignore))  # a damaged workbook fails below
        with zipfile.ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST:
                raise UserError(f"{path} is too large to be held in memory: save it as CSV (UTF-8).")
        yield from workbooks.read_rows(path, file, MOST_ROWS, table.heading)
    except (UserError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - openpyxl raises all errors of its parsers of ZIP and XML
        raise UserError(f"{path} is not a workbook that can be read: save it again, or as CSV (UTF-8).") from None


def _read_downloads(shard: pathlib.Path, on_problem: Problem, _: OwnTable) -> Iterator[Row]:
    """Yields the rows of a shard of img2dataset's output; the column "image" is b"" in a sample without a picture."""
    for sample in read_samples(shard, on_problem):
        values = flattened({**sample.metadata, "caption": sample.caption, "key": sample.key})
        yield Row(f"{shard}, {sample.key}", {**values, "image": sample.image or b""})


def _problem_with(row: Row) -> str:
    """Returns why a row cannot be used, by its names of columns and its texts; "" if it can."""
    all_text = "".join(itertools.chain(row.values, *map(texts_of, row.values.values())))
    if "\0" in all_text:
        return "text with a null character"
    if not is_text(all_text):
        return "text that its encoding does not allow, see --encoding"
    return ""


# A folder of pictures, with text files.

LONGEST_TEXT = 2**20  # bytes of a file of captions
# `de=…`, or with names of gettext's, as catalogues of programs have them: `sr_RS@latin.utf8=…`
_NAMED_LINE = re.compile(r"([A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*)(?:@([A-Za-z]+))?(\.utf-?8)?\s*=\s*(.*)", re.I)
_SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "arabic": "Arab"}


def _read_pictures(table: OwnTable, on_problem: Problem) -> Iterator[Row]:
    """Yields a row for each picture of a folder, with the captions of its text files and the words inside it.

    Reports text files that cannot be used, and begins the counts of `table.inside` again.
    """
    pictures = [path for path in table.files if path.suffix.lower() not in _OF_TEXT]
    table.inside.begin()
    text_files = _text_files_by_stem(table, set(map(_stem, pictures)), on_problem)
    for path in pictures:
        captions = []  # (column, caption)
        for language, text_file in text_files.get(_stem(path), ()):
            captions += _captions_of(text_file, language, table.form.encoding, on_problem)
        captions_inside, fields = table.inside.read(path)
        captions += [(_caption_column(known_language(caption.language)), caption.text) for caption in captions_inside]
        words_of_name = _words_of_name(path.stem)
        if table.uses_names and words_of_name and not captions:
            captions.append(("caption", words_of_name))
        columns: dict[str, tuple[str, ...]] = collections.defaultdict(tuple)
        for column, caption in captions:
            columns[column] += (caption,)
        yield Row(str(path), {"image": str(path.relative_to(table.folder)), **columns, **fields})


def _text_files_by_stem(
    table: OwnTable, stems: Collection[str], on_problem: Problem
) -> dict[str, list[tuple[str, pathlib.Path]]]:
    """Returns {stem: [(language or "", text file)]} of pictures; reports text files that belong to no picture.

    The captions of "hat.jpg" lie in "hat.txt", or in "hat.de.txt" for a language.

    Args:
      table: a folder of pictures.
      stems: the stems of all pictures, see `_stem`.
      on_problem: takes the reports.
    """
    text_files: dict[str, list[tuple[str, pathlib.Path]]] = {}
    for path in table.files:
        if path.suffix.lower() not in _OF_TEXT:
            continue
        stem = _stem(path)
        language = ""
        stem_before_code, _, code = stem.rpartition(".")
        if stem not in stems and language_of(code):
            stem = stem_before_code
            language = language_of(code)
        if not _is_file_below(table.folder, path):
            on_problem("text that is not a file of its folder, such as a link to a file elsewhere", str(path))
        elif stem in stems:
            text_files.setdefault(stem, []).append((language, path))
        else:
            on_problem("text without a picture of its name", str(path))
    return text_files


def _is_file_below(folder: pathlib.Path, path: pathlib.Path) -> bool:
    """Whether a path in a folder is a file, but not a link to a file elsewhere: its words will be shown to others."""
    try:
        return path_below(folder, str(path.relative_to(folder))).is_file()
    except BadImage:
        return False


def _stem(path: pathlib.Path) -> str:
    """Returns the path of a file without its ending: "hats/hat.de" for "hats/hat.de.txt"."""
    return str(path)[: -len(path.suffix)]


def _words_of_name(stem: str) -> str:
    """Returns the words of a file's name: "red_hat-2" -> "red hat"; "" for "IMG_2041", or if all words are short."""
    if _NUMBERED.match(stem):
        return ""
    words = [word for word in re.split(r"[\W_]+", stem) if word and not any(map(str.isdigit, word))]
    if not any(len(word) > 2 or not word.isascii() for word in words):  # "犬" is a word, "jp" says nothing
        return ""
    return " ".join(words)


_NUMBERED = re.compile(r"[A-Z]{3,4}[_-]?\d{4}")  # the form of all cameras' names, four characters and four digits (DCF)


def language_of_caption(column: str) -> str | None:
    """Returns "de" for the column "caption.de", "" for "caption", and `None` for a column without captions."""
    name, _, tag = column.partition(".")
    return tag if name == "caption" else None


def _caption_column(tag: str) -> str:
    """Returns the column for captions in a language, "caption.de", or "caption" for an unknown language."""
    return f"caption.{tag}" if tag else "caption"


def language_of(code: str) -> str:
    """Returns the BCP 47 tag of a code in a name ("de", "pt_BR", "deu"), "" for other texts."""
    tag = known_language(code.replace("_", "-"))
    # Most words of three letters are the code of some language: only languages that have a code of two letters count.
    code, _, _ = tag.partition("-")
    return tag if len(code) == 2 else ""


def _captions_of(path: pathlib.Path, language: str, encoding: str, on_problem: Problem) -> list[tuple[str, str]]:
    """Returns (column, caption) of each caption in a text file: one caption per line, or lines `de=…`.

    A caption without a language may precede the lines `de=…`. Of a file above `LONGEST_TEXT` only the beginning counts.

    Args:
      path: the text file.
      language: the language in the file's name, "" if it names none.
      encoding: the file's encoding; "": it is found.
      on_problem: takes a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_TEXT)
        text = _text(data, encoding or _find_encoding(data, path)).lstrip("\ufeff")
    except OSError:
        on_problem("text that cannot be read", str(path))
        return []
    except UserError:  # neither Unicode nor Western
        on_problem("text next to a picture in an unknown encoding, see --encoding", str(path))
        return []
    stripped = map(str.strip, text.splitlines())
    lines = list(filter(None, stripped))
    have_names = all(map(_named_caption, lines[1:]))  # the first line may be a caption without a language
    captions = []
    for line in lines:
        tag = language
        caption = line
        if have_names:
            tag, caption = _named_caption(line) or (language, line)
        if caption:
            captions.append((_caption_column(tag), caption))
    return captions


def _named_caption(line: str) -> tuple[str, str] | None:
    """Returns (BCP 47 tag, text) of a line `de=…`; `None` for another line."""
    match = _NAMED_LINE.fullmatch(line)
    if not match:
        return None
    code, script, encoding, caption = match.groups()
    if script and script.lower() in _SCRIPTS:
        code += f"-{_SCRIPTS[script.lower()]}"
    # With an encoding any code counts: no sentence begins with `ace.utf8=`, but many words are codes of languages.
    if encoding:
        tag = known_language(code.replace("_", "-"))
    else:
        tag = language_of(code)
    if not tag:
        return None
    return tag, caption
