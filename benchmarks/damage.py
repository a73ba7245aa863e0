"""Damage of files, drawn from a seed: what disks, networks, editors and other programs do to bytes, lines and JSON."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

NUMBERS = (b"1e400", b"-1", b"0", b"99999999999999999999999999", b"9223372036854775808", b"NaN", b"-Infinity")
VALUES = (None, True, -1, 0, 7, 0.5, 2**40, 10**30, 1e308, float("nan"), "", "x", "\ud800", "../../x", "a\0b", [], {},
          [1, "a"], {"a": None}, ["x"] * 50, [[]])  # fmt: skip


# Kinds of damage, which change `data` in place.


def flip_bits(draw: random.Random, data: bytearray) -> None:
    """Flips one to three bits of `data`."""
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def cut_end(draw: random.Random, data: bytearray) -> None:
    """Removes the end of `data`, sometimes everything."""
    begin = draw.choice([0, draw.randrange(len(data)), draw.randrange(len(data)), len(data) - 1])
    del data[begin:]


def change_stretch(draw: random.Random, data: bytearray) -> None:
    """Removes, repeats, empties or replaces a stretch of `data`, sometimes its beginning, or puts bytes before it."""
    begin = draw.choice([0, draw.randrange(len(data)), draw.randrange(len(data))])
    stretch = bytes(data[begin : begin + draw.choice([1, 2, 12, 64, 512, 5000])])
    zeros = bytes(len(stretch))
    noise = draw.randbytes(len(stretch))
    data[begin : begin + len(stretch)] = draw.choice([b"", 2 * stretch, zeros, noise, noise + stretch])


def swap_lines(draw: random.Random, data: bytearray) -> None:
    """Exchanges two lines of `data`, or a line with itself."""
    lines = bytes(data).split(b"\n")
    a = draw.randrange(len(lines))
    b = draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    data[:] = b"\n".join(lines)


def replace_number(draw: random.Random, data: bytearray) -> None:
    """Replaces a decimal number in `data`, if there is any, by an impossible number."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if numbers:
        chosen = draw.choice(numbers)
        data[chosen.start() : chosen.end()] = draw.choice(NUMBERS)


def insert_invalid_text(draw: random.Random, data: bytearray) -> None:
    """Puts bytes into `data` that are not UTF-8, or separators and control characters as editors write them."""
    begin = draw.randrange(len(data) + 1)
    data[begin:begin] = draw.choice([b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\xc2\x85", b"\xe2\x80\xa8", b"\r", b'"'])


def change_json_value(draw: random.Random, data: bytearray) -> None:
    """Removes or replaces a value of the JSON in `data`, or in one line of JSON Lines, which stays valid.

    Data that are not JSON stay as they are.
    """
    lines = bytes(data).splitlines(keepends=True)
    number = draw.randrange(len(lines))
    chosen = slice(None)
    if not _is_json(data):  # but perhaps a line is
        chosen = slice(number, number + 1)
    encoded = b"".join(lines[chosen])
    if not _is_json(encoded):
        return
    root = {"": json.loads(encoded)}  # in which the whole value has a container and a key, too
    parent, key = draw.choice(list(places(root)))
    parent[key] = draw.choice(VALUES)
    if draw.random() < 0.15 and parent is not root:
        del parent[key]
    text = json.dumps(root[""])
    if draw.random() < 0.1:  # deeper than `json` writes: in place of the `[[]]` of VALUES
        text = text.replace("[[]]", "[" * 200_000 + "]" * 200_000)
    lines[chosen] = [text.encode() + b"\n"]
    data[:] = b"".join(lines)


def _is_json(data: bytes | bytearray) -> bool:
    """Whether bytes are one JSON value."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def places(container: dict | list):
    """Yields (container, key or index) of every value within a JSON object or array, at all depths."""
    keys = list(container) if isinstance(container, dict) else range(len(container))
    for key in keys:
        yield container, key
        if isinstance(container[key], (dict, list)):
            yield from places(container[key])


BINARY = (flip_bits, cut_end, change_stretch, change_stretch, change_stretch)
LINES = (*BINARY, swap_lines, replace_number, insert_invalid_text)
JSON = (*LINES, *[change_json_value] * len(LINES))


def damaged(draw: random.Random, good: bytes, ways: Sequence) -> tuple[bytes, str]:
    """Returns (a file's bytes after one or, seldom, two kinds of damage, the names of these kinds).

    Args:
      draw: draws the kinds of damage and their places.
      good: the file's bytes.
      ways: functions (draw, data) that damage a `bytearray` in place, such as `BINARY`; a repeated one is likelier.
        `change_json_value` comes only first, because it needs valid JSON. Empty data are damaged no further.
    """
    data = bytearray(good)
    names = []
    for _ in range(draw.choice([1, 1, 1, 2])):
        possible = [way for way in ways if way is not change_json_value or not names]
        if data:
            (way,) = draw.sample(possible, 1)
            way(draw, data)
            names.append(way.__name__)
    return bytes(data), " and ".join(names)
