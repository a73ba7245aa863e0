"""What an index finds: images in files or TFRecords, and texts. Items know where their image lies, not its bytes.

An `ItemTable` is a JSON-lines file with an array of its lines' offsets, so that an index of millions of items opens at
once and reads only the items that are asked for.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from mural_tf.data import tfrecord
from mural_tf.errors import UserError
from mural_tf.files import save_array, whole

IMAGES, TEXTS = "images", "texts"
IMAGE_FEATURES = ("image", "jpg")  # of the project's records and of img2dataset's


@dataclasses.dataclass(frozen=True)
class Item:
    """One image or one text.

    `name`: what is shown, a path, an image id or the text itself. `path`: the file of the image, absolute, "" for a
    text without one. `offset`: where its record begins in the TFRecord file `path`; -1 if the file is the image.
    `captions`: (language, text) of an image. `language`: of a text, BCP 47 or "".
    """

    name: str
    path: str = ""
    offset: int = -1
    captions: tuple[tuple[str, str], ...] = ()
    language: str = ""

    @property
    def has_image(self) -> bool:
        """Whether there is an image to show: itself, or the one that a text describes."""
        return bool(self.path)

    def caption(self, language: str = "en") -> tuple[str, str]:
        """Returns (language, text) of the caption in `language`, else of the first one, else ("", "")."""
        return next((c for c in self.captions if c[0] == language), self.captions[0] if self.captions else ("", ""))


def read_image(item: Item) -> bytes:
    """Returns the encoded image of an item. Raises `OSError` or `ValueError` if it is not there any more."""
    if not item.path:
        raise ValueError(f"{item.name!r} is a text without an image.")
    if item.offset < 0:
        return pathlib.Path(item.path).read_bytes()
    return image_of_record(tfrecord.read_at(item.path, item.offset), item.path)


def image_of_record(serialized: bytes, path: str) -> bytes:
    """Returns the encoded image of a serialised image-text `tf.train.Example`. Raises `ValueError` if it has none."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        feature = tf.train.Example.FromString(serialized).features.feature
    except DecodeError:
        raise ValueError(f"{path} holds something else than tf.train.Examples.") from None
    for name in IMAGE_FEATURES:
        if name in feature and feature[name].bytes_list.value:
            return feature[name].bytes_list.value[0]
    raise ValueError(f"{path} holds records without an image (feature {' or '.join(IMAGE_FEATURES)}).")


class ItemTable(Sequence[Item]):
    """The items of a JSON-lines file written by `write_items`, read when they are asked for."""

    def __init__(self, path: str | os.PathLike):
        self._starts = np.load(_starts_of(path), mmap_mode="r")  # [N + 1]
        self._file = open(path, "rb")  # noqa: SIM115 - lives as long as the table
        size = os.path.getsize(path)
        if size != int(self._starts[-1]):
            raise UserError(f"{path} has {size} bytes instead of {self._starts[-1]}: the index is damaged.")
        self._lines = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> Item:
        row = range(len(self))[row]  # IndexError outside; negative rows count from the end
        return from_json(self._lines[self._starts[row] : self._starts[row + 1]])


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
    starts = [0]
    with whole(path) as partial, open(partial, "wb") as file:
        for line in lines:
            starts.append(starts[-1] + file.write(line))
    save_array(_starts_of(path), np.array(starts, np.int64))
    return len(starts) - 1


def to_json(item: Item) -> bytes:
    """Returns the item as one line of JSON, without the fields that have their default."""
    values = {
        field.name: getattr(item, field.name)
        for field in dataclasses.fields(Item)
        if getattr(item, field.name) != field.default
    }
    return json.dumps(values, ensure_ascii=True).encode() + b"\n"


def from_json(line: bytes) -> Item:
    """Reads a line of `to_json`."""
    values = json.loads(line)
    values["captions"] = tuple((language, text) for language, text in values.get("captions", ()))
    return Item(**values)


def _starts_of(path: str | os.PathLike) -> pathlib.Path:
    return pathlib.Path(path).with_suffix(".offsets.npy")
