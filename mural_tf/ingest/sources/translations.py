"""Translation pairs: line-aligned files (OPUS's Moses zips, LASER's Tatoeba test, any two files), and tables."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
import io
import itertools
import math
import operator
import pathlib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, ClassVar, NamedTuple

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.parquet import UnreadableParquet, open_parquet, read_rows
from mural_lite.text_files import (
    DAMAGED,
    TOO_LONG,
    Part,
    Unit,
    bounded_lines,
    buffered,
    clean,
    cut,
    decode,
    is_text,
    known_language,
    open_binary,
    read_lines,
    refuse_failure,
    skip_to,
    unpacked_size,
)
from mural_tf.ingest.source import Pair, Reading, Source, column_of, find_files, lines_of

_END = object()  # in place of the lines that a shorter file lacks
PARQUET = ".parquet"


class LinePair(NamedTuple):
    """The lines of one number of two aligned files.

    Attributes:
      lines: the line of each file, and of a file of scores if it is used; `None` for a line that is too long.
      languages: BCP 47 tags of the two lines.
      place: where the first line is, for messages.
      split: the pair's split.
    """

    lines: tuple[bytes | None, ...]
    languages: tuple[str, str]
    place: str
    split: str


class AlignedFiles(NamedTuple):
    """Two files whose lines of one number belong together, with the codes of their languages and the pairs' split."""

    path_a: pathlib.Path
    path_b: pathlib.Path
    codes: tuple[str, str]
    split: str


class AlignedSource(Source):
    """Base of sources of two files, plain or compressed, whose lines of one number belong together.

    A family implements `pairs`. `min_score` is the lowest score of a pair that is kept.
    """

    min_score = 0.0

    def pairs(self) -> Iterator[AlignedFiles]:
        """Yields the pairs of files; a second file may be missing, which `read` counts."""
        raise NotImplementedError

    def files(self) -> list[pathlib.Path]:
        """Returns the first file of every pair; the second is found again by `pairs`."""
        return [pair.path_a for pair in self.pairs()]

    def input_files(self) -> list[pathlib.Path]:
        """Returns both files of every pair."""
        paths: list[pathlib.Path] = []
        for pair in self.pairs():
            paths += [pair.path_a, pair.path_b]
        return [path for path in paths if path.exists()]

    def weight(self, path: pathlib.Path) -> int:
        """Returns about how many bytes the records of a file and its partner, which is about as large, will have."""
        return 2 * super().weight(path)

    def read(self, unit: Unit, reading: Reading) -> Iterator[LinePair]:
        """Yields the aligned lines of a unit; `reading.tally` counts an unknown language, and a missing second file."""
        pair = next(pair for pair in self.pairs() if str(pair.path_a) == unit.path)
        file_reading = _reading_of_file(unit, reading)
        languages = self.tags(pair.codes, str(pair.path_a), file_reading)
        if languages is None:
            return
        if not pair.path_b.exists():
            file_reading.tally.skip("aligned file without its partner", str(pair.path_b))
            return
        part = unit.part(unpacked_size(pair.path_a))
        with open_binary(pair.path_a) as (file_a, _), open_binary(pair.path_b) as (file_b, _):
            files = {str(pair.path_a): file_a, str(pair.path_b): file_b}
            yield from read_aligned_lines(files, languages, reading, pair.split, part)

    def tags(self, codes: tuple[str, str], location: str, reading: Reading) -> tuple[str, str] | None:
        """Returns the BCP 47 tags of two languages' codes; `None` if a code is unknown, which `reading.tally` counts.

        `location` is the place of the codes, for the tally.
        """
        tags = tuple(map(known_language, codes))
        if all(tags):
            return tags
        reading.tally.skip(f"unknown language in {'-'.join(codes)}", location)
        return None

    def records(self, item: LinePair, reading: Reading) -> Iterable[Pair]:
        """Yields the pair of two usable lines with a high enough score; `reading.tally` counts any other pair."""
        tally = reading.tally
        line_a, line_b, *scores = item.lines  # at most one score
        if line_a is None or line_b is None:
            tally.skip(TOO_LONG, item.place)
            return
        try:
            text_a = clean(decode(line_a))
            text_b = clean(decode(line_b))
        except UnicodeDecodeError:
            tally.skip("text that is not UTF-8", item.place)
            return
        if not text_a or not text_b:
            tally.skip("empty text", item.place)
        elif scores and not _is_number(scores[0]):
            tally.skip("score that is not a number", item.place)
        elif scores and float(scores[0]) < self.min_score:
            tally.leave_out("score below min_score", item.place)
        else:
            yield Pair(text_a, item.languages[0], text_b, item.languages[1], "", item.place, item.split)


def _reading_of_file(unit: Unit, reading: Reading) -> Reading:
    """Returns `reading` for a file's first unit, and otherwise a new one: problems of a whole file count once."""
    if unit.number == 0:
        return reading
    return Reading()


def read_aligned_lines(
    files: dict[str, IO[bytes]], languages: tuple[str, str], reading: Reading, split: str, part: Part
) -> Iterator[LinePair]:
    """Yields the lines of each number of two files, and of a third file with scores, in bounded memory.

    A line ends only with \\n: U+2028, U+0085 and lone carriage returns occur inside sentences. Where one file ends
    before another, the rest is a problem, because nothing says which lines are missing.

    Args:
      files: {name: file}, in the order of the lines of a `LinePair`.
      languages: the languages of the first two files.
      reading: its tally counts problems.
      split: the pairs' split.
      part: only lines that begin in this part of the first file; a problem before it is counted with an earlier part.
    """
    names = list(files)
    number = 0  # the number of the last line
    counts_problems = part.begin == 0  # problems before this part are counted by an earlier part
    first_file, *other_files = [buffered(file) for file in files.values()]
    try:
        lines_before, part = skip_to(first_file, part)
        missing_counts = [skip_lines(other, lines_before) for other in other_files]
        counts_problems = not any(missing_counts)
        rows = itertools.zip_longest(bounded_lines(first_file, part), *map(bounded_lines, other_files), fillvalue=_END)
        for number, lines in enumerate(rows, start=lines_before + 1):
            if _END in lines:
                shorter_file = _shorter_file(names, lines, part)
                if shorter_file and counts_problems:
                    reading.tally.skip("aligned file with fewer lines than its partner", f"{shorter_file}:{number}")
                return
            if number == 1:
                lines = tuple(map(_without_bom, lines))
            yield LinePair(lines, languages, f"{names[0]}:{number}", split)
    except (*DAMAGED, zipfile.BadZipFile) as error:
        refuse_failure(error, names[0])
        if counts_problems:
            reading.tally.skip("file that is damaged or cut off: what follows is lost", f"{names[0]}:{number + 1}")


def _shorter_file(names: Sequence[str], lines: tuple[Any, ...], part: Part) -> str:
    """Returns the name of the first file that ends before the others; "" if only the part of the first file ends.

    `lines` has `_END` in the place of each file that ends.
    """
    if lines[0] is _END and part.end is not None:
        return ""
    return names[lines.index(_END)]


def _without_bom(line: bytes | None) -> bytes | None:
    """Returns the first line of a file without a byte order mark; `None` for a line that is too long."""
    if line is None:
        return None
    return line.removeprefix(codecs.BOM_UTF8)


def _is_number(text: bytes | None) -> bool:
    """Whether a line of scores is a finite number."""
    try:
        return math.isfinite(float(text or b""))
    except ValueError:
        return False


@dataclasses.dataclass
class Opus(AlignedSource):
    """OPUS's Moses zips, for example `opus:downloads/de-en.txt.zip,min_score=1.1`.

    `OPUS-{CORPUS}/{version}/moses/{a}-{b}.txt.zip` holds `{CORPUS}.{a}-{b}.{a}` and `….{b}`, CCMatrix also `….scores`,
    one number on each line. Other members (README, LICENSE, ids) are ignored.

    Attributes:
      min_score: the lowest of CCMatrix's scores that is kept; 0 keeps all pairs and reads no scores.
    """

    KIND: ClassVar[str] = "opus"
    min_score: float = 0.0

    def weight(self, path: pathlib.Path) -> int:
        """Returns about how many bytes the records will have, by the sizes of the zip's members."""
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                return int(sum(member.file_size for member in archive.infolist()) * self.GROWTH)
        except (zipfile.BadZipFile, OSError, ValueError):
            return Source.weight(self, path)  # reading the file reports the problem

    def files(self) -> list[pathlib.Path]:
        """Returns the zips."""
        return find_files(self.path)

    input_files = files

    def read(self, unit: Unit, reading: Reading) -> Iterator[LinePair]:
        """Yields the aligned lines of a unit of a zip; `reading.tally` counts a zip that cannot be used."""
        file_reading = _reading_of_file(unit, reading)
        try:
            with as_path(unit.path).open("rb") as file, zipfile.ZipFile(file) as archive:
                yield from self._read_archive(unit, archive, reading, file_reading)
        except UserError:
            raise
        except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
            if not as_path(unit.path).is_dir():
                refuse_failure(error, unit.path)
            file_reading.tally.skip("file that is not a zip or is cut off", unit.path)
        except (RuntimeError, NotImplementedError) as error:  # a password; a compression that Python lacks
            file_reading.tally.skip("zip that cannot be unpacked", f"{unit.path} ({error})")

    def _read_archive(
        self, unit: Unit, archive: zipfile.ZipFile, reading: Reading, file_reading: Reading
    ) -> Iterator[LinePair]:
        """Yields the aligned lines of an opened zip; raises `UserError` for a `min_score` if the zip has no scores.

        Problems of lines are counted in `reading`, and problems of the whole zip in `file_reading`.
        """
        aligned = aligned_names(archive.namelist())
        if aligned is None:
            file_reading.tally.skip("zip without aligned files NAME.a-b.a and NAME.a-b.b", unit.path)
            return
        members, codes, scores = aligned
        languages = self.tags(codes, unit.path, file_reading)
        if languages is None:
            return
        names = list(members)  # of the files to read
        if self.min_score:
            if scores is None:
                raise UserError(f"{unit.path} holds no .scores: leave out min_score for this corpus.")
            names.append(scores)
        with contextlib.ExitStack() as stack:
            files = {}
            for name in names:
                files[f"{unit.path}!{name}"] = stack.enter_context(archive.open(name))
            part = unit.part(archive.getinfo(members[0]).file_size)
            yield from read_aligned_lines(files, languages, reading, "train", part)


def aligned_names(names: Sequence[str]) -> tuple[tuple[str, str], tuple[str, str], str | None] | None:
    """Returns the names of two aligned files, `STEM.a-b.a` and `STEM.a-b.b`, among the names in a zip.

    Returns:
      ((name a, name b), (code a, code b), the name `STEM.a-b.scores` or `None`); `None` if there is no such pair.
    """
    for name in sorted(names):
        stem, _, suffix = name.rpartition(".")
        _, _, pair = stem.replace("/", ".").rpartition(".")
        for code_a, code_b in _divisions(pair):
            partner = f"{stem}.{code_b}"
            if suffix == code_a and partner in names:
                scores = f"{stem}.scores"
                return (name, partner), (code_a, code_b), scores if scores in names else None
    return None


def _divisions(pair: str) -> Iterator[tuple[str, str]]:
    """Yields the two codes for every way to divide "zh-Hant-en" at a hyphen, because a code may contain hyphens."""
    parts = pair.split("-")
    for middle in range(1, len(parts)):
        yield "-".join(parts[:middle]), "-".join(parts[middle:])


@dataclasses.dataclass
class Lines(AlignedSource):
    """Any two aligned files: `lines:corpus.en,partner=corpus.de,language_a=en,language_b=de`; .gz, .bz2, .xz too.

    Attributes:
      partner: the other file.
      language_a: the first file's language.
      language_b: the partner's language.
    """

    KIND: ClassVar[str] = "lines"
    partner: str = ""
    language_a: str = "en"
    language_b: str = ""

    def pairs(self) -> Iterator[AlignedFiles]:
        """Yields the two files; raises `UserError` if `path` matches several files, or the partner is not named."""
        files = find_files(self.path)
        if len(files) != 1 or not self.partner:
            raise UserError(f"lines:{self.path} needs one file, and its partner as partner=FILE.")
        yield AlignedFiles(files[0], as_path(self.partner), (self.language_a, self.language_b), "train")


@dataclasses.dataclass
class Tatoeba(AlignedSource):
    """LASER's Tatoeba test: `tatoeba:LASER/data/tatoeba/v1` with `tatoeba.deu-eng.deu` and `.eng`, as text pairs.

    It is a benchmark: its pairs go to the split "test". OPUS's Tatoeba corpus for training is `opus:`; remove these
    test sentences from it with --exclude_texts.
    """

    KIND: ClassVar[str] = "tatoeba"

    def pairs(self) -> Iterator[AlignedFiles]:
        """Yields each file in another language with its English partner; raises `UserError` if there is no file."""
        paths = sorted(as_path(self.path).glob("tatoeba.*-eng.???"))
        other_paths = [path for path in paths if path.suffix != ".eng"]
        if not other_paths:
            raise UserError(f"No file like {self.path}/tatoeba.deu-eng.deu.")
        for path in other_paths:
            yield AlignedFiles(path, path.with_suffix(".eng"), (path.suffix[1:], "eng"), "test")


@dataclasses.dataclass
class Pairs(Source):
    """A table with a pair in each row, TSV or Parquet: `pairs:mined.tsv.gz,language_b=de`.

    Parquet by its ending; all other files are TSV, .gz, .bz2 and .xz too, in which quotation marks mean nothing. See
    docs/data.md for OPUS-100, translation memories and translations of captions.

    Attributes:
      text_a, text_b: columns of the texts, by number from 0 or by name; "translation.de" is the field de of a column.
      language_a, language_b: languages of the texts; or columns with the languages, as "column 2" or "column lang".
      group: column whose value is equal in pairs of one meaning; "": there is no such column.
      header: whether the first line of a TSV names the columns.
      split: the pairs' split.
    """

    KIND: ClassVar[str] = "pairs"
    text_a: str = "0"
    text_b: str = "1"
    language_a: str = "en"
    language_b: str = ""
    group: str = ""
    header: bool = False
    split: str = "train"

    def units(self, unit_bytes: int) -> list[Unit]:
        """Returns units of about `unit_bytes` of records: Parquet is cut between row groups, other files at lines."""
        units: list[Unit] = []
        for path in self.files():
            if path.suffix == PARQUET:
                units += row_group_units(path, 1.0, unit_bytes)  # records are about as large as unpacked columns
            else:
                units += cut(path, self.weight(path), unit_bytes)
        return units

    def read(self, unit: Unit, reading: Reading) -> Iterator[tuple[dict[str, Any] | None, str]]:
        """Yields ({column, as an option names it: value}, place) of each row of the unit.

        A row that lacks a column is (`None`, place). Raises `UserError` if the whole file lacks it.
        """
        options = (self.text_a, self.text_b, self.group, column_of(self.language_a), column_of(self.language_b))
        columns = [column for column in options if column]
        path = as_path(unit.path)
        if path.suffix == PARQUET:
            yield from _rows_of_parquet(path, columns, unit, reading)
            return
        header = ""
        if self.header:
            header = _first_line(path)
        numbers = {column: _number_of(column, header.split("\t"), path) for column in columns}
        last_number = max(numbers.values())
        for line, location in lines_of(unit, reading, self.header):
            fields = line.split("\t")
            if len(fields) > last_number:
                yield {column: fields[number] for column, number in numbers.items()}, location
            else:
                yield None, location

    def records(self, item: tuple[dict[str, Any] | None, str], reading: Reading) -> Iterable[Pair]:
        """Yields the pair of a row, an item of `read`, unless it is unusable, which `reading.tally` counts."""
        row, location = item
        tally = reading.tally
        if row is None:
            tally.skip("row with the wrong number of columns", location)
            return
        text_a = row[self.text_a]
        text_b = row[self.text_b]
        group = row[self.group] if self.group else ""
        if not (is_text(text_a) and is_text(text_b) and (is_text(group) or isinstance(group, int))):
            tally.skip("text or group that is not text", location)
            return
        text_a = clean(text_a)
        text_b = clean(text_b)
        language_a = _language_in(row, self.language_a)
        language_b = _language_in(row, self.language_b)
        if not text_a or not text_b:
            tally.skip("empty text", location)
        elif not language_a or not language_b:
            tally.skip("unknown language", location)
        else:
            yield Pair(text_a, language_a, text_b, language_b, str(group), location, self.split)


def _language_in(row: dict[str, Any], option: str) -> str:
    """Returns the BCP 47 tag that an option gives: a language, or a column of the row with its code; "" if unknown."""
    column = column_of(option)
    return known_language(option if column is None else row[column])


def _first_line(path: pathlib.Path) -> str:
    """Returns the first line of a text file, "" for an empty file or an unreadable line, which `lines_of` reports."""
    for _, line in read_lines(path, lambda *problem: None):
        return line or ""  # `None` is an unreadable line
    return ""


def _number_of(column: str, names: Sequence[str], path: pathlib.Path) -> int:
    """Returns the number, from 0, of a column of TSV; raises `UserError` if there is no such column.

    Args:
      column: the column's name or number, as an option gives it.
      names: the names of the columns in the first line.
      path: the file, for the message.
    """
    if column in names:
        return names.index(column)
    if column.isdigit():
        return int(column)
    raise UserError(f"{path} lacks the column {column!r}: expected a number from 0, or with header=true a name of its "
                    f"first line ({', '.join(names)}).")  # fmt: skip


def _rows_of_parquet(
    path: pathlib.Path, columns: Sequence[str], unit: Unit, reading: Reading
) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Yields the items of `Pairs.read` for a unit of Parquet; raises `UserError` for a column that the file lacks.

    `columns`: the columns to read, as options name them: "lang", "2", or "translation.de" for a field of a column.
    """
    try:
        file = open_parquet(path)
    except UnreadableParquet:
        reading.tally.skip("Parquet file that cannot be read", str(path))
        return
    names = file.schema_arrow.names
    keys_of = {column: _keys_of(column, names) for column in columns}
    for column, keys in keys_of.items():
        if keys[0] not in names:
            raise UserError(f"{path} lacks the column {column!r}; it has {', '.join(names)}.")
    parquet_columns = sorted({keys[0] for keys in keys_of.values()})
    for number, row in read_rows(path, parquet_columns, reading.tally.skip, unit.share(file.num_row_groups)):
        try:
            values = {column: functools.reduce(operator.getitem, keys, row) for column, keys in keys_of.items()}
        except (LookupError, TypeError):  # this row lacks a field of a column
            values = None
        yield values, f"{path}, row {number}"


def _keys_of(column: str, names: Sequence[str]) -> list[str]:
    """Returns the keys that lead to a value in a row: ["translation", "de"] for the column "translation.de"."""
    if column in names:
        return [column]
    if column.isdigit() and int(column) < len(names):
        return [names[int(column)]]
    return column.split(".")


def row_group_units(path: pathlib.Path, growth: float, unit_bytes: int) -> list[Unit]:
    """Returns the units of a Parquet file, each of whole row groups.

    An unreadable file is one unit: reading it reports the problem.

    Args:
      path: the file.
      growth: bytes of records per byte of unpacked columns.
      unit_bytes: bytes of records that a unit should have.
    """
    with contextlib.suppress(UnreadableParquet):
        metadata = open_parquet(path).metadata
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        return cut(path, int(size * growth), unit_bytes, metadata.num_row_groups)
    return cut(path, 0, unit_bytes)


def skip_lines(content: io.BufferedReader, count: int) -> int:
    """Reads `content` up to the end of `count` lines, in bounded memory; returns how many of these it lacks."""
    is_within_line = False
    while count and (chunk := content.peek(2**16)):  # `count` is the number of lines to go
        if chunk.count(b"\n") >= count:
            rest = chunk.split(b"\n", count)[-1]
            content.read(len(chunk) - len(rest))
            return 0
        content.read(len(chunk))
        count -= chunk.count(b"\n")
        is_within_line = not chunk.endswith(b"\n")
    if is_within_line:  # the file's last line, which has no end
        count -= 1
    return count
