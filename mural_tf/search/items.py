"""What an index finds: images in files or TFRecords, and texts. Items know where their image lies, not its bytes.

An `ItemTable` is a JSON-lines file with an array of its lines' offsets, so that an index of millions of items opens at
once and reads only the items that are asked for.
"""

from __future__ import annotations

import array
import dataclasses
import json
import mmap
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from mural_tf.data import tfrecord
from mural_tf.data.pictures import read_file
from mural_tf.data.record_format import Example
from mural_tf.errors import UserError
from mural_tf.files import save_array, whole
from mural_tf.hashes import bytes_hash
from mural_tf.text_files import parse_object

KINDS = IMAGES, TEXTS = "images", "texts"
IMAGE_FEATURES = ("image", "jpg")  # of the project's records and of img2dataset's


@dataclasses.dataclass(frozen=True)
class Item:
    """One image or one text.

    `name`: what is shown, a path, an image id or the text itself. `path`: the file of the image, absolute, "" for a
    text without one. `offset`: where its record begins in the TFRecord file `path`; -1 if the file is the image.
    `captions`: (language, text) of an image. `language`: of a text, BCP 47 or "". `fields`: what else is known, a
    product's brand or price. `content`: of an image, 16 hexadecimal digits that stand for its bytes, "" if not known.
    """

    name: str
    path: str = ""
    offset: int = -1
    captions: tuple[tuple[str, str], ...] = ()
    language: str = ""
    fields: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    content: str = ""

    @property
    def has_image(self) -> bool:
        """Whether there is an image to show: itself, or the one that a text describes."""
        return bool(self.path)

    def caption(self, language: str = "en") -> tuple[str, str]:
        """Returns (language, text) of the caption in `language`, else of the first one, else ("", "")."""
        return next((c for c in self.captions if c[0] == language), self.captions[0] if self.captions else ("", ""))


_DEFAULTS = vars(Item(""))


def read_image(item: Item) -> bytes:
    """Returns the encoded image of an item. Raises `OSError` or `ValueError` if it is not there any more."""
    if not item.path:
        raise ValueError(f"{item.name!r} is a text without an image.")
    if item.offset < 0:
        return read_file(item.path)
    image = image_of_record(tfrecord.read_at(item.path, item.offset), item.path)
    if item.content and content_of(image) != item.content:
        raise ValueError(f"{item.path} holds another image at byte {item.offset} by now: update the index.")
    return image


def content_of(image: bytes) -> str:
    """Returns 16 hexadecimal digits that stand for the bytes of an image."""
    return f"{bytes_hash(image):016x}"


def image_of_record(serialized: bytes, path: str) -> bytes:
    """Returns the encoded image of a serialised image-text `tf.train.Example`. Raises `ValueError` if it has none."""
    try:
        feature = Example.FromString(serialized).features.feature
    except DecodeError:
        raise ValueError(f"{path} holds something else than tf.train.Examples.") from None
    for name in IMAGE_FEATURES:
        if name in feature and feature[name].bytes_list.value:
            return feature[name].bytes_list.value[0]
    raise ValueError(f"{path} holds records without an image (feature {' or '.join(IMAGE_FEATURES)}).")


class ItemTable(Sequence[Item]):
    """The items of a JSON-lines file written by `write_items`, read when they are asked for."""

    def __init__(self, path: str | os.PathLike):
        self._path, self._starts = path, read_array(_starts_of(path), mmap_mode="r")  # [N + 1]
        if self._starts.dtype != np.int64 or self._starts.ndim != 1 or not len(self._starts):
            raise UserError(f"{_starts_of(path)} holds {self._starts.dtype} {list(self._starts.shape)}: it is damaged.")
        self._file = open(path, "rb")  # noqa: SIM115 - lives as long as the table
        size = os.path.getsize(path)
        if size != int(self._starts[-1]):
            raise UserError(f"{path} has {size} bytes instead of {self._starts[-1]}: the index is damaged.")
        self._lines = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> Item:
        row = range(len(self))[row]  # IndexError outside; negative rows count from the end
        try:
            return from_json(self.line(row))
        except ValueError as error:
            raise UserError(f"Line {row + 1} of {self._path} is damaged ({error}): make the index again.") from None

    def rows_holding(self, name: str, value: str) -> Iterator[int]:
        """Yields the rows, rising, in whose lines `to_json` may have written "name": "value"; few others."""
        wanted = f"{json.dumps(name)}: {json.dumps(value)}".encode()
        place = self._lines.find(wanted)
        while place >= 0:
            row = int(np.searchsorted(self._starts, place, side="right")) - 1
            if not 0 <= row < len(self) or self._starts[row + 1] <= place:
                raise UserError(f"{_starts_of(self._path)} is damaged: make the index again.")
            yield row
            place = self._lines.find(wanted, int(self._starts[row + 1]))

    def line(self, row: int) -> bytes:
        """Returns the line of a row as it was written."""
        return self._lines[self._starts[row] : self._starts[row + 1]]


class Names(Sequence[str]):
    """The names of a sequence of items: `names[row]`."""

    def __init__(self, items: Sequence[Item]):
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int) -> str:
        return self._items[row].name


def write_items(path: str | os.PathLike, lines: Iterable[bytes]) -> int:
    """Writes lines of `to_json` and the table of their offsets; returns how many."""
    path = pathlib.Path(path)
    starts = array.array("q", [0])  # 8 bytes an item
    with whole(path) as partial, open(partial, "wb") as file:
        for line in lines:
            starts.append(starts[-1] + file.write(line))
    save_array(_starts_of(path), np.frombuffer(starts, np.int64))
    return len(starts) - 1


def to_json(item: Item) -> bytes:
    """Returns the item as one line of JSON, without the fields that have their default."""
    values = {name: value for name, value in vars(item).items() if value != _DEFAULTS[name]}
    return json.dumps(values, ensure_ascii=True).encode() + b"\n"


def from_json(line: bytes) -> Item:
    """Reads a line of `to_json`; raises `ValueError` for anything else."""
    values = parse_object(line)
    captions = values.pop("captions", [])
    if not isinstance(captions, list) or not all(map(_is_pair_of_texts, captions)):
        raise ValueError("captions that are not pairs of texts")
    if not is_fields(values.get("fields", {})):
        raise ValueError("fields that are not texts by name")
    types = {"name": str, "path": str, "offset": int, "language": str, "fields": dict, "content": str}
    wrong = [name for name, value in values.items() if not isinstance(value, types.get(name, ()))]
    if wrong or "name" not in values:
        raise ValueError(f"{wrong[0] if wrong else 'name'} is missing, unknown or of another type")
    return Item(captions=tuple(map(tuple, captions)), **values)


def is_fields(value: object) -> bool:
    """Tells whether something that was parsed is an object of texts."""
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _is_pair_of_texts(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value)


def read_array(path: pathlib.Path, **options) -> np.ndarray:
    """Returns an array of a .npy file; raises `UserError` if there is none."""
    try:
        array = np.load(path, **options)
    except Exception as error:  # noqa: BLE001 - NumPy's reader raises many classes on damaged headers
        raise UserError(f"{path} is damaged ({str(error) or type(error).__name__}); make the index again.") from None
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path} is damaged (an archive of arrays); make the index again.")
    return array


def forget(array: np.ndarray) -> None:
    """Gives the pages of a memory-mapped array back to the system, which reads them again where they are needed."""
    mapped = getattr(array, "base", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _starts_of(path: str | os.PathLike) -> pathlib.Path:
    return pathlib.Path(path).with_suffix(".offsets.npy")
