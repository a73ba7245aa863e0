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
import faulthandler
import os
import pathlib
import random
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from typing import NamedTuple

from benchmarks.damage import damaged

SECONDS, GIGABYTES = 60, 3
OUTCOMES = USED, COUNTED, REFUSED, FAILED = "all used", "skipped and counted", "refused with one line", "FAILED"


class Verdict(NamedTuple):
    """What became of a case: one of `OUTCOMES`, and what was damaged and how or what it said."""

    outcome: str
    detail: str


def run_case(name: str, seed: int, root: pathlib.Path) -> Verdict:
    """Damages a file of a kind and reads it; `root` keeps the good files from case to case.

    Ends the process where that takes more than `SECONDS`.
    """
    from benchmarks.fuzz_kinds import KINDS  # with TensorFlow
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
