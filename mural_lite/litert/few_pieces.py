"""SentencePiece for a few texts: only the pieces of a large vocabulary that can occur in them.

The library builds a tree of all pieces before the first text, a processor second for the 250,000 of multilingual-e5.
How a text is divided depends on the pieces that occur in it, on special pieces, and on the pieces with the lowest and
the highest score, by which unknown characters and the user's own pieces are weighed. A small model of only these pieces
is made for each text in some milliseconds, and divides it as the whole model does. An export holds their positions.
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
      path: the positions of its pieces, as an export wrote them (`mural_tf/runs/lite.py`).
      processor: the library's class, which makes a processor from a model's bytes, `model_proto`.

    Attributes:
      unknown: the id of unknown pieces in the whole model.

    Raises `UserError` if `path` is damaged.
    """

    def __init__(self, model: bytes, path: pathlib.Path, processor: Callable):
        self._model = model
        self._processor = processor
        try:
            with np.load(path) as arrays:
                self._hashes = arrays["hashes"]  # sorted, of the texts of pieces
                self._ids = arrays["ids"]  # in the order of the hashes
                self._spans = arrays["spans"]  # (begin, end) of each piece in the model
                self._always = arrays["always"]  # ids of pieces that every small model needs
                self._longest = int(arrays["longest"])  # characters
                others = arrays["others"]  # (begin, end) of the settings in the model
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            raise UserError(f"{path} is damaged: copy the folder again.") from None
        self._others = b"".join(model[begin:end] for begin, end in others.tolist())
        smallest = self._small_model(self._always)
        self._normalize = smallest.Normalize
        self.unknown = int(self._always[smallest.unk_id()])

    def encode(self, text: bytes) -> list[int]:
        """Returns the ids, in the whole model, of the pieces of a text in UTF-8."""
        ids = np.union1d(self._always, self._occurring_ids(self._normalize(text).decode("utf-8")))
        small_ids = self._small_model(ids).EncodeAsIds(text)  # the piece N of a small model is the piece ids[N]
        return ids[small_ids].tolist()

    def _occurring_ids(self, text: str) -> np.ndarray:
        """Returns the ids of all pieces that occur in a normalised text, int [P], and of others of the same hashes."""
        substrings: set[str] = set()
        for begin in range(len(text)):
            substrings.update(text[begin : begin + length] for length in range(1, self._longest + 1))
        hashes = np.array([zlib.crc32(substring.encode("utf-8")) for substring in substrings], np.uint32)
        begins = np.searchsorted(self._hashes, hashes, "left")
        ends = np.searchsorted(self._hashes, hashes, "right")
        has_pieces = begins < ends
        rows: list[int] = []
        for begin, end in zip(begins[has_pieces], ends[has_pieces]):
            rows += range(begin, end)
        return self._ids[rows]

    def _small_model(self, ids: np.ndarray):
        """Returns the library's processor with only the pieces `ids`, and with the settings of the whole model."""
        pieces = b"".join(self._model[begin:end] for begin, end in self._spans[ids].tolist())
        return self._processor(model_proto=pieces + self._others)


def fields(message: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (number, begin, begin of the value, end) of each field of a protocol buffer, bytes `position` to `end`."""
    while position < end:
        begin = position
        tag, position = _varint(message, position)
        number = tag >> 3
        wire_type = tag & 0b111
        if wire_type == 2:  # the value's size comes before the value
            size, position = _varint(message, position)
        elif wire_type == 0:  # a varint
            _, end_of_value = _varint(message, position)
            size = end_of_value - position
        else:
            size = {1: 8, 5: 4}[wire_type]  # bytes of 64 and 32 bits
        yield number, begin, position, position + size
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Returns (number at a position, position after it): 7 bits per byte, lowest first; the high bit: more follow."""
    number = 0
    shift = 0
    while True:
        byte = message[position]
        number |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if byte < 0x80:
            return number, position
