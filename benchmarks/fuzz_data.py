"""Damaged data files of every kind, each read by the part of the project that reads it: 500 by default.

    python -m benchmarks.fuzz_data [--count=500] [--seed=0] [--only=tfrecord,tar,…]

Every case is one good file with one or two kinds of damage, drawn from the kind's name and a seed. What must hold:
nothing but a `UserError` of one line, or all that was not used is counted as skipped (`fuzz_kinds.py` says what that is
for each kind); no more than a minute, and 3 GB for all of them. Everything is on this machine, in a temporary folder.
What fails is printed with the command that repeats it; where a case ends the process, that is the last line.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import json
import os
import pathlib
import random
import re
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from typing import NamedTuple

SECONDS, GIGABYTES = 60, 3
OUTCOMES = USED, COUNTED, REFUSED, FAILED = "all used", "skipped and counted", "refused with one line", "FAILED"
NUMBERS = (b"1e400", b"-1", b"0", b"99999999999999999999999999", b"9223372036854775808", b"NaN", b"-Infinity")
VALUES = (None, True, -1, 0, 7, 0.5, 2**40, 10**30, 1e308, float("nan"), "", "x", "\ud800", "../../x", "a\0b", [], {},
          [1, "a"], {"a": None}, ["x"] * 50, [[]])  # fmt: skip


def flipped_bits(draw: random.Random, data: bytearray) -> None:
    """One to three bits."""
    for _ in range(draw.randint(1, 3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def cut_off(draw: random.Random, data: bytearray) -> None:
    """The end is missing, sometimes all."""
    del data[draw.choice([0, draw.randrange(len(data)), draw.randrange(len(data)), len(data) - 1]) :]


def changed_stretch(draw: random.Random, data: bytearray) -> None:
    """A stretch, sometimes the first, is missing, there twice, empty, or something else; or something precedes it."""
    place = draw.choice([0, draw.randrange(len(data)), draw.randrange(len(data))])
    stretch = bytes(data[place : place + draw.choice([1, 2, 12, 64, 512, 5000])])
    other = draw.randbytes(len(stretch))
    data[place : place + len(stretch)] = draw.choice([b"", 2 * stretch, bytes(len(stretch)), other, other + stretch])


def swapped_lines(draw: random.Random, data: bytearray) -> None:
    """Two lines have changed places."""
    lines = bytes(data).split(b"\n")
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    data[:] = b"\n".join(lines)


def huge_number(draw: random.Random, data: bytearray) -> None:
    """A number, if there is one, has become an impossible one."""
    if found := list(re.finditer(rb"-?\d+(\.\d+)?", data)):
        chosen = draw.choice(found)
        data[chosen.start() : chosen.end()] = draw.choice(NUMBERS)


def not_text(draw: random.Random, data: bytearray) -> None:
    """A line holds what is not UTF-8, or separators and control characters that editors put there."""
    place = draw.randrange(len(data) + 1)
    data[place:place] = draw.choice([b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\xc2\x85", b"\xe2\x80\xa8", b"\r", b'"'])


def other_value(draw: random.Random, data: bytearray) -> None:
    """The JSON, or one line of JSON Lines, is right, but some value in it is missing, another, or deep."""
    lines = bytes(data).splitlines(keepends=True)
    place = draw.randrange(len(lines))
    for chosen in (slice(None), slice(place, place + 1)):
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


def places(value):
    """Every (container, key) below a value of JSON."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


BINARY = (flipped_bits, cut_off, changed_stretch, changed_stretch, changed_stretch)
LINES = (*BINARY, swapped_lines, huge_number, not_text)
JSON = (*LINES, *[other_value] * len(LINES))


def damaged(draw: random.Random, good: bytes, ways: Sequence) -> tuple[bytes, str]:
    """Returns the bytes after one, seldom two, of the `ways`, and the names of these."""
    data, how = bytearray(good), []
    for _ in range(draw.choice([1, 1, 1, 2])):
        left = [way for way in ways if data and not (how and way is other_value)]
        for way in draw.sample(left, min(1, len(left))):
            way(draw, data)
            how.append(way.__name__)
    return bytes(data), " and ".join(how)


class Verdict(NamedTuple):
    """What became of a case: one of `OUTCOMES`, and what was damaged and how or what it said."""

    outcome: str
    detail: str


def run_case(name: str, seed: int, root: pathlib.Path) -> Verdict:
    """Damages a file of a kind and reads it; `root` keeps the good files from case to case.

    Ends the process where that takes more than `SECONDS`.
    """
    from benchmarks.fuzz_kinds import KINDS
    from mural_tf.errors import UserError

    kind, draw = KINDS[name], random.Random(f"{name} {seed}")
    good, copy = root / kind.make.__name__, root / f"{name}-{seed}"
    if not good.exists():
        kind.make(good)
    shutil.copytree(good, copy)
    file = draw.choice(sorted(path for pattern in kind.files for path in copy.glob(pattern)))
    what, (data, how) = str(file.relative_to(copy)), damaged(draw, file.read_bytes(), kind.ways)
    file.write_bytes(data)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    try:
        used, skipped = kind.read(copy, good, what)
        outcome, said = (COUNTED if skipped else USED), f"{used} used, {skipped} skipped"
    except UserError as error:
        said = " ".join(str(error).split())  # as commands print it
        outcome = REFUSED if said else FAILED
    except Exception:  # noqa: BLE001 - which are what is looked for
        outcome, said = FAILED, traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    shutil.rmtree(copy)
    return Verdict(outcome, f"{what}, {how}: {said}")


def main() -> None:
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    import tensorflow as tf
    from absl import logging

    from benchmarks.fuzz_kinds import KINDS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next has the next")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, with commas")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(KINDS):
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    tf.config.run_functions_eagerly(True)  # the graphs of models are not what is read
    logging.set_verbosity(logging.FATAL)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTES * 2**30,) * 2)
    counts = {name: collections.Counter() for name in names}
    with tempfile.TemporaryDirectory(prefix="fuzz_data-") as root:
        for case in range(arguments.count):
            name, seed = names[case % len(names)], arguments.seed + case
            again = f"python -m benchmarks.fuzz_data --only={name} --seed={seed} --count=1"
            print(again, end="\r", flush=True)  # what is read if the process dies
            verdict = run_case(name, seed, pathlib.Path(root))
            counts[name][verdict.outcome] += 1
            if verdict.outcome == FAILED:
                print(f"FAILED: {again}\n{verdict.detail}", flush=True)
    for name, found in counts.items():
        print(f"{name:10}", ", ".join(f"{found[outcome]} {outcome}" for outcome in OUTCOMES))
    sys.exit(1 if any(found[FAILED] for found in counts.values()) else 0)


if __name__ == "__main__":
    main()
