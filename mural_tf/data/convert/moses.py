"""Translation pairs in line-aligned files: OPUS's Moses zips (CCMatrix, Tatoeba, …), OPUS-100, LASER's Tatoeba test.

Moses: `OPUS-{CORPUS}/{version}/moses/{a}-{b}.txt.zip` holds `{CORPUS}.{a}-{b}.{a}` and `….{b}`, CCMatrix also
`….scores`, one number a line. Other members (README, LICENSE, ids) are not looked at.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import zipfile
from collections.abc import Iterator, Sequence
from typing import ClassVar

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.aligned import AlignedSource, LinePair, read_aligned_lines, wanted_languages
from mural_tf.data.convert.source import Reading
from mural_tf.data.text_files import canonical_language, open_binary


@dataclasses.dataclass
class Opus(AlignedSource):
    """OPUS's Moses zips, for example `opus:downloads/de-en.txt.zip,min_score=1.1`.

    Attributes:
      languages: pairs of these only, joined by "+"; default all.
      min_score: leaves out what CCMatrix's scores put below; 0 is no bound.
    """

    KIND: ClassVar[str] = "opus"
    languages: tuple[str, ...] = ()
    min_score: float = 0.0

    def read(self, reading: Reading) -> Iterator[LinePair]:
        """Yields the aligned lines of every zip."""
        for path in self.files():
            try:
                with zipfile.ZipFile(path) as archive:
                    yield from self._read_archive(path, archive, reading)
            except zipfile.BadZipFile:
                reading.problem("file that is no zip or is cut off", str(path))
            reading.file_done(path)

    def _read_archive(self, path: pathlib.Path, archive: zipfile.ZipFile, reading: Reading) -> Iterator[LinePair]:
        found = aligned_names(archive.namelist())
        if found is None:
            reading.problem("zip without aligned files NAME.a-b.a and NAME.a-b.b", str(path))
            return
        members, codes, scores = found
        languages = wanted_languages(codes, self.languages, str(path), reading)
        if languages is None:
            return
        if scores is None and self.min_score:
            raise ConfigurationError(f"{path} holds no .scores: leave out min_score for this corpus.")
        size, share = path.stat().st_size, 1 / max(1, archive.getinfo(members[0]).file_size)
        with archive.open(members[0]) as a, archive.open(members[1]) as b:
            score_file = archive.open(scores) if self.min_score else None
            names = (f"{path}!{members[0]}", f"{path}!{members[1]}")
            for index, item in enumerate(read_aligned_lines(names, (a, b), languages, reading, score_file)):
                if index % 1000 == 0:
                    reading.at(int(size * min(1.0, a.tell() * share)))
                yield item


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

    def files(self) -> list[pathlib.Path]:
        """Returns the first file of every pair."""
        unknown = set(self.splits) - {"train", "dev", "test", "zero-shot"}
        if unknown:
            raise ConfigurationError(f"OPUS-100 has no split {unknown.pop()}: train, dev, test and zero-shot it has.")
        found = []
        for folder in sorted(itertools.chain(*(pathlib.Path(self.path).glob(f"{g}/*-*") for g in self._groups()))):
            for split in self.splits:
                name = "test" if split == "zero-shot" else split
                found += sorted(folder.glob(f"opus.{folder.name}-{name}.{folder.name.split('-')[0]}"))
        if not found:
            raise ConfigurationError(
                f"No file like {self.path}/supervised/de-en/opus.de-en-{self.splits[0]}.de: name the folder v1.0 of "
                "OPUS-100."
            )
        return found

    def _groups(self) -> list[str]:
        groups = ["supervised"] if set(self.splits) - {"zero-shot"} else []
        return groups + (["zero-shot"] if "zero-shot" in self.splits else [])

    def input_files(self) -> list[pathlib.Path]:
        """Returns both files of every pair."""
        return [file for path in self.files() for file in (path, _partner(path)) if file.exists()]

    def read(self, reading: Reading) -> Iterator[LinePair]:
        """Yields the aligned lines of every pair."""
        for path in self.files():
            languages = wanted_languages(tuple(path.parent.name.split("-")), self.languages, str(path), reading)
            if languages is not None:
                split = path.stem.rsplit("-", 1)[-1]
                yield from read_pair_of_files(path, _partner(path), languages, reading, split)
            reading.file_done(path)


def _partner(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix("." + path.parent.name.split("-")[1])


def read_pair_of_files(
    path_a: pathlib.Path, path_b: pathlib.Path, languages: tuple[str, str], reading: Reading, split: str
) -> Iterator[LinePair]:
    """Yields the aligned lines of two files, plain or compressed; a missing second file is a problem."""
    if not path_b.exists():
        reading.problem("aligned file without its partner", str(path_b))
        return
    with open_binary(path_a) as (a, file), open_binary(path_b) as (b, _):
        names = (str(path_a), str(path_b))
        for index, item in enumerate(read_aligned_lines(names, (a, b), languages, reading, split=split)):
            if index % 1000 == 0:
                reading.at(file.tell())
            yield item


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

    def input_files(self) -> list[pathlib.Path]:
        """Returns both files."""
        return [*self.files(), pathlib.Path(self.partner)]

    def read(self, reading: Reading) -> Iterator[LinePair]:
        """Yields the aligned lines."""
        files = self.files()
        if len(files) != 1 or not self.partner:
            raise ConfigurationError(f"lines:{self.path} needs one file, and its partner as partner=FILE.")
        languages = (canonical_language(self.language_a), canonical_language(self.language_b))
        yield from read_pair_of_files(files[0], pathlib.Path(self.partner), languages, reading, self.split)
        reading.file_done(files[0])


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

    def files(self) -> list[pathlib.Path]:
        """Returns the non-English file of every pair."""
        found = sorted(pathlib.Path(self.path).glob("tatoeba.*-eng.???"))
        found = [path for path in found if path.suffix != ".eng"]
        if not found:
            raise ConfigurationError(f"No file like {self.path}/tatoeba.deu-eng.deu.")
        return found

    def input_files(self) -> list[pathlib.Path]:
        """Returns both files of every pair."""
        return [file for path in self.files() for file in (path, path.with_suffix(".eng")) if file.exists()]

    def read(self, reading: Reading) -> Iterator[LinePair]:
        """Yields the aligned lines of every pair."""
        for path in self.files():
            languages = wanted_languages((path.suffix[1:], "eng"), self.languages, str(path), reading)
            if languages is not None:
                yield from read_pair_of_files(path, path.with_suffix(".eng"), languages, reading, self.split)
            reading.file_done(path)
