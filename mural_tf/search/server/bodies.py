"""Reads a request's body, and refuses it while it arrives if it would become too large.

JSON of tiny values takes up to thirty times its size as Python's objects (`{"":0}` is 7 bytes and a dictionary of 200),
and nothing else runs in the process while they are made. So the values are counted before: brackets, commas and colons
outside of strings, in each chunk as it comes, without a parser.
"""

from __future__ import annotations

import numpy as np
from aiohttp import web

from mural_tf.search.server.limits import Limits, Share
from mural_tf.search.server.rest_json import BadRequest

QUOTE, COMMA = ord('"'), ord(",")
# Bytes of memory for each character outside of strings, measured in CPython 3.11 and rounded up: an empty list takes
# 56, an empty dictionary 64, an item 8 and its number 24 to 32, a string 49 and more (it has two quotes), a
# dictionary's entry with its key 200. A closing bracket is free.
COSTS = {"[": 64, "{": 72, ",": 40, ":": 256, '"': 16, "]": 0, "}": 0}
COST, DEPTH = np.zeros(256, np.int64), np.zeros(256, np.int64)
for _character, _bytes in COSTS.items():
    COST[ord(_character)] = _bytes
for _character, _step in (("[", 1), ("{", 1), ("]", -1), ("}", -1)):
    DEPTH[ord(_character)] = _step
ORDINARY = bytes(set(range(256)) - {ord(character) for character in COSTS})
ROWS_DEPTH = 2  # {"instances": [row, …]}


class JsonScan:
    """Counts what a JSON text would become, from its pieces; what is no JSON is counted somehow.

    Args:
      max_rows: items of the lists at `ROWS_DEPTH`.
      max_bytes: of Python's objects, as `COSTS` has them.
    """

    def __init__(self, max_rows: int, max_bytes: int):
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._escape, self._in_string, self._depth = b"", False, 0
        self._commas, self.bytes = 0, 0

    def feed(self, piece: bytes) -> None:
        """Counts a piece; raises `BadRequest` or a 413 as soon as it is too much."""
        marks = self._outside_of_strings(piece)
        depths = self._depth + np.cumsum(DEPTH[marks])
        self._depth = int(depths[-1]) if len(depths) else self._depth
        self._commas += np.count_nonzero((marks == COMMA) & (depths == ROWS_DEPTH))
        self.bytes += int(COST[marks].sum())
        if self._commas >= self._max_rows:
            raise BadRequest(f"More than {self._max_rows} rows in one request; at most {self._max_rows} are taken.")
        if self.bytes > self._max_bytes:
            words = f"The body's lists and numbers would take more than {self._max_bytes >> 20} MiB"
            raise too_large(f"{words}; send it in several requests.")

    def _outside_of_strings(self, piece: bytes) -> np.ndarray:
        """Returns the quotes, and the brackets, commas and colons outside of strings, uint8 [N]."""
        piece = (self._escape + piece).replace(b"\\\\", b"")
        self._escape = b"\\" if piece.endswith(b"\\") else b""  # what it escapes is in the next piece
        piece = piece.replace(b'\\"', b"").translate(None, ORDINARY)
        marks = np.frombuffer(piece, np.uint8)
        quotes = marks == QUOTE
        in_string = np.logical_xor.accumulate(quotes) ^ self._in_string
        if len(marks):
            self._in_string = bool(in_string[-1])
        return marks[~in_string | quotes]


async def read_body(request: web.Request, limits: Limits, share: Share, is_json: bool = True) -> bytearray:
    """Returns the body of a request, unpacked.

    Args:
      request: whose body it is.
      limits: the server's.
      share: grows by the body's size as it arrives.
      is_json: whether the body will be parsed, or is a file.

    Raises:
      web.HTTPException, BadRequest: the body is too large, or would be as objects.
      Overloaded: others hold too much.
    """
    _check_size(request.content_length or 0, limits)
    body, scan = bytearray(), JsonScan(limits.max_rows, limits.max_parsed_bytes)
    while piece := await request.content.readany():
        _check_size(len(body) + len(piece), limits)
        share.grow(len(piece))
        if is_json:
            scan.feed(piece)
        body += piece
    return body


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.max_request_bytes:
        raise too_large(f"The body has {size} bytes or more; at most {limits.max_request_bytes} are taken.")


def too_large(words: str) -> web.HTTPException:
    """Returns a 413 with an explanation."""
    return web.HTTPRequestEntityTooLarge(max_size=0, actual_size=0, text=words)  # before aiohttp 3.14 both are required
