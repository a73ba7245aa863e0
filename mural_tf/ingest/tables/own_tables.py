"""Rows of tables as people keep them: CSV, Excel, JSON, Parquet, img2dataset's output, folders of pictures with texts.

CSV is read by the standard library, Parquet by pyarrow, .xlsx by openpyxl. A row is a dictionary of the names of
columns and what stands there: a text, bytes, or several texts; objects within JSON and Parquet, and lists of objects,
become columns of their own, "captions.de".
What cannot be read goes to `on_problem(kind, place)`, see text_files.py, or `on_problem(kind, place, rows)`.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import pathlib
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mural_tf.data.pictures import ENDINGS
from mural_tf.errors import UserError, install_extra
from mural_tf.files import as_path
from mural_tf.ingest.parquet import read_rows
from mural_tf.ingest.source import find_files, known_language
from mural_tf.ingest.sources.img2dataset import find_shards, is_download, read_samples
from mural_tf.text_files import (
    DAMAGED,
    LONGEST_LINE,
    TOO_LONG,
    Problem,
    bounded_lines,
    buffered,
    clean,
    is_text,
    open_binary,
    parse_object,
    refuse,
    unpacked_size,
)

Value = str | bytes | tuple[str, ...]
CSV, JSON_LINES, JSON, PARQUET, EXCEL = "CSV", "JSON lines", "JSON", "Parquet", "Excel workbook"
DOWNLOADS, PICTURES = "img2dataset's output", "folder of pictures"
_FORMS = {".csv": CSV, ".tsv": CSV, ".tab": CSV, ".txt": CSV, ".jsonl": JSON_LINES, ".ndjson": JSON_LINES}
_FORMS |= {".json": JSON, ".parquet": PARQUET, ".xlsx": EXCEL}
_PACKED = (".gz", ".bz2", ".xz")
CUT_OFF = "file that is damaged or cut off: what follows is lost"
DEEPEST = 4  # levels of objects that become columns; what lies deeper stays JSON


class Row(NamedTuple):
    """What stands in a row: column -> value, without columns that are empty; `place` is "file:line" or the like."""

    place: str
    values: dict[str, Value]


@dataclasses.dataclass(frozen=True)
class Form:
    """How a file of text is written: encoding, what stands between columns, whether columns may be quoted."""

    encoding: str = "utf-8"
    delimiter: str = ""
    quoted: bool = True


@dataclasses.dataclass(frozen=True)
class OwnTable:
    """A table, of one file or several alike; `folder` is what the names of its pictures are relative to.

    `names`: of pictures without texts beside them, the names of their files are captions.
    """

    files: Sequence[pathlib.Path]
    kind: str
    folder: pathlib.Path
    form: Form = Form()
    names: bool = False

    def describe(self) -> str:
        """Returns in words what was found, for the user to check."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        name = self.folder if self.kind in (DOWNLOADS, PICTURES) else f"{self.files[0]}{more}"
        if self.kind == CSV:
            between = {"\t": "tabs"}.get(self.form.delimiter, repr(self.form.delimiter))
            return f"{name}: {self.form.encoding}, columns separated by {between}"
        return f"{name}: {self.kind}"

    def rows(self, on_problem: Problem) -> Iterator[Row]:
        """Yields the rows, in the order of the files, in bounded memory (.json files are held whole)."""
        readers = {
            CSV: functools.partial(_read_csv, form=self.form),
            JSON_LINES: functools.partial(_read_json_lines, encoding=self.form.encoding),
            JSON: functools.partial(_read_json, encoding=self.form.encoding),
            PARQUET: _read_parquet,
            EXCEL: _read_excel,
            DOWNLOADS: _read_downloads,
        }
        if self.kind == PICTURES:
            yield from _read_pictures(self.folder, self.files, on_problem, self.names)
            return
        for path in self.files:
            for row in readers[self.kind](path, on_problem):
                problem = _problem_with(row)
                if problem:
                    on_problem(problem, row.place)
                else:
                    yield row

    def identity(self) -> list:
        """Returns what tells this table from another one or a later state of it, as JSON values."""
        if self.kind in (DOWNLOADS, PICTURES):
            return [[str(path.relative_to(self.folder)), _state(path)] for path in self.files]
        return [[path.name, _digest(path)] for path in self.files]


def open_table(name: str, encoding: str = "", names: bool = False) -> OwnTable:
    """Returns the table that a name stands for: a file, files alike (a pattern), or a folder.

    Args:
      name: here or in an object store.
      encoding: of text; by default it is found: a byte order mark, UTF-16 by its null bytes, UTF-8, else Windows-1252.
      names: see `OwnTable`.

    Raises:
      UserError: there is no such file, it is no table, or holds nothing that looks like one; `names` of a table.
    """
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError:
        raise UserError(f"Unknown encoding {encoding!r}: expected a name such as utf-8, cp1252 or shift_jis.") from None
    table = _open_folder(as_path(name)) if as_path(name).is_dir() else _open_files(name, encoding)
    if names and table.kind != PICTURES:
        raise UserError(f"--captions=names is for a folder of pictures; {name} has columns: --columns=caption=NAME.")
    return dataclasses.replace(table, names=names)


def _open_files(name: str, encoding: str) -> OwnTable:
    files = find_files(name)
    kinds = {_kind_of(path) for path in files}
    if len(kinds) > 1:
        raise UserError(f"{name} stands for files of several kinds ({', '.join(sorted(kinds))}): give one kind.")
    kind, path = kinds.pop(), files[0]
    form = Form() if kind in (PARQUET, EXCEL) else Form(encoding or find_encoding(path))
    if kind == CSV:
        form = _find_delimiter(path, form)
    return OwnTable(files, kind, path.parent, form)


def _kind_of(path: pathlib.Path) -> str:
    plain = path.with_suffix("") if path.suffix in _PACKED else path
    kind = _FORMS.get(plain.suffix.lower())
    if kind is None or path.is_dir():
        raise UserError(
            f"{path} is no table that can be read: expected {', '.join(_FORMS)}, or a folder of pictures. "
            "Other spreadsheets: save as .xlsx or as CSV (UTF-8)."
        )
    return kind


def _open_folder(folder: pathlib.Path) -> OwnTable:
    if is_download(folder):
        shards = find_shards(folder)
        return OwnTable(shards, PARQUET if shards[0].suffix == ".parquet" else DOWNLOADS, folder)
    tables = sorted(folder.glob("*.parquet"))
    if tables:
        return OwnTable(tables, PARQUET, folder)
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower()[1:] in (*ENDINGS, "txt"))
    if not any(path.suffix.lower() != ".txt" for path in files):
        raise UserError(f"{folder} holds no pictures: expected files ending in .{', .'.join(ENDINGS)}.")
    return OwnTable(files, PICTURES, folder)


def _state(path: pathlib.Path) -> int | str:
    if path.suffix.lower() == ".txt":
        return _digest(path)
    return path.stat().st_size if path.is_file() else 0


def _digest(path: pathlib.Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()


# Text: encodings and separators.

_MARKS = (  # the longer first: UTF-32's begins as UTF-16's does
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_LOOKED_AT = 1_000_000  # lines in which the encoding is looked for


def find_encoding(path: pathlib.Path) -> str:
    """Returns the likeliest encoding of a file of text; UTF-8 may have a few bytes that are none."""
    broken = other = 0
    with open_binary(path) as (content, _), contextlib.suppress(*DAMAGED):
        content = buffered(content)
        begin = content.peek()[: 1 << 12]
        for mark, name in _MARKS:
            if begin.startswith(mark):
                return name
        for name, odd in (("utf-16-le", 1), ("utf-16-be", 0)):
            if 2 * begin[odd::2].count(0) > len(begin[odd::2]) and not begin[1 - odd :: 2].count(0):
                return name
        for line in itertools.islice(bounded_lines(content), _LOOKED_AT):
            if line and not line.isascii():  # damage is in few lines, another encoding in all
                is_text_of_utf8 = is_text(line.decode("utf-8", "surrogateescape"))
                broken, other = broken + (not is_text_of_utf8), other + is_text_of_utf8
    return "utf-8" if other >= broken else "cp1252"


class _Lines:
    """The lines of a file of text with their ends; some may be given back.

    Attributes:
      place: of the first line since `begin_row`: a reader of CSV takes several for a row with line breaks.
    """

    def __init__(self, path: pathlib.Path, encoding: str, on_problem: Problem):
        self.path, self.encoding, self.on_problem = path, encoding, on_problem
        self._numbered, self._again = self._read(), collections.deque()
        self._taken: list[tuple[int, str]] = []

    @property
    def place(self) -> str:
        return f"{self.path}:{self._taken[0][0]}"

    def begin_row(self) -> None:
        self._taken = []

    def give_back(self) -> None:
        """Lets all lines but the first that were taken for the row be read again."""
        self._again.extendleft(reversed(self._taken[1:]))

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        self._taken.append(self._again.popleft() if self._again else next(self._numbered))
        return self._taken[-1][1]

    def _read(self) -> Iterator[tuple[int, str]]:
        number = 0
        # Bytes that are no text of an encoding of bytes become lone surrogates, which `is_text` finds.
        errors = "replace" if self.encoding.lower().startswith(("utf-16", "utf-32")) else "surrogateescape"
        with open_binary(self.path) as (content, _):
            text = io.TextIOWrapper(buffered(content), encoding=self.encoding, errors=errors, newline="")
            try:
                while line := text.readline(LONGEST_LINE):
                    number += 1
                    if len(line) == LONGEST_LINE and line[-1] not in "\r\n":
                        self.on_problem(TOO_LONG, f"{self.path}:{number}")
                        while line and line[-1] not in "\r\n":
                            line = text.readline(LONGEST_LINE)
                    else:
                        yield number, line
            except (*DAMAGED, UnicodeError):
                self.on_problem(CUT_OFF, f"{self.path}:{number + 1}")


_DELIMITERS = (",", ";", "\t", "|")
_SAMPLE = 1 << 18  # characters in which the delimiter is looked for


def _find_delimiter(path: pathlib.Path, form: Form) -> Form:
    """Returns the form whose rows agree most in their number of columns."""
    lines = _sample_lines(path, form.encoding)
    if not any(map(str.strip, lines)):
        raise UserError(f"{path} is empty: expected columns for pictures and captions.")
    if re.fullmatch(r"sep=[,;|\t]\s*", lines[0]):  # what Excel writes and reads
        return dataclasses.replace(form, delimiter=lines[0][4])
    candidates = [dataclasses.replace(form, delimiter=d, quoted=q) for q in (True, False) for d in _DELIMITERS]
    shares = [_agreement(lines, candidate) - 0.1 * (not candidate.quoted) for candidate in candidates]
    best = max(range(len(candidates)), key=shares.__getitem__)
    if shares[best] <= 0:
        raise UserError(
            f"{path} has one column only, or in its first row: expected columns for pictures and captions, separated "
            f"by one of {' '.join(map(repr, _DELIMITERS))}."
        )
    return candidates[best]


def _sample_lines(path: pathlib.Path, encoding: str) -> list[str]:
    lines, size = [], 0
    for line in _Lines(path, encoding, lambda kind, place: None):
        lines.append(line)
        size += len(line)
        if size > _SAMPLE:
            break
    return lines


def _agreement(lines: Sequence[str], form: Form) -> float:
    """Returns the share of rows with the most frequent number of columns; 0 if that, or the first row, is one column.

    A decimal comma in every row is none that separates columns: the row with their names has none.
    """
    lengths: list[int] = []
    reader = _csv_reader(iter(lines), form)
    while True:
        try:
            lengths.append(len(next(reader)))
        except StopIteration:
            break
        except csv.Error:
            lengths.append(0)
    lengths = [length for length in lengths[:-1] or lengths if length]  # the sample may end within a row
    if not lengths or lengths[0] == 1:
        return 0.0
    usual = max(set(lengths), key=lambda length: (lengths.count(length), length))
    return lengths.count(usual) / len(lengths) if usual > 1 else 0.0


def _csv_reader(lines: Iterator[str], form: Form):
    quoting = csv.QUOTE_MINIMAL if form.quoted else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=form.delimiter, quoting=quoting)


# Each form of table.


def _read_csv(path: pathlib.Path, on_problem: Problem, form: Form) -> Iterator[Row]:
    lines = _Lines(path, form.encoding, on_problem)
    reader, header = _csv_reader(lines, form), None
    while True:
        lines.begin_row()
        problem, cells = "", []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"row that is no CSV ({error})"
        if not problem and not any(cell.strip() for cell in cells) or re.fullmatch(r"sep=.?", "".join(cells)):
            continue
        if header is None and not problem:
            header = _header(cells)
            if not _are_values(cells):
                continue
        problem = problem or _problem_with_cells(cells, header, form)
        if problem:  # after a quote that nothing closes the next line is a row again
            on_problem(problem, lines.place)
            lines.give_back()
        else:
            yield Row(lines.place, {name: cell for name, cell in zip(header, cells) if cell.strip()})


def _problem_with_cells(cells: Sequence[str], header: Sequence[str], form: Form) -> str:
    """Returns why the cells of a row are none of this table, or ""."""
    if any(cell.strip() for cell in cells[len(header) :]):
        return "row with more columns than the first"
    broken = [cell for cell in cells if "\n" in cell or "\r" in cell]
    if broken and (len(cells) < len(header) or any(_holds_rows(cell, form) for cell in broken)):
        return "row with a quote that nothing closes"
    return ""


def _holds_rows(cell: str, form: Form) -> bool:
    """Tells whether a cell with line breaks holds rows or parts of them: a line with several columns and a picture."""
    try:
        rows = csv.reader(cell.splitlines(), delimiter=form.delimiter, quoting=csv.QUOTE_NONE)
        return any(len(row) > 1 and any(map(names_picture, row)) for row in rows)
    except csv.Error:
        return True


def _are_values(cells: Sequence[str]) -> bool:
    """Tells whether a first row is one like all others: it names a picture."""
    return any(names_picture(cell) for cell in cells)


def _header(cells: Sequence[str]) -> list[str]:
    """Returns a name of its own for each column: its number where a row of values comes first, or it has none."""
    if _are_values(cells):
        return [str(number) for number in range(1, len(cells) + 1)]
    names, taken = [], set()
    for number, cell in enumerate(cells, start=1):
        name = clean(cell).lstrip("\ufeff") or f"column {number}"
        names.append(f"{name} ({number})" if name in taken else name)
        taken.add(name)
    return names


def texts_of(value: Value) -> tuple[str, ...]:
    """Returns the texts of a value: one, several, or none of a picture."""
    return () if isinstance(value, bytes) else (value,) if isinstance(value, str) else value


def names_picture(value: Value) -> bool:
    """Tells whether a value is a picture, or the name or address of one by its ending."""
    if isinstance(value, bytes):
        return True
    text = (texts_of(value) or ("",))[0]
    plain = re.split(r"[?#]", text.strip())[0] if "://" in text else text.strip()
    return plain.rpartition(".")[2].lower() in ENDINGS and "." in plain


def _read_json_lines(path: pathlib.Path, on_problem: Problem, encoding: str) -> Iterator[Row]:
    lines = _Lines(path, encoding, on_problem)
    for line in lines:
        try:
            if line.strip():
                values = parse_object(line.encode("utf-8", "surrogateescape"))  # says so where it is no text
                yield Row(lines.place, flattened(values))
        except ValueError:
            on_problem("line that is no JSON object", lines.place)
        lines.begin_row()


LARGEST_JSON = 2**30  # bytes of a file that is held in memory


def _read_json(path: pathlib.Path, on_problem: Problem, encoding: str) -> Iterator[Row]:
    if unpacked_size(path) > LARGEST_JSON:
        raise UserError(f"{path} is too large to be held in memory: write one object a line (.jsonl).")
    try:
        content = json.loads("".join(_Lines(path, encoding, refuse)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {str(error) or 'it is nested too deeply'}.") from None
    if isinstance(content, dict):
        content = next((value for value in content.values() if isinstance(value, list)), [content])
    if not isinstance(content, list):
        raise UserError(f"{path} holds a {type(content).__name__}: expected a list of objects, a row each.")
    for number, values in enumerate(content, start=1):
        place = f"{path}, object {number}"
        if isinstance(values, dict):
            yield Row(place, flattened(values))
        else:
            on_problem("entry that is no JSON object", place)


def _read_parquet(path: pathlib.Path, on_problem: Problem) -> Iterator[Row]:
    for number, values in read_rows(path, None, on_problem):
        yield Row(f"{path}, row {number}", flattened(values))


def _read_excel(path: pathlib.Path, on_problem: Problem) -> Iterator[Row]:
    """Rows of the sheet that was open when the workbook was saved; what stands alone above the names is a title."""
    try:
        import openpyxl
    except ImportError:
        raise UserError(f"{path} needs openpyxl: {install_extra('catalogue')}; or save it as CSV (UTF-8).") from None
    with open_binary(path) as (content, _):
        try:
            sheet = openpyxl.load_workbook(io.BytesIO(content.read()), read_only=True, data_only=True).active
            header: list[str] = []
            for number, values in enumerate(sheet.iter_rows(values_only=True), start=1):
                cells = [str(_value(value)) for value in values]
                if not header and sum(map(bool, map(str.strip, cells))) > 1:
                    header = _header(cells)
                    if not _are_values(cells):
                        continue
                if header:
                    named = zip(header, cells)
                    yield Row(f"{path}, row {number}", {name: cell for name, cell in named if cell.strip()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} is no workbook that can be read ({error}): save it again, or as CSV.") from None


def _read_downloads(shard: pathlib.Path, on_problem: Problem) -> Iterator[Row]:
    for sample in read_samples(shard, on_problem):
        values = flattened({**sample.metadata, "caption": sample.caption, "key": sample.key})
        yield Row(f"{shard}, {sample.key}", {**values, "image": sample.image or b""})


def flattened(values: Mapping[str, Any], before: str = "", depth: int = 1) -> dict[str, Value]:
    """Returns what a row of JSON or Parquet holds as column -> value; objects become columns "name.key"."""
    found: dict[str, Value] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        several = value if isinstance(value, list) and all(isinstance(one, dict) for one in value) else [value]
        if value and isinstance(several[0], dict) and depth < DEEPEST:
            for part in several:  # of a list of objects each column holds the texts of all
                for column, text in flattened(part, f"{name}.", depth + 1).items():
                    held = found.setdefault(column, text)
                    if held is not text and not isinstance(text, bytes):
                        found[column] = (*texts_of(held), *texts_of(text))
            continue
        value = _value(value)
        if value and (isinstance(value, bytes) or any(map(str.strip, value))):
            found[name] = value
    return found


def _value(value: Any) -> Value:
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(text for text in map(_value, value) if isinstance(text, str) and text.strip())
    if value is None or value != value:  # NaN, which tables of numbers have where nothing stands
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return _deep_json(value) if isinstance(value, dict) else str(value)


def _deep_json(value: dict) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError, TypeError):
        return ""


def _problem_with(row: Row) -> str:
    """Returns why no text of a row can be used, or ""."""
    for name, value in row.values.items():
        texts = (name, *texts_of(value))
        if any("\0" in text for text in texts):
            return "text with a null character"
        if not all(map(is_text, texts)):
            return "text that its encoding does not allow"
    return ""


# A folder of pictures, with texts beside them.

LONGEST_TEXT = 2**20  # bytes of a file of captions
# `de=…`, or with names of gettext's, as catalogues of programs have them: `sr_RS@latin.utf8=…`
_NAMED_LINE = re.compile(r"([A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*)(?:@([A-Za-z]+))?(\.utf-?8)?\s*=\s*(.*)", re.I)
_SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "arabic": "Arab"}


def _read_pictures(
    folder: pathlib.Path, files: Sequence[pathlib.Path], on_problem: Problem, names: bool = False
) -> Iterator[Row]:
    texts = {str(path)[: -len(path.suffix)]: path for path in files if path.suffix.lower() == ".txt"}
    pictures = {str(path)[: -len(path.suffix)] for path in files if path.suffix.lower() != ".txt"}
    of_picture: dict[str, list[tuple[str, pathlib.Path]]] = {}
    for stem, path in texts.items():
        begin, _, code = stem.rpartition(".")
        owner, language = (begin, language_of(code)) if stem not in pictures and language_of(code) else (stem, "")
        if owner in pictures:
            of_picture.setdefault(owner, []).append((language, path))
        else:
            on_problem("text without a picture of its name", str(path))
    for path in files:
        if path.suffix.lower() != ".txt":
            captions: dict[str, tuple[str, ...]] = {}
            for language, text in of_picture.get(str(path)[: -len(path.suffix)], ()):
                for name, found in _captions_of(text, language).items():
                    captions[name] = (*captions.get(name, ()), *found)
            if names and not captions and (words := _words_of_name(path.stem)):
                captions["caption"] = (words,)
            row = Row(str(path), {"image": str(path.relative_to(folder)), **captions})
            problem = _problem_with(row)
            if problem:
                on_problem(problem, row.place)
            else:
                yield row


def _words_of_name(stem: str) -> str:
    """Returns the words of a file's name, "" for what cameras and programs write: "red_hat-2" -> "red hat"."""
    words = [word for word in re.split(r"[\W_]+", stem) if word and not any(map(str.isdigit, word))]
    says = [word for word in words if word.casefold() not in _OF_CAMERAS]
    return " ".join(words) if any(len(word) > 2 or not word.isascii() for word in says) else ""


_OF_CAMERAS = set("img dsc dscn dscf pict picture photo image mvi pxl scan screenshot whatsapp unnamed".split())


def language_of_caption(column: str) -> str | None:
    """Returns the language in a name of those columns, "caption" or "caption.de"; `None` for another column."""
    name, _, tag = column.partition(".")
    return tag if name == "caption" else None


def language_of(code: str) -> str:
    """Returns the BCP 47 tag of a code that stands in a name, "" for what is none: "de", "pt_BR", "deu"."""
    tag = known_language(code.replace("_", "-"))
    # Most words of three letters are the code of some language: only those count that have a shorter one.
    return tag if len(tag.split("-")[0]) == 2 else ""


def _captions_of(path: pathlib.Path, language: str) -> dict[str, tuple[str, ...]]:
    """Returns column -> captions of a file: a caption a line, or lines `de=…`, which one caption may precede."""
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_TEXT)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode(find_encoding(path), "surrogateescape")
    except OSError:
        return {}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [_named_caption(line) for line in lines]
    if not all(named[1:]):
        named = [None] * len(lines)
    found: dict[str, tuple[str, ...]] = {}
    for line, one in zip(lines, named):
        tag, caption = one or (language, line)
        name = f"caption.{tag}" if tag else "caption"
        if caption:
            found[name] = (*found.get(name, ()), caption)
    return found


def _named_caption(line: str) -> tuple[str, str] | None:
    """Returns the language of a line `de=…` and what follows; `None` for another line."""
    match = _NAMED_LINE.fullmatch(line)
    if not match:
        return None
    code, variant, encoded, caption = match.groups()
    code = f"{code}-{_SCRIPTS[variant.lower()]}" if variant and variant.lower() in _SCRIPTS else code
    # No sentence begins with `ace.utf8=`, but many words are codes of languages.
    tag = known_language(code.replace("_", "-")) if encoded else language_of(code)
    return (tag, caption) if tag else None
