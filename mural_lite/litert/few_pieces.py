"""SentencePiece for a few texts: of a large vocabulary only the pieces that can occur in them.

The library builds a tree of all pieces before the first text, a processor second for the 250,000 of multilingual-e5.
How a text is divided depends on the pieces that occur in it, on special pieces, and on the least and
the largest score, by which unknown characters and pieces of the user's own are weighed. A model of these pieces alone
is made for each text in some milliseconds, and divides it as the whole model does. An export says where they lie.
"""

from __future__ import annotations

import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from mural_lite.errors import UserError

PLACES = "pieces_places.npz"  # next to the model


class FewPieces:
    """Divides a text by the pieces of a model that can occur in it.

    Args:
      model: the file of the SentencePiece model.
      path: what an export wrote of it (`mural_tf/runs/lite.py`).
      processor: the library's class, made of a model's file.

    Raises:
      UserError: `path` is damaged.
    """

    def __init__(self, model: bytes, path: pathlib.Path, processor: Callable):
        self._model, self._processor = model, processor
        try:
            with np.load(path) as arrays:
                self._hashes, self._ids, self._spans = arrays["hashes"], arrays["ids"], arrays["spans"]
                self._always, others, self._longest = arrays["always"], arrays["others"], int(arrays["longest"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            raise UserError(f"{path} is damaged: copy the folder again.") from None
        self._others = b"".join(model[begin:end] for begin, end in others.tolist())
        self._normalize = self._cut(self._always).Normalize

    def encode(self, text: bytes) -> list[int]:
        """Returns the ids of a text's pieces in the whole model."""
        normalized = self._normalize(text).decode("utf-8")
        ends = range(1, self._longest + 1)
        parts = {normalized[begin : begin + end] for begin in range(len(normalized)) for end in ends}
        encoded = [part.encode("utf-8") for part in parts]
        hashes = np.fromiter(map(zlib.crc32, encoded), np.uint32, len(encoded))
        # Other texts of the same hash may come along: they do not occur in the text, so that they change nothing.
        first, last = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        rows = [row for begin, end in zip(first[first < last], last[first < last]) for row in range(begin, end)]
        ids = np.union1d(self._always, self._ids[rows])
        return ids[self._cut(ids).EncodeAsIds(text)].tolist()

    def _cut(self, ids: np.ndarray):
        pieces = b"".join(self._model[begin:end] for begin, end in self._spans[ids].tolist())
        return self._processor(model_proto=pieces + self._others)


def fields(message: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields number, begin, begin of the value and end of each field of a protocol buffer's message."""
    while position < end:
        begin = position
        tag, position = _varint(message, position)
        wire_type = tag & 7
        if wire_type == 2:
            size, position = _varint(message, position)
        elif wire_type == 0:
            size = _varint(message, position)[1] - position
        else:
            size = {1: 8, 5: 4}[wire_type]
        yield tag >> 3, begin, position, position + size
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value, shift, position = value | (byte & 127) << shift, shift + 7, position + 1
        if byte < 128:
            return value, position
