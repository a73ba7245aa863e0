"""Translation pairs: line-aligned files (OPUS's Moses zips, LASER's Tatoeba test, any two files), and tables."""

from __future__ import annotations

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
    open_binary,
    read_lines,
    refuse_failure,
    skip_to,
    unpacked_size,
)
from mural_tf.ingest.source import Pair, Reading, Source, column_of, find_files, known_language, lines_of

_NOTHING = object()
PARQUET = ".parquet"


class LinePair(NamedTuple):
    """Line i of two aligned files, and of their scores if used, still as bytes; `None`: too long a line."""

    lines: tuple[bytes | None, ...]
    languages: tuple[str, str]
    place: str
    split: str


class AlignedFiles(NamedTuple):
    """Two files whose lines belong together, with the languages' codes."""

    path_a: pathlib.Path
    path_b: pathlib.Path
    codes: tuple[str, str]
    split: str


class AlignedSource(Source):
    """Two files side by side, plain or compressed, line i with line i; a family says which by `pairs`."""

    min_score = 0.0

    def pairs(self) -> Iterator[AlignedFiles]:
        """Yields the pairs of files; a second file may be missing."""
        raise NotImplementedError

    def files(self) -> list[pathlib.Path]:
        """Returns the first file of every pair."""
        return [pair.path_a for pair in self.pairs()]

    def input_files(self) -> list[pathlib.Path]:
        """Returns both files of every pair."""
        return [path for pair in self.pairs() for path in (pair.path_a, pair.path_b) if path.exists()]

    def weight(self, path: pathlib.Path) -> int:
        """The partner's lines are about as long."""
        return 2 * super().weight(path)

    def read(self, unit: Unit, reading: Reading) -> Iterator[LinePair]:
        """Yields the aligned lines of a pair of files, or of a part of it."""
        pair = next(pair for pair in self.pairs() if str(pair.path_a) == unit.path)
        file_reading = reading if unit.number == 0 else Reading()  # what is wrong with the whole file is said once
        languages = self.tags(pair.codes, str(pair.path_a), file_reading)
        if languages is not None and not pair.path_b.exists():
            file_reading.tally.skip("aligned file without its partner", str(pair.path_b))
        elif languages is not None:
            with open_binary(pair.path_a) as (a, _), open_binary(pair.path_b) as (b, _):
                files, part = {str(pair.path_a): a, str(pair.path_b): b}, unit.part(unpacked_size(pair.path_a))
                yield from read_aligned_lines(files, languages, reading, pair.split, part)

    def tags(self, codes: tuple[str, str], location: str, reading: Reading) -> tuple[str, str] | None:
        """Returns the pair's language tags, or `None` (reported to `reading`) if a language is unknown."""
        tags = known_language(codes[0]), known_language(codes[1])
        if all(tags):
            return tags
        reading.tally.skip(f"unknown language in {'-'.join(codes)}", location)
        return None

    def records(self, item: LinePair, reading: Reading) -> Iterable[Pair]:
        """Yields the pair, unless a side is empty or not text, or its score is too low."""
        tally = reading.tally
        line_a, line_b, *scores = item.lines
        if line_a is None or line_b is None:
            tally.skip(TOO_LONG, item.place)
            return
        try:
            text_a, text_b = clean(decode(line_a)), clean(decode(line_b))
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


def read_aligned_lines(
    files: dict[str, IO[bytes]], languages: tuple[str, str], reading: Reading, split: str, part: Part
) -> Iterator[LinePair]:
    """Yields line i of two files, and of a third one with scores, in bounded memory.

    A line ends with \\n alone: U+2028, U+0085 and lone carriage returns occur inside sentences. Where one file ends
    before the other, the rest is a problem: nothing says which lines are missing.

    Args:
      files: by name.
      languages: of the first two.
      reading: where problems are counted.
      split: of the pairs.
      part: only lines that begin in this part of the first file; what is wrong before it is another part's problem.
    """
    names, number, content_of_part = list(files), 0, part.begin == 0
    streams = [buffered(file) for file in files.values()]
    try:
        passed, part = skip_to(streams[0], part)
        content_of_part = not any([skip_lines(stream, passed) for stream in streams[1:]])
        lines_of = [bounded_lines(streams[0], part), *map(bounded_lines, streams[1:])]
        together = itertools.zip_longest(*lines_of, fillvalue=_NOTHING)
        for number, lines in enumerate(together, start=passed + 1):
            if lines[0] is _NOTHING and part.end is not None:
                return  # behind the part the others go on
            if _NOTHING in lines:
                if content_of_part:
                    location = f"{names[lines.index(_NOTHING)]}:{number}"
                    reading.tally.skip("aligned file with fewer lines than its partner", location)
                return
            if number == 1:
                lines = tuple(line and line.removeprefix(b"\xef\xbb\xbf") for line in lines)
            yield LinePair(lines, languages, f"{names[0]}:{number}", split)
    except (*DAMAGED, zipfile.BadZipFile) as error:
        refuse_failure(error, names[0])
        if content_of_part:
            reading.tally.skip("file that is damaged or cut off: what follows is lost", f"{names[0]}:{number + 1}")


def _is_number(text: bytes | None) -> bool:
    try:
        return math.isfinite(float(text or b""))
    except ValueError:
        return False


@dataclasses.dataclass
class Opus(AlignedSource):
    """OPUS's Moses zips, for example `opus:downloads/de-en.txt.zip,min_score=1.1`.

    `OPUS-{CORPUS}/{version}/moses/{a}-{b}.txt.zip` holds `{CORPUS}.{a}-{b}.{a}` and `….{b}`, CCMatrix also `….scores`,
    one number on each line. Other members (README, LICENSE, ids) are not looked at.

    Attributes:
      min_score: leaves out what CCMatrix's scores put below; 0 leaves out none.
    """

    KIND: ClassVar[str] = "opus"
    min_score: float = 0.0

    def weight(self, path: pathlib.Path) -> int:
        """A zip says how large its members are."""
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                return int(sum(member.file_size for member in archive.infolist()) * self.GROWTH)
        except (zipfile.BadZipFile, OSError, ValueError):
            return Source.weight(self, path)  # what is wrong is said where the file is read

    def files(self) -> list[pathlib.Path]:
        """Returns the zips."""
        return find_files(self.path)

    input_files = files

    def read(self, unit: Unit, reading: Reading) -> Iterator[LinePair]:
        """Yields the aligned lines of a zip, or of a part of it."""
        file_reading = reading if unit.number == 0 else Reading()
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

    def _read_archive(self, unit: Unit, archive: zipfile.ZipFile, reading: Reading, file_reading: Reading):
        aligned = aligned_names(archive.namelist())
        if aligned is None:
            file_reading.tally.skip("zip without aligned files NAME.a-b.a and NAME.a-b.b", unit.path)
            return
        members, codes, scores = aligned
        languages = self.tags(codes, unit.path, file_reading)
        if languages is None:
            return
        if scores is None and self.min_score:
            raise UserError(f"{unit.path} holds no .scores: leave out min_score for this corpus.")
        with contextlib.ExitStack() as stack:
            names = (*members, scores) if self.min_score else members
            files = {f"{unit.path}!{name}": stack.enter_context(archive.open(name)) for name in names}
            part = unit.part(archive.getinfo(members[0]).file_size)
            yield from read_aligned_lines(files, languages, reading, "train", part)


def aligned_names(names: Sequence[str]) -> tuple[tuple[str, str], tuple[str, str], str | None] | None:
    """Finds `STEM.a-b.a`, `STEM.a-b.b` and perhaps `STEM.a-b.scores` among names.

    Returns:
      ((name a, name b), (code a, code b), name of the scores or `None`), or `None` if there is no such pair.
    """
    listed = set(names)
    for name in sorted(listed):
        stem, _, suffix = name.rpartition(".")
        for a, b in _splits(stem.replace("/", ".").rpartition(".")[2]):
            if suffix == a and f"{stem}.{b}" in listed:
                scores = f"{stem}.scores"
                return (name, f"{stem}.{b}"), (a, b), scores if scores in listed else None
    return None


def _splits(pair: str) -> Iterator[tuple[str, str]]:
    """Every way to divide "zh-Hant-en" at a hyphen: codes may hold one themselves."""
    parts = pair.split("-")
    for middle in range(1, len(parts)):
        yield "-".join(parts[:middle]), "-".join(parts[middle:])


@dataclasses.dataclass
class Lines(AlignedSource):
    """Any two aligned files: `lines:corpus.en,partner=corpus.de,language_a=en,language_b=de`; .gz, .bz2, .xz too.

    Attributes:
      partner: the other file.
      language_a: of the first file.
      language_b: of the partner.
    """

    KIND: ClassVar[str] = "lines"
    partner: str = ""
    language_a: str = "en"
    language_b: str = ""

    def pairs(self) -> Iterator[AlignedFiles]:
        """Yields the two files."""
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
        """Yields the non-English file of every pair with the English one."""
        files = [p for p in sorted(as_path(self.path).glob("tatoeba.*-eng.???")) if p.suffix != ".eng"]
        if not files:
            raise UserError(f"No file like {self.path}/tatoeba.deu-eng.deu.")
        for path in files:
            yield AlignedFiles(path, path.with_suffix(".eng"), (path.suffix[1:], "eng"), "test")


@dataclasses.dataclass
class Pairs(Source):
    """A table with a pair in each row, TSV or Parquet: `pairs:mined.tsv.gz,language_b=de`.

    Parquet by its ending; all other files are TSV, .gz, .bz2 and .xz too, in which quotation marks mean nothing. See
    docs/data.md for OPUS-100, translation memories and translations of captions.

    Attributes:
      text_a, text_b: columns of the texts, by number from 0 or by name; "translation.de" is the field de of a column.
      language_a, language_b: of the texts; or the column that holds it, as "column 2" or "column lang".
      group: column that pairs of the same meaning share; "": there is no such column.
      header: whether the first line of a TSV names the columns.
      split: which the pairs go to.
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
        """Parquet files are cut between row groups, others between lines."""
        units = []
        for path in self.files():
            is_parquet = path.suffix == PARQUET
            units += row_group_units(path, 1.0, unit_bytes) if is_parquet else cut(path, self.weight(path), unit_bytes)
        return units

    def read(self, unit: Unit, reading: Reading) -> Iterator[tuple[dict[str, Any] | None, str]]:
        """Yields ({column that an option names: value}, place) of each row, `None` for a row that lacks one."""
        codes = column_of(self.language_a), column_of(self.language_b)
        columns = [column for column in (self.text_a, self.text_b, self.group, *codes) if column]
        path = as_path(unit.path)
        if path.suffix == PARQUET:
            yield from _rows_of_parquet(path, columns, unit, reading)
            return
        header = next(read_lines(path, lambda *problem: None), (1, ""))[1] if self.header else ""
        numbers = {column: _number_of(column, (header or "").split("\t"), path) for column in columns}
        least = 1 + max(numbers.values())
        for line, location in lines_of(unit, reading, self.header):
            fields = line.split("\t")
            yield ({c: fields[n] for c, n in numbers.items()} if len(fields) >= least else None), location

    def records(self, item: tuple[dict[str, Any] | None, str], reading: Reading) -> Iterable[Pair]:
        """Yields the row's pair."""
        (row, location), tally = item, reading.tally
        if row is None:
            tally.skip("row with the wrong number of columns", location)
            return
        texts, group = (row[self.text_a], row[self.text_b]), row[self.group] if self.group else ""
        if not all(map(is_text, texts)) or not (isinstance(group, int) or is_text(group)):
            tally.skip("text or group that is not text", location)
            return
        text_a, text_b = map(clean, texts)
        codes = (row.get(column_of(option), option) for option in (self.language_a, self.language_b))
        language_a, language_b = map(known_language, codes)
        if not text_a or not text_b:
            tally.skip("empty text", location)
        elif not language_a or not language_b:
            tally.skip("unknown language", location)
        else:
            yield Pair(text_a, language_a, text_b, language_b, str(group), location, self.split)


def _number_of(column: str, names: Sequence[str], path: pathlib.Path) -> int:
    """Returns the number of a column that is named by it or by its name; raises `UserError` for other names."""
    if column in names or column.isdigit():
        return names.index(column) if column in names else int(column)
    raise UserError(f"{path} lacks the column {column!r}: expected a number from 0, or with header=true a name of its "
                    f"first line ({', '.join(names)}).")  # fmt: skip


def _rows_of_parquet(path: pathlib.Path, columns: Sequence[str], unit: Unit, reading: Reading) -> Iterator[tuple]:
    try:
        file = open_parquet(path)
    except UnreadableParquet as error:
        reading.tally.skip("Parquet file that cannot be read", str(error))
        return
    names, fields = file.schema_arrow.names, {}
    for column in columns:
        number = column.isdigit() and column not in names and int(column) < len(names)
        fields[column] = [names[int(column)]] if number else [column] if column in names else column.split(".")
        if fields[column][0] not in names:
            raise UserError(f"{path} lacks the column {column!r}; it has {', '.join(names)}.")
    roots = sorted({name for name, *_ in fields.values()})
    for number, row in read_rows(path, roots, reading.tally.skip, unit.share(file.num_row_groups)):
        try:
            values = {column: functools.reduce(operator.getitem, names, row) for column, names in fields.items()}
        except (LookupError, TypeError):  # a field that this row does not have
            values = None
        yield values, f"{path}, row {number}"


def row_group_units(path: pathlib.Path, growth: float, unit_bytes: int) -> list[Unit]:
    """Returns a file's units, each of whole row groups; a file that cannot be read is one, and reported by its reader.

    Args:
      path: the file.
      growth: bytes of records per byte of unpacked columns.
      unit_bytes: of records that a unit should have.
    """
    with contextlib.suppress(UnreadableParquet):
        metadata = open_parquet(path).metadata
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        return cut(path, int(size * growth), unit_bytes, metadata.num_row_groups)
    return cut(path, 0, unit_bytes)


def skip_lines(content: io.BufferedReader, count: int) -> int:
    """Skips `count` lines; returns how many of them the file lacks."""
    last = b"\n"
    while count and (chunk := content.peek(2**16)):
        lines = chunk.count(b"\n")
        if lines < count:
            last = content.read(len(chunk))[-1:]
            count -= lines
            continue
        end = -1
        for _ in range(count):
            end = chunk.index(b"\n", end + 1)
        content.read(end + 1)
        return 0
    return max(0, count - (last != b"\n"))
