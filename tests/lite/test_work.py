"""Work in a pool of processes: every element once, failures, and no process that is left behind."""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from mural_lite.errors import UserError
from mural_lite.work import Engine, Step

ROOT = pathlib.Path(__file__).resolve().parents[2]
KILLED = "A worker was killed, most likely for want of memory: run the same command again with fewer --workers"


class Note:
    """Writes a file per number, and what process wrote it; with what is to go wrong at 13."""

    def __init__(self, folder, failure=""):
        self.folder, self.failure = pathlib.Path(folder), failure
        with open(self.folder / "made", "a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, number):
        if number == 13:
            if self.failure == "mistake":
                raise UserError("13 is none.")
            if self.failure == "disk":
                raise OSError(28, "No space left on device")
            if self.failure == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.failure == "sleep":
                print("asleep", flush=True)
                time.sleep(100)
        (self.folder / f"{number:02d}").write_text(str(os.getpid()))


def step(folder, failure=""):
    return Step("Note", Note, (folder, failure))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_element_once_by_functions_made_once_per_process(tmp_path, workers):
    looks = []
    Engine(workers).map(step(tmp_path), range(50), tmp_path, lambda: looks.append(time.monotonic()))
    made = (tmp_path / "made").read_text().split()
    wrote = [path.read_text() for path in sorted(tmp_path.glob("[0-9]*"))]
    assert len(wrote) == 50 and set(wrote) <= set(made) and looks
    assert made == [str(os.getpid())] if not workers else len(made) == len(set(made)) <= 2
    Engine(workers).map(step(tmp_path / "nowhere"), [], tmp_path)  # nothing is made for nothing


@pytest.mark.parametrize("workers, failure, message", [
    (0, "mistake", "13 is none."), (2, "mistake", "13 is none."), (1, "kill", KILLED),
    (2, "disk", "Cannot write to .*No space left on device"),
])  # fmt: skip
def test_failures_are_one_sentence(tmp_path, workers, failure, message):
    start = time.monotonic()
    with pytest.raises(UserError, match=message) as error:
        Engine(workers).map(step(tmp_path, failure), range(50), tmp_path)
    assert "\n" not in str(error.value) and time.monotonic() - start < 60


def test_what_is_watched_ends_the_work(tmp_path):
    def stop():
        raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        Engine(2).map(step(tmp_path, "sleep"), range(50), tmp_path, stop)


def test_engines_that_cannot_be_meant():
    with pytest.raises(UserError, match="workers is -1: expected 0 or more"):
        Engine(-1)
    for flags in ("--runner=DirectRunner", "--project=p"):
        with pytest.raises(UserError, match=f"--beam='{flags}' names no runner of a cluster: .* leave --beam out"):
            Engine(beam=flags)


PROGRAM = """
import pathlib, sys
sys.path[:0] = ["tests/lite", "."]
import test_work
from mural_lite.work import Engine
if __name__ == "__main__":
    try:
        Engine(2).map(test_work.step(sys.argv[1], "sleep"), range(50), pathlib.Path(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
"""


@pytest.mark.parametrize("how", [
    "worker", pytest.param("parent", marks=pytest.mark.slow), pytest.param("Ctrl-C", marks=pytest.mark.slow)
])  # fmt: skip
def test_no_process_is_left(tmp_path, how):
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "program.py", tmp_path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # shells may have it ignored
    )  # fmt: skip
    assert process.stdout.readline() == "asleep\n"
    everyone, start = children(process.pid), time.monotonic()
    assert len(everyone) >= 3  # with the one that minds what processes share
    if how == "parent":
        process.kill()
    elif how == "worker":
        os.kill(max(everyone), signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    while any(map(alive, everyone)) and time.monotonic() - start < 60:
        time.sleep(0.02)
    assert not any(map(alive, everyone))
    assert how != "Ctrl-C" or errors == "Interrupted.\n"
    assert how != "worker" or KILLED in errors


def children(pid):
    """All processes below `pid`, by Linux's /proc."""
    below = collections.defaultdict(list)
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            below[int(path.read_text().rsplit(")", 1)[1].split()[1])].append(int(path.parent.name))
        except (OSError, IndexError):
            continue
    found = list(below[pid])
    for number in found:
        found += below[number]
    return found


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
