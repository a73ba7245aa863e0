"""Damaged data files of every kind, each read by the part of the project that reads it: 500 by default.

    python -m benchmarks.fuzz_data [--count=500] [--seed=0] [--only=tfrecord,tar,…]

Every case is one good file with one or two kinds of damage (`damage.py`), drawn from the kind's name and a seed. What
must hold: nothing but a `UserError` of one line, or all that was not used is counted as skipped (`fuzz_kinds.py` says
what that is for each kind); no more than a minute, and no more than 3 GB. Everything is on this machine, in a temporary
folder. Cases run in a process of their own, which is replaced if one brings it down. What fails is printed with the
command that repeats it.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from typing import NamedTuple

SECONDS, GIGABYTES = 60, 3.0
USED, COUNTED, REFUSED, FAILED = "all used", "skipped and counted", "refused with one line", "FAILED"
OUTCOMES = (USED, COUNTED, REFUSED, FAILED)


class Verdict(NamedTuple):
    """What became of a case: one of `OUTCOMES`, and what was damaged and how or what it said."""

    outcome: str
    detail: str


def run_case(name: str, seed: int, root: pathlib.Path) -> Verdict:
    """Damages a file of a kind and reads it; `root` keeps the good files from case to case."""
    from benchmarks.damage import damaged
    from benchmarks.fuzz_kinds import KINDS
    from mural_tf.errors import UserError

    kind, good, copy = KINDS[name], make_good(name, root), root / "copies" / f"{name}-{seed}"
    draw = random.Random(f"{name} {seed}")
    shutil.copytree(good, copy)
    files = sorted(path for pattern in kind.files for path in copy.glob(pattern))
    file = draw.choice(files)
    content, how = damaged(draw, file.read_bytes(), kind.ways)
    file.write_bytes(content)
    what = str(file.relative_to(copy))
    try:
        used, skipped = kind.read(copy, good, what)
        outcome, said = (COUNTED if skipped else USED), f"{used} used, {skipped} skipped"
    except UserError as error:
        said = " ".join(str(error).split())  # as commands print it
        outcome = REFUSED if said else FAILED
    except Exception:  # noqa: BLE001 - which are what is looked for
        outcome, said = FAILED, traceback.format_exc()
    finally:
        shutil.rmtree(copy)
    return Verdict(outcome, f"{what}, {how}: {said}")


def make_good(name: str, root: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a kind's good files, which it makes if need be."""
    from benchmarks.fuzz_kinds import KINDS

    good = root / KINDS[name].make.__name__
    if not good.exists():
        partial = good.with_name(good.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        KINDS[name].make(partial)
        partial.rename(good)
    return good


def begin() -> None:
    """What a process does before its first case."""
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    import tensorflow as tf
    from absl import logging

    logging.set_verbosity(logging.FATAL)
    warnings.simplefilter("ignore")
    tf.config.run_functions_eagerly(True)  # the graphs of models are not what is read


def work(name: str, seed: int, root: str) -> Verdict:
    """Runs a case in this process, which it ends where that took too much memory."""
    signal.alarm(SECONDS)
    verdict = run_case(name, seed, pathlib.Path(root))
    signal.alarm(0)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return verdict if used <= GIGABYTES else Verdict(FAILED, f"{used:.1f} GB of memory; {verdict.detail}")


class Worker:
    """The process that runs cases, another one whenever it is gone."""

    def __init__(self, root: str):
        self._root, self._pool = root, None

    def run(self, name: str, seed: int) -> Verdict:
        """Runs one case in the process, which a signal ends after `SECONDS`."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=context, initializer=begin)
            self._made = set()
        try:
            if name not in self._made:
                self._pool.submit(make_good, name, pathlib.Path(self._root)).result()
                self._made.add(name)
            verdict = self._pool.submit(work, name, seed, self._root).result()
        except concurrent.futures.process.BrokenProcessPool:
            verdict = Verdict(FAILED, f"the process died, or had no end after {SECONDS} seconds")
        if verdict.outcome == FAILED:
            self.close()  # the next process begins with little again
        return verdict

    def close(self) -> None:
        """Ends the process."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def table(counts: dict[str, collections.Counter]) -> str:
    """The table of outcomes by kind, as Markdown."""
    rows = [("kind", "cases", *OUTCOMES)]
    rows += [(kind, found.total(), *(found[outcome] for outcome in OUTCOMES)) for kind, found in counts.items()]
    both = sum(counts.values(), collections.Counter())
    rows.append(("all", both.total(), *(both[outcome] for outcome in OUTCOMES)))
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * 2 + "|" + "---:|" * len(OUTCOMES), *lines[1:]])


def main() -> None:
    from benchmarks.fuzz_kinds import KINDS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next has the next")
    parser.add_argument("--only", default="", help=f"kinds, of {','.join(KINDS)}")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(KINDS)
    if unknown := set(names) - set(KINDS):
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    print(f"Seeds {arguments.seed} to {arguments.seed + arguments.count - 1}", flush=True)
    counts = {name: collections.Counter() for name in names}
    with tempfile.TemporaryDirectory(prefix="fuzz_data-") as root:
        worker = Worker(root)
        for case in range(arguments.count):
            name, seed = names[case % len(names)], arguments.seed + case
            verdict = worker.run(name, seed)
            counts[name][verdict.outcome] += 1
            if verdict.outcome == FAILED or arguments.verbose:
                print(f"\n{verdict.outcome}: {name}, seed {seed}: {verdict.detail}")
                print(f"again: python -m benchmarks.fuzz_data --only={name} --seed={seed} --count=1", flush=True)
        worker.close()
    print(f"\n{table(counts)}")
    sys.exit(1 if any(found[FAILED] for found in counts.values()) else 0)


if __name__ == "__main__":
    main()
