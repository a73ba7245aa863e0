"""What a source of training data is, and how the command line names one: `KIND:PATH[,OPTION=VALUE…]`."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import glob
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, ClassVar, NamedTuple

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.tally import Tally
from mural_tf.data.text_files import canonical_language

language_tag = functools.lru_cache(maxsize=4096)(canonical_language)  # called once a record
PAIR, IMAGE, FILE = "pair", "image", "file"  # what an item is: its size decides how many go into a block


class Text(NamedTuple):
    """A caption as a source found it; `group` joins captions of one image that say the same."""

    text: str
    language: str
    group: str
    place: str


class Pair(NamedTuple):
    """Two texts that mean the same."""

    text_a: str
    language_a: str
    text_b: str
    language_b: str
    group: str
    place: str
    split: str = "train"


class Captioned(NamedTuple):
    """An image with its captions; `image` is the file's content, of any format that Pillow reads."""

    image_id: str
    image: bytes
    texts: Sequence[Text]
    split: str = "train"


@dataclasses.dataclass
class Reading:
    """What `Source.read` tells while it reads.

    Attributes:
      tally: of the block that is being filled; the runner puts a new one in its place for every block.
      position: bytes of the source's files that were read.
      folder: for the source's own files (indexes); kept until the conversion is complete.
      finished: bytes of the files before the current one.
    """

    folder: pathlib.Path
    tally: Tally = dataclasses.field(default_factory=Tally)
    position: int = 0
    finished: int = 0

    def problem(self, kind: str, place: str) -> None:
        """Counts something unusable in the current block; fits `on_problem` of `data.caption_files`."""
        self.tally.skip(kind, place)

    def at(self, offset: int) -> None:
        """Notes how far the current file was read; fits `on_position` of `data.caption_files`."""
        self.position = self.finished + offset

    def file_done(self, path: pathlib.Path) -> None:
        """Notes that a file was read to its end."""
        self.finished += os.path.getsize(path)
        self.position = self.finished


@dataclasses.dataclass
class Source:
    """Training data of one kind; the fields are its options on the command line.

    A family derives from it and gives the three methods below. `read` runs in the main process and its items travel to
    workers, where `records` runs; what `prepare` leaves on disk is there for both.
    """

    path: str
    KIND: ClassVar[str] = ""
    ITEM: ClassVar[str] = PAIR

    def prepare(self, folder: pathlib.Path, progress: bool) -> None:
        """Does once what reading needs beforehand (an index of images), into `folder`."""

    def read(self, reading: Reading) -> Iterator[Any]:
        """Yields small, picklable items, always in the same order and in bounded memory."""
        raise NotImplementedError

    def records(self, item: Any, tally: Tally) -> Iterable[Pair | Captioned]:
        """Turns an item into what it holds; tells `tally` what cannot be used."""
        raise NotImplementedError

    def texts(self, item: Any) -> Iterable[tuple[str, Text]]:
        """Yields (image id, caption) of an item without touching the image, for filters that count over all data."""
        del item
        return ()

    def files(self) -> list[pathlib.Path]:
        """Returns the sorted files that `path`, which may hold wildcards, stands for.

        Raises:
          ConfigurationError: there is none.
        """
        return find_files(self.path)

    def input_files(self) -> list[pathlib.Path]:
        """Every file whose change would change the records: a conversion is only resumed on the same ones."""
        return self.files()

    def size(self) -> int:
        """Bytes that `Reading.position` reaches in the end."""
        return sum(os.path.getsize(path) for path in self.files())


def find_files(pattern: str) -> list[pathlib.Path]:
    """Returns the sorted files that a path or a pattern with wildcards stands for; raises if there is none."""
    found = sorted(pathlib.Path(name) for name in glob.glob(os.path.expanduser(pattern), recursive=True))
    if not found:
        raise ConfigurationError(f"There is no file {pattern}.")
    return found


def parse_source(text: str, kinds: dict[str, type[Source]]) -> Source:
    """Returns the source that `KIND:PATH[,OPTION=VALUE…]` names; raises `ConfigurationError` with what would do."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in kinds:
        near = difflib.get_close_matches(kind, kinds, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigurationError(
            f"Unknown source {text!r}: expected KIND:PATH[,OPTION=VALUE…], with a KIND of {', '.join(kinds)}.{hint}"
        )
    path, *options = rest.split(",")
    if not path:
        raise ConfigurationError(f"The source {text!r} names no file.")
    cls = kinds[kind]
    fields = {field.name: field for field in dataclasses.fields(cls) if field.name != "path" and field.init}
    values = {}
    for option in options:
        name, equals, value = option.partition("=")
        if name not in fields or not equals:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            known = ", ".join(fields) or "none"
            raise ConfigurationError(f"{kind} has no option {option!r}; it has {known}, each as name=value.{hint}")
        values[name] = _parse(kind, name, value, fields[name].type)
    return cls(path=path, **values)


def _parse(kind: str, name: str, value: str, type_name: str) -> Any:
    parsers: dict[str, Callable] = {
        "str": str,
        "int": int,
        "float": float,
        "bool": lambda v: {"true": True, "1": True, "false": False, "0": False}[v.lower()],
        "tuple[str, ...]": lambda v: tuple(part for part in v.split("+") if part),
    }
    try:
        return parsers[type_name](value)
    except (ValueError, KeyError):
        raise ConfigurationError(f"{kind}: option {name}={value!r} is not of type {type_name}.") from None
