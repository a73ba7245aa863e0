"""Damage of files, drawn from a seed: what disks, networks, editors and other programs do to bytes, lines and JSON."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

HUGE = (b"1e400", b"-1", b"0", b"99999999999999999999999999", b"9223372036854775808", b"NaN", b"-Infinity", b"2e-320")
ODD = (None, True, -1, 0.5, 10**30, 1e308, float("nan"), "", "x", "\ud800", "../../x", "a\0b", [], {}, [[]], [1, "a"],
       {"a": None}, ["x"] * 50)  # fmt: skip


def flipped_bits(draw: random.Random, data: bytearray) -> None:
    """One to three bits."""
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def cut_off(draw: random.Random, data: bytearray) -> None:
    """The end is missing, sometimes all."""
    del data[draw.choice([0, draw.randrange(len(data)), draw.randrange(len(data)), len(data) - 1]) :]


def inserted(draw: random.Random, data: bytearray) -> None:
    """Bytes that do not belong there."""
    place = draw.randrange(len(data) + 1)
    data[place:place] = draw.randbytes(draw.choice([1, 2, 12, 100, 5000]))


def deleted(draw: random.Random, data: bytearray) -> None:
    """A stretch is missing."""
    place = draw.randrange(len(data))
    del data[place : place + draw.choice([1, 2, 12, 100, 5000])]


def doubled(draw: random.Random, data: bytearray) -> None:
    """A stretch is there twice."""
    place, size = draw.randrange(len(data)), draw.choice([1, 12, 100, 512, 5000])
    data[place:place] = data[place : place + size]


def zeroed(draw: random.Random, data: bytearray) -> None:
    """A block of the disk was never written."""
    place, size = draw.randrange(len(data)), draw.choice([1, 16, 512, 4096])
    data[place : place + size] = bytes(len(data[place : place + size]))


def overwritten(draw: random.Random, data: bytearray) -> None:
    """A block of something else."""
    place, size = draw.randrange(len(data)), draw.choice([4, 64, 1024])
    data[place : place + size] = draw.randbytes(len(data[place : place + size]))


def garbage_first(draw: random.Random, data: bytearray) -> None:
    """The beginning is something else."""
    data[:64] = draw.randbytes(64)


def swapped_lines(draw: random.Random, data: bytearray) -> None:
    """Two lines have changed places."""
    lines = bytes(data).split(b"\n")
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    data[:] = b"\n".join(lines)


def huge_number(draw: random.Random, data: bytearray) -> None:
    """A number, if there is one, has become an impossible one."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if found:
        chosen = draw.choice(found)
        data[chosen.start() : chosen.end()] = draw.choice(HUGE)


def not_text(draw: random.Random, data: bytearray) -> None:
    """A line holds what is not UTF-8, or separators and control characters that editors put there."""
    place = draw.randrange(len(data) + 1)
    data[place:place] = draw.choice([b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\xc2\x85", b"\xe2\x80\xa8", b"\r", b'"'])


def other_value(draw: random.Random, data: bytearray) -> None:
    """The JSON is right, but some value in it is another, of another type as a rule, missing, or deep."""
    try:
        root = {"": json.loads(bytes(data))}
    except ValueError:  # lines of JSON
        lines = bytes(data).splitlines(keepends=True)
        chosen = draw.randrange(len(lines))
        line = bytearray(lines[chosen])
        if len(lines) > 1:
            other_value(draw, line)
        lines[chosen] = bytes(line) + b"\n"
        data[:] = b"".join(lines)
        return
    parent, key = draw.choice(list(_places(root)))
    if draw.random() < 0.15 and parent is not root:
        del parent[key]
    elif type(parent[key]) in (int, float) and draw.random() < 0.7:
        parent[key] = draw.choice([0, -1, 1, 7, 10**6, 2**40, 0.5, 1.5, parent[key] + 1])
    else:
        parent[key] = draw.choice(ODD)
    text = json.dumps(root.get("", None))
    data[:] = text.replace("[[]]", "[" * 200_000 + "]" * 200_000).encode() if draw.random() < 0.1 else text.encode()


def _places(value):
    """Every (container, key) below a value of JSON."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


BINARY = (flipped_bits, flipped_bits, cut_off, inserted, deleted, doubled, zeroed, overwritten, garbage_first)
LINES = (*BINARY, swapped_lines, huge_number, not_text)
JSON = (*LINES, other_value, other_value, other_value, other_value, other_value)

Damage = Callable[[random.Random, bytearray], None]


def damaged(draw: random.Random, data: bytes, ways: tuple[Damage, ...]) -> tuple[bytes, str]:
    """Returns the bytes after one, seldom two, of the `ways`, and the names of these."""
    changed, names = bytearray(data), []
    for _ in range(draw.choice([1, 1, 1, 2])):
        if changed:
            way = draw.choice(ways)
            way(draw, changed)
            names.append(way.__name__)
    return bytes(changed), " and ".join(names)
