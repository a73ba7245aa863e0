"""The sources of a conversion (`KIND:PATH[,OPTION=VALUE…]`), its settings, and its records before they are written."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mural_lite.errors import UserError
from mural_lite.files import as_path, find
from mural_lite.skipped import Tally, check_fraction
from mural_lite.text_files import Unit, canonical_language, cut, read_lines, unpacked_size
from mural_lite.work import Engine

# Types of items.
PAIR = "pair"
IMAGE = "image"
FILE = "file"


class Text(NamedTuple):
    """A caption in a source.

    Attributes:
      text: the caption.
      language: its BCP 47 tag.
      group: captions of one image with the same group say the same; "" for no group.
      place: where it is, for messages: "captions.tsv:3".
    """

    text: str
    language: str
    group: str
    place: str


class Pair(NamedTuple):
    """Two texts that mean the same; languages, `group` and `place` are as in `Text`, and `split` is the records'."""

    text_a: str
    language_a: str
    text_b: str
    language_b: str
    group: str
    place: str
    split: str = "train"


class Captioned(NamedTuple):
    """An image with its captions; `image` is the file's content, in any format that Pillow reads."""

    image_id: str
    image: bytes
    texts: Sequence[Text]
    split: str = "train"


class NoDecisions:
    """The decisions about a unit if nothing had to be decided; otherwise `decide.Decided`."""

    frequent_texts = frequent_images = np.empty(0, np.uint64)

    def location(self, address: str) -> tuple[int, int, int] | None:
        """Returns `None`: no image has a place that was decided."""
        del address

    def split(self, language: str, image_id: str) -> str:
        """Returns the split of a caption of a data set that is divided here: nothing is held out."""
        del language, image_id
        return "train"


@dataclasses.dataclass
class Reading:
    """The state of reading a unit.

    Attributes:
      tally: counts of the items that were read; `tally.skip` is the `on_problem` of readers of files.
      decided: the decisions about the unit.
    """

    tally: Tally = dataclasses.field(default_factory=Tally)
    decided: Any = dataclasses.field(default_factory=NoDecisions)


@dataclasses.dataclass
class Source:
    """Training data of one kind; the fields are its options on the command line, `path` its files.

    A family of sources derives from it and overrides methods. Reading a unit again gives the same items, in the same
    order.

    Attributes:
      KIND: the kind's name on the command line.
      ITEM: the type of its items: `PAIR`, `IMAGE` or `FILE`.
      GROWTH: bytes of records per byte of text.
      MOST_UNITS: the most units of a file; None: as many as its ending allows.
      is_divided: whether the conversion holds images out for dev and test, by the family's `image_hash` and `hold_out`.
    """

    path: str
    KIND: ClassVar[str] = ""
    ITEM: ClassVar[str] = PAIR
    GROWTH: ClassVar[float] = 2.0
    MOST_UNITS: ClassVar[int | None] = None
    is_divided = False

    def check(self) -> None:
        """Raises `UserError` for a missing or unknown language; families check further options."""
        for name in ("language", "language_a", "language_b"):
            code = getattr(self, name, None)
            if code == "":
                raise UserError(f"{self.KIND}:{self.path} needs a language: {self.KIND}:{self.path},{name}=de.")
            if code is not None and column_of(code) is None:  # a column's codes are checked row by row
                canonical_language(code)

    def units(self, unit_bytes: int) -> list[Unit]:
        """Returns the files, cut into units of about `unit_bytes` bytes of records each."""
        units: list[Unit] = []
        for path in self.files():
            units += cut(path, self.weight(path), unit_bytes, self.MOST_UNITS)
        return units

    def weight(self, path: pathlib.Path) -> int:
        """Returns about how many bytes the records of a file will have."""
        return int(unpacked_size(path) * self.GROWTH)

    def read(self, unit: Unit, reading: Reading) -> Iterator[Any]:
        """Yields a unit's items, in bounded memory; `reading.tally` counts unusable items."""
        raise NotImplementedError

    def records(self, item: Any, reading: Reading) -> Iterable[Pair | Captioned]:
        """Yields the records of an item; `reading.tally` counts unusable parts."""
        raise NotImplementedError

    def texts(self, item: Any) -> Iterable[tuple[str, Text]]:
        """Yields (image id, caption) of an item without reading the image, for filters that count over all data."""
        del item
        return ()

    def downloads(self) -> Any:
        """Returns the store of images that were downloaded by their addresses; `None` for other sources."""
        return None

    def files(self) -> list[pathlib.Path]:
        """Returns the sorted files that match `path`, which may hold wildcards; raises `UserError` if none matches."""
        return find_files(self.path)

    def input_files(self) -> list[pathlib.Path]:
        """Returns every file on which the records depend: a conversion is only resumed on the same files."""
        return self.files()


class ShardSource(Source):
    """Base of sources whose files, or folders of files, are one item each."""

    ITEM: ClassVar[str] = FILE
    GROWTH: ClassVar[float] = 1.0
    MOST_UNITS: ClassVar[int] = 1

    def weight(self, path: pathlib.Path) -> int:
        """Returns the bytes of a file, or of the files in a folder: its records are about as large."""
        if path.is_file():
            return path.stat().st_size
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())

    def read(self, unit: Unit, reading: Reading) -> Iterator[pathlib.Path]:
        """Yields the unit's file."""
        del reading
        yield as_path(unit.path)


def lines_of(unit: Unit, reading: Reading, header: bool) -> Iterator[tuple[str, str]]:
    """Yields (line, place) of the readable lines of a unit of a text file; `reading.tally` counts the others.

    `header`: whether the file's first line is a header, which is left out.
    """
    path = as_path(unit.path)
    for number, line in read_lines(path, reading.tally.skip, unit.part(unpacked_size(path))):
        if line is not None and not (header and number == 1):
            yield line, f"{path}:{number}"


def column_of(option: str) -> str | None:
    """Returns the column that an option of a language names: "2" for "column 2"; `None` for a language's code."""
    word, _, column = option.partition(" ")
    if word != "column" or not column:
        return None
    return column


def find_files(pattern: str) -> list[pathlib.Path]:
    """Returns the sorted files and folders that match a path or a pattern with wildcards.

    Raises `UserError` if nothing matches, and for pipes and links that lead nowhere.
    """
    paths = find(pattern)
    if not paths:
        raise UserError(f"There is no file {pattern}.")
    for path in paths:
        if not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is neither a file nor a folder; it may be a pipe, or a link that leads nowhere.")
    return paths


class Kinds(Mapping):
    """{prefix: class of its sources}; a class is imported on first use.

    Args:
      modules: {prefix: "MODULE:CLASS"}, a module in `mural_tf.ingest.sources` and a class in it.
    """

    def __init__(self, modules: dict[str, str]):
        self._modules = modules

    def __getitem__(self, prefix: str) -> type[Source]:
        module, _, name = self._modules[prefix].partition(":")
        return getattr(importlib.import_module(f"mural_tf.ingest.sources.{module}"), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def options_of(cls: type[Source]) -> dict[str, dataclasses.Field]:
    """Returns {name: field} of the options that a class of sources has on the command line."""
    return {field.name: field for field in dataclasses.fields(cls) if field.name != "path"}


def parse_source(text: str, kinds: Mapping[str, type[Source]]) -> Source:
    """Returns the source that a text on the command line names, such as "coco:captions.json,images=train2014".

    Args:
      text: `KIND:PATH[,OPTION=VALUE…]`.
      kinds: {KIND: class of its sources}.

    Raises:
      UserError: the kind, an option or its value is not known, or the path is missing.
    """
    prefix, colon, path_and_options = text.partition(":")
    if not colon or prefix not in kinds:
        expected = f"KIND:PATH[,OPTION=VALUE…], with a KIND of {', '.join(kinds)}"
        folder = as_path(text.partition(",")[0])
        hint = _did_you_mean(prefix, kinds)
        if (folder / "image_text").is_dir() or (folder / "text_pairs").is_dir():  # a data set
            hint = f" Did you mean records:{text}?"
        raise UserError(f"Unknown source {text!r}: expected {expected}.{hint}")
    path, *options = path_and_options.split(",")
    if not path:
        raise UserError(f"The source {text!r} names no file.")
    cls = kinds[prefix]
    fields = options_of(cls)
    values = {}
    for option in options:
        name, equals, value = option.partition("=")
        if name not in fields or not equals:
            expected = f"it has {', '.join(fields) or 'none'}, each as name=value"
            raise UserError(f"{prefix} has no option {option!r}; {expected}.{_did_you_mean(name, fields)}")
        values[name] = _parse_option(prefix, name, value, fields[name].type)
    return cls(path=path, **values)


def describe_kinds(kinds: Mapping[str, type[Source]]) -> str:
    """Returns a text for `convert --list`: every kind of source with its options and its docstring."""
    parts = []
    for prefix, cls in kinds.items():
        options = []
        for name, field in options_of(cls).items():
            default = field.default
            if isinstance(default, tuple):
                default = "+".join(default)
            options.append(f"{name}={default}")
        parts.append(f"{prefix}:PATH  {', '.join(options)}\n{textwrap.indent(inspect.getdoc(cls), '    ')}")
    return "\n\n".join(parts)


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns " Did you mean NAME?" with the name that is most similar to `name`; "" if no name is similar."""
    for nearest in difflib.get_close_matches(name, names, 1):  # at most one
        return f" Did you mean {nearest}?"
    return ""


def _to_bool(text: str) -> bool:
    """Returns the truth value of "true", "1", "false" or "0", in any case; raises `ValueError` for another text."""
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise ValueError
    return values[text.lower()]


def _to_tuple(text: str) -> tuple[str, ...]:
    """Returns the parts of a text that are joined by "+", without empty parts."""
    return tuple(part for part in text.split("+") if part)


_PARSERS: dict[str, Callable] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": _to_bool,
    "tuple[str, ...]": _to_tuple,
}


def _parse_option(prefix: str, name: str, text: str, type_name: str) -> Any:
    """Returns the value of a source's option; raises `UserError` for a text that is not of the option's type.

    Args:
      prefix: the source's kind, for the message.
      name: the option's name, for the message.
      text: the value as it is written.
      type_name: the option's type, a key of `_PARSERS`.
    """
    parse = _PARSERS[type_name]
    try:
        return parse(text)
    except ValueError:
        raise UserError(f"{prefix}: option {name}={text!r} is not of type {type_name}.") from None


@dataclasses.dataclass(frozen=True)
class Filters:
    """Filters of web data; 0 turns a filter off.

    Attributes:
      above_shorter_side: keep images whose shorter side is longer than this, in pixels.
      max_aspect_ratio: the largest ratio of the longer to the shorter side.
      max_texts_per_image: images with more texts are left out, counted over all sources.
      max_images_per_text: texts on more images are left out, counted over all sources.
      min_words, max_words: unigrams of a caption; in scripts without spaces every character counts as a unigram.
      max_characters: characters of a caption.
    """

    above_shorter_side: int = 0
    max_aspect_ratio: float = 0.0
    max_texts_per_image: int = 0
    max_images_per_text: int = 0
    min_words: int = 0
    max_words: int = 0
    max_characters: int = 0


FILTERS = {  # numbers in the order of the attributes of `Filters`
    "none": Filters(),
    # Jia et al. (2021), §3. Left out: its list of rare tokens, which needs the unigrams of the whole web crawl.
    "align": Filters(200, 3.0, 1000, 10, 3, 20, 0),
    # ETCL, §3.4. Left out: its language identification by cld3, which only serves an English model.
    "etcl": Filters(200, 3.0, 100, 10, 3, 100, 1000),
}


DUPLICATES = ("", "text", "image", "both", "pair")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a conversion; a value out of bounds raises `UserError`. `identity` has all that decide bytes.

    Attributes:
      filters: the filters of web data.
      evaluation_images: files, folders or patterns; training images that look like any of these are left out.
      hash_distance: the most bits, of 64, by which perceptual hashes of the same picture may differ, 0 to 16.
      exclude_texts: text files or patterns; a pair or caption that has one of their lines as a text is left out.
      translations: files of translations of captions, see `translated_captions.read_translations`.
      translation_languages: the languages of translations that are used, BCP 47; empty for all.
      image_size: images whose shorter side is longer are shrunk to it, in pixels; 0 copies them unchanged.
      drop_duplicates: "text", "image", "both" (each by itself) or "pair" (both together) may occur only once, over all
        sources; "" keeps all.
      shuffle: mix the sources over the shards, and the records within each.
      unit_bytes: bytes of records that a worker makes of a part of a file.
      shard_megabytes: about how many megabytes a TFRecord file has.
      workers: number of processes; 0 converts in the calling process.
      beam: flags of Apache Beam, to work on other machines; see `Engine`.
      max_skipped_fraction: the largest share of items that may be skipped before the conversion stops.
    """

    filters: Filters = Filters()
    evaluation_images: tuple[str, ...] = ()
    hash_distance: int = 4
    exclude_texts: tuple[str, ...] = ()
    translations: tuple[str, ...] = ()
    translation_languages: tuple[str, ...] = ()
    image_size: int = 0
    drop_duplicates: str = ""
    shuffle: bool = False
    unit_bytes: int = 32_000_000
    shard_megabytes: int = 64
    workers: int = 1
    beam: str = ""
    max_skipped_fraction: float = 0.01

    def __post_init__(self):
        if self.workers < 0 or self.shard_megabytes < 0:
            raise UserError(f"workers={self.workers}, shard_megabytes={self.shard_megabytes}: expected 0 or more.")
        if self.image_size < 0 or self.unit_bytes < 1:
            raise UserError(
                f"image_size={self.image_size}, unit_bytes={self.unit_bytes}: expected 0 or more, and 1 or more."
            )
        check_fraction(self.max_skipped_fraction, "max_skipped_fraction")
        if self.drop_duplicates not in DUPLICATES:
            raise UserError(
                f"drop_duplicates is {self.drop_duplicates!r}: expected one of {', '.join(DUPLICATES[1:])}, or nothing."
            )
        if not 0 <= self.hash_distance <= 16:
            raise UserError(
                f"hash_distance is {self.hash_distance}: expected 0 to 16 of 64 bits; unlike images differ by about 32."
            )

    def identity(self) -> dict:
        """Returns {setting: value} of the settings that decide the bytes of the data set."""
        values = dataclasses.asdict(self)
        del values["workers"], values["max_skipped_fraction"], values["beam"]
        return values

    def engine(self) -> Engine:
        """Returns the engine that runs the conversion; raises `UserError` for flags of Beam that do not fit."""
        return Engine(self.workers, self.beam)
