"""Translation pairs in the formats of published corpora.

Line-aligned files: OPUS's Moses zips (CCMatrix, Tatoeba, …), OPUS-100, LASER's Tatoeba test, any two files. Others:
Google's machine translations of captions, translation memories (TMX), tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import pathlib
import xml.etree.ElementTree as ElementTree
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, ClassVar, NamedTuple

from mural_tf.errors import UserError
from mural_tf.files import as_path
from mural_tf.ingest.source import Pair, Reading, Source, column_number, find_files, known_language, lines_of
from mural_tf.text_files import (
    DAMAGED,
    LONGEST_LINE,
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
    parse_object,
    printable,
    skip_lines,
    skip_to,
    unpacked_size,
)

_NOTHING = object()


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
        of_file = reading if unit.number == 0 else Reading()  # what is wrong with the whole file is said once
        languages = self.tags(pair.codes, str(pair.path_a), of_file)
        if languages is not None and not pair.path_b.exists():
            of_file.tally.skip("aligned file without its partner", str(pair.path_b))
        elif languages is not None:
            with open_binary(pair.path_a) as (a, _), open_binary(pair.path_b) as (b, _):
                files, part = {str(pair.path_a): a, str(pair.path_b): b}, unit.part(unpacked_size(pair.path_a))
                yield from read_aligned_lines(files, languages, reading, pair.split, part)

    def tags(self, codes: tuple[str, str], place: str, reading: Reading) -> tuple[str, str] | None:
        """Returns the pair's language tags, or `None` (reported to `reading`) if one is unknown or not asked for."""
        tags = known_language(codes[0]), known_language(codes[1])
        if not all(tags):
            reading.tally.skip(f"unknown language in {'-'.join(codes)}", place)
        elif not self.wants(*tags):
            reading.tally.leave_out("file in languages not asked for", place)
        else:
            return tags
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
                    place = f"{names[lines.index(_NOTHING)]}:{number}"
                    reading.tally.skip("aligned file with fewer lines than its partner", place)
                return
            if number == 1:
                lines = tuple(line and line.removeprefix(b"\xef\xbb\xbf") for line in lines)
            yield LinePair(lines, languages, f"{names[0]}:{number}", split)
    except (*DAMAGED, zipfile.BadZipFile):
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
      languages: pairs of these only, joined by "+"; default all.
      min_score: leaves out what CCMatrix's scores put below; 0 leaves out none.
    """

    KIND: ClassVar[str] = "opus"
    languages: tuple[str, ...] = ()
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
        of_file = reading if unit.number == 0 else Reading()
        try:
            with as_path(unit.path).open("rb") as file, zipfile.ZipFile(file) as archive:
                yield from self._read_archive(unit, archive, reading, of_file)
        except UserError:
            raise
        except (zipfile.BadZipFile, OSError, EOFError, ValueError):
            of_file.tally.skip("file that is not a zip or is cut off", unit.path)
        except (RuntimeError, NotImplementedError) as error:  # a password; a compression that Python lacks
            of_file.tally.skip("zip that cannot be unpacked", f"{unit.path} ({error})")

    def _read_archive(self, unit: Unit, archive: zipfile.ZipFile, reading: Reading, of_file: Reading):
        found = aligned_names(archive.namelist())
        if found is None:
            of_file.tally.skip("zip without aligned files NAME.a-b.a and NAME.a-b.b", unit.path)
            return
        members, codes, scores = found
        languages = self.tags(codes, unit.path, of_file)
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
class Opus100(AlignedSource):
    """OPUS-100: `opus100:opus-100-corpus/v1.0` with `supervised/de-en/opus.de-en-train.de` and so on.

    Attributes:
      languages: pairs of these only, joined by "+"; default all. English is on either side of a pair.
      splits: of train, dev, test and zero-shot (which are test sets too), joined by "+"; a pair may lack dev and test.
    """

    KIND: ClassVar[str] = "opus100"
    languages: tuple[str, ...] = ()
    splits: tuple[str, ...] = ("train",)

    def pairs(self) -> Iterator[AlignedFiles]:
        """Yields the files of the splits."""
        groups = {**dict.fromkeys(("train", "dev", "test"), "supervised"), "zero-shot": "zero-shot"}
        unknown = set(self.splits) - set(groups)
        if unknown:
            raise UserError(f"OPUS-100 has no split {unknown.pop()}: it has {', '.join(groups)}.")
        folders = [(folder, name) for name in self.splits for folder in as_path(self.path).glob(f"{groups[name]}/*-*")]
        found = False
        for folder, name in sorted(folders, key=lambda entry: entry[0]):
            split = "test" if name == "zero-shot" else name
            codes = tuple(folder.name.split("-")[:2])
            path_a, path_b = (folder / f"opus.{folder.name}-{split}.{code}" for code in codes)
            if path_a.exists():
                found = True
                yield AlignedFiles(path_a, path_b, codes, split)
        if not found:
            raise UserError(
                f"No file like {self.path}/supervised/de-en/opus.de-en-{self.splits[0]}.de: name the folder v1.0 of "
                "OPUS-100."
            )


@dataclasses.dataclass
class Lines(AlignedSource):
    """Any two aligned files: `lines:corpus.en,partner=corpus.de,language_a=en,language_b=de`; .gz, .bz2, .xz too.

    Attributes:
      partner: the other file.
      language_a: of the first file.
      language_b: of the partner.
      split: which the pairs go to.
    """

    KIND: ClassVar[str] = "lines"
    partner: str = ""
    language_a: str = "en"
    language_b: str = ""
    split: str = "train"

    def pairs(self) -> Iterator[AlignedFiles]:
        """Yields the two files."""
        files = find_files(self.path)
        if len(files) != 1 or not self.partner:
            raise UserError(f"lines:{self.path} needs one file, and its partner as partner=FILE.")
        yield AlignedFiles(files[0], as_path(self.partner), (self.language_a, self.language_b), self.split)


@dataclasses.dataclass
class Tatoeba(AlignedSource):
    """LASER's Tatoeba test: `tatoeba:LASER/data/tatoeba/v1` with `tatoeba.deu-eng.deu` and `.eng`, as text pairs.

    It is a benchmark: its pairs go to the split "test". OPUS's Tatoeba corpus for training is `opus:`; remove these
    test sentences from it with --exclude_texts.

    Attributes:
      languages: pairs of these only (English included), joined by "+"; default all.
      split: which the pairs go to.
    """

    KIND: ClassVar[str] = "tatoeba"
    languages: tuple[str, ...] = ()
    split: str = "test"

    def pairs(self) -> Iterator[AlignedFiles]:
        """Yields the non-English file of every pair with the English one."""
        found = [p for p in sorted(as_path(self.path).glob("tatoeba.*-eng.???")) if p.suffix != ".eng"]
        if not found:
            raise UserError(f"No file like {self.path}/tatoeba.deu-eng.deu.")
        for path in found:
            yield AlignedFiles(path, path.with_suffix(".eng"), (path.suffix[1:], "eng"), self.split)


class LineSource(Source):
    """Text files with a pair on each line; a family gives `records`."""

    header = False

    def read(self, unit: Unit, reading: Reading) -> Iterator[tuple[str, str]]:
        """Yields (line, place)."""
        return lines_of(unit, reading, self.header)


class Translation(NamedTuple):
    """A caption and its translation, by Google; `identity` names caption and image."""

    source: str
    source_language: str
    target: str
    target_language: str
    identity: str


def parse_google_line(line: str) -> Translation:
    """Returns what a line of Google's translations holds; raises `ValueError` with what is wrong with it.

    A line is a JSON object of image_id ("391895_1": COCO's id and the number of the caption) or rec_num (CC3M's row,
    from 1), src_lang, trg_lang, caption_tokenized, translation_tokenized, backtranslation_tokenized. CC3M's digits are
    "#".
    """
    try:
        entry = parse_object(line)
        source, target = entry["caption_tokenized"], entry["translation_tokenized"]
        source_language, target_language = entry["src_lang"], entry["trg_lang"]
    except (ValueError, KeyError):
        raise ValueError("line that is not a JSON object with a caption and its translation") from None
    identity = entry.get("image_id", entry.get("rec_num", ""))
    if not is_text(source) or not is_text(target) or not (isinstance(identity, int) or is_text(identity)):
        raise ValueError("caption, translation or id that is not text")
    source, target = clean(source), clean(target)
    if not source or not target:
        raise ValueError("empty text")
    languages = known_language(source_language), known_language(target_language)
    if not all(languages):
        raise ValueError("unknown language")
    return Translation(source, languages[0], target, languages[1], str(identity))


@dataclasses.dataclass
class GoogleTranslations(LineSource):
    """Google's translations of CC3M and COCO as text pairs: `google_mt:cc3m_mt_train.jsonl.bz2,languages=de+fr+cs+ja`.

    Crossmodal-3600's training data: `{cc3m,coco}_mt_{train,dev}.jsonl.bz2`. All translations of a caption share a
    group. As captions of the images themselves: --translations.

    Attributes:
      languages: target languages, joined by "+"; default all 34.
      split: which the pairs go to.
    """

    KIND: ClassVar[str] = "google_mt"
    languages: tuple[str, ...] = ()
    split: str = "train"

    def records(self, item: tuple[str, str], reading: Reading) -> Iterable[Pair]:
        """Yields the line's pair."""
        (line, place), tally = item, reading.tally
        if not line:
            return
        try:
            found = parse_google_line(line)
        except ValueError as error:
            tally.skip(str(error), place)
            return
        if not self.wants(found.target_language):
            tally.leave_out("language not asked for", place)
            return
        languages = found.source_language, found.target_language
        yield Pair(found.source, languages[0], found.target, languages[1], found.identity, place, self.split)


_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


@dataclasses.dataclass
class Tmx(Source):
    """TMX files, plain or .gz: `tmx:de-en.tmx.gz`. A unit with more than two languages gives every pair of them.

    Attributes:
      languages: pairs of these only, joined by "+"; default all.
      split: which the pairs go to.
    """

    KIND: ClassVar[str] = "tmx"
    languages: tuple[str, ...] = ()
    split: str = "train"

    def units(self, unit_bytes: int) -> list[Unit]:
        """XML is read from its beginning."""
        return [unit for path in self.files() for unit in cut(path, self.weight(path), unit_bytes, most=1)]

    def read(self, unit: Unit, reading: Reading) -> Iterator[tuple[list[tuple[str, str]], str]]:
        """Yields ([(language, text)], place) of every unit, in constant memory."""
        path, number = as_path(unit.path), 0
        with open_binary(path) as (content, _):
            try:
                parents: list[ElementTree.Element] = []
                units = _BoundedUnits(content)
                for event, element in ElementTree.iterparse(units, ("start", "end")):
                    if event == "start":
                        parents.append(element)
                        continue
                    parents.pop()
                    if element.tag == "tu":
                        number += 1
                        units.begin_unit()
                        yield _variants(element), printable(f"{path}, unit {number}")  # their group
                        if parents:
                            parents[-1].clear()  # units that are done would stay in memory
            except (ElementTree.ParseError, EOFError, OSError, ValueError, LookupError, zlib.error) as error:
                kind = "XML that is damaged or cut off: what follows is lost"
                reading.tally.skip(kind, f"{path}, after unit {number} ({error})")

    def records(self, item: tuple[list[tuple[str, str]], str], reading: Reading) -> Iterable[Pair]:
        """Yields the pairs of a unit; they share a group if there are several."""
        (variants, place), tally = item, reading.tally
        texts = []
        for code, text in variants:
            language = known_language(code)
            if not language:
                tally.skip("unknown language", f"{place}: {code!r}")
            elif self.wants(language) and not text:
                tally.skip("empty text", place)
            elif self.wants(language):
                texts.append((language, text))
        if len(texts) < 2:
            if len(variants) < 2:
                tally.skip("unit with fewer than two languages", place)
            return
        group = place if len(texts) > 2 else ""
        for (language_a, text_a), (language_b, text_b) in itertools.combinations(texts, 2):
            yield Pair(text_a, language_a, text_b, language_b, group, place, self.split)


class _BoundedUnits:
    """A file of XML in which no unit has more than `LONGEST_LINE` bytes: the parser holds each in memory."""

    def __init__(self, content: IO[bytes]):
        self._content, self._size = content, 0

    def begin_unit(self) -> None:
        """Counts from here."""
        self._size = 0

    def read(self, size: int) -> bytes:
        """Raises `ValueError` in a unit that is too long."""
        self._size += size
        if self._size > LONGEST_LINE + 2**16:  # the parser reads ahead
            raise ValueError(f"a unit of more than {LONGEST_LINE:,} bytes")
        return self._content.read(size)


def _variants(unit: ElementTree.Element) -> list[tuple[str, str]]:
    found = []
    for variant in unit.iter("tuv"):
        segment = variant.find("seg")
        text = "" if segment is None else clean("".join(segment.itertext()))
        found.append((variant.get(_LANG) or variant.get("lang") or "", text))
    return found


@dataclasses.dataclass
class PairsTsv(LineSource):
    """A table, one pair on each line, columns set apart by tabs: `pairs:mined.tsv.gz,language_b=de`.

    .gz, .bz2 and .xz too. Quotation marks mean nothing.

    Attributes:
      text_a, text_b: numbers of the columns of the texts, from 0.
      language_a, language_b: of the texts; or the columns that hold it, as "column 2".
      header: whether the first line names the columns.
      split: which the pairs go to.
    """

    KIND: ClassVar[str] = "pairs"
    text_a: int = 0
    text_b: int = 1
    language_a: str = "en"
    language_b: str = ""
    header: bool = False
    split: str = "train"

    def records(self, item: tuple[str, str], reading: Reading) -> Iterable[Pair]:
        """Yields the line's pair."""
        (line, place), tally = item, reading.tally
        fields = line.split("\t")
        try:
            text_a, text_b = clean(fields[self.text_a]), clean(fields[self.text_b])
            codes = [_code(language, fields) for language in (self.language_a, self.language_b)]
        except IndexError:
            tally.skip("row with the wrong number of columns", place)
            return
        language_a, language_b = map(known_language, codes)
        if not text_a or not text_b:
            tally.skip("empty text", place)
        elif not language_a or not language_b:
            tally.skip("unknown language", place)
        else:
            yield Pair(text_a, language_a, text_b, language_b, "", place, self.split)


def _code(language: str, fields: list[str]) -> str:
    """Returns a language's code, or what stands in the column that "column 2" names."""
    column = column_number(language)
    return language if column is None else fields[column]
