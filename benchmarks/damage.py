"""Damage of files, drawn from a seed: what disks, networks, editors and other programs do to bytes, lines and JSON."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Sequence

NUMBERS = (b"1e400", b"-1", b"0", b"99999999999999999999999999", b"9223372036854775808", b"NaN", b"-Infinity")
VALUES = (None, True, -1, 0, 7, 0.5, 2**40, 10**30, 1e308, float("nan"), "", "x", "\ud800", "../../x", "a\0b", [], {},
          [1, "a"], {"a": None}, ["x"] * 50, [[]])  # fmt: skip


def flipped_bits(draw: random.Random, data: bytearray) -> None:
    """One to three bits are flipped."""
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def cut_off(draw: random.Random, data: bytearray) -> None:
    """The end is missing, sometimes everything."""
    begin = draw.choice([0, draw.randrange(len(data)), draw.randrange(len(data)), len(data) - 1])
    del data[begin:]


def changed_stretch(draw: random.Random, data: bytearray) -> None:
    """A stretch, sometimes the first, is missing, there twice, empty, or something else; or something precedes it."""
    begin = draw.choice([0, draw.randrange(len(data)), draw.randrange(len(data))])
    stretch = bytes(data[begin : begin + draw.choice([1, 2, 12, 64, 512, 5000])])
    other = draw.randbytes(len(stretch))
    data[begin : begin + len(stretch)] = draw.choice([b"", 2 * stretch, bytes(len(stretch)), other, other + stretch])


def swapped_lines(draw: random.Random, data: bytearray) -> None:
    """Two lines have changed places."""
    lines = bytes(data).split(b"\n")
    a = draw.randrange(len(lines))
    b = draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    data[:] = b"\n".join(lines)


def huge_number(draw: random.Random, data: bytearray) -> None:
    """A number, if the data have any, has become an impossible number."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if numbers:
        chosen = draw.choice(numbers)
        data[chosen.start() : chosen.end()] = draw.choice(NUMBERS)


def not_text(draw: random.Random, data: bytearray) -> None:
    """A line holds what is not UTF-8, or separators and control characters that editors put there."""
    begin = draw.randrange(len(data) + 1)
    data[begin:begin] = draw.choice([b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\xc2\x85", b"\xe2\x80\xa8", b"\r", b'"'])


def other_value(draw: random.Random, data: bytearray) -> None:
    """The JSON, or one line of JSON Lines, is valid, but some value in it is missing, another, or deep."""
    lines = bytes(data).splitlines(keepends=True)
    number = draw.randrange(len(lines))
    for chosen in (slice(None), slice(number, number + 1)):  # all lines as one value, else one of them
        with contextlib.suppress(ValueError):
            root = {"": json.loads(b"".join(lines[chosen]))}
            break
    else:
        return  # no JSON
    parent, key = draw.choice(list(places(root)))
    parent[key] = draw.choice(VALUES)
    if draw.random() < 0.15 and parent is not root:
        del parent[key]
    text = json.dumps(root[""])
    deep = "[" * 200_000 + "]" * 200_000 if draw.random() < 0.1 else "[[]]"
    lines[chosen] = [text.replace("[[]]", deep).encode() + b"\n"]
    data[:] = b"".join(lines)


def places(container: dict | list):
    """Yields (container, key or index) of every value within a JSON object or array, at all depths."""
    keys = list(container) if isinstance(container, dict) else range(len(container))
    for key in keys:
        yield container, key
        if isinstance(container[key], (dict, list)):
            yield from places(container[key])


BINARY = (flipped_bits, cut_off, changed_stretch, changed_stretch, changed_stretch)
LINES = (*BINARY, swapped_lines, huge_number, not_text)
JSON = (*LINES, *[other_value] * len(LINES))


def damaged(draw: random.Random, good: bytes, ways: Sequence) -> tuple[bytes, str]:
    """Returns (the bytes after one or, seldom, two kinds of damage, the names of these kinds).

    `ways` are the functions of the kinds, of which a repeated one is likelier. Only the first damage can be
    `other_value`, because it needs valid JSON; empty data are damaged no further.
    """
    data = bytearray(good)
    names = []
    for _ in range(draw.choice([1, 1, 1, 2])):
        possible = [way for way in ways if way is not other_value or not names]
        if data:
            (way,) = draw.sample(possible, 1)
            way(draw, data)
            names.append(way.__name__)
    return bytes(data), " and ".join(names)
