"""Work in a pool of processes: steps and groups, marks, failures, and no process that is left behind."""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from mural_tf.errors import UserError
from mural_tf.work import Engine, Stage, Step

ROOT = pathlib.Path(__file__).resolve().parents[2]
KILLED = "A worker was killed, most likely for want of memory: run the same command again with fewer --workers"


class Split:
    """Numbers by their rest, with what is to go wrong at 13."""

    def __init__(self, failure=""):
        self.failure = failure

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
        yield ("rest", number % 3), number


class AddUp:
    """Writes a group's sum, and what the group before it had."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, group):
        (kind, rest), numbers = group
        yield (kind, rest % 2), sum(numbers)
        pathlib.Path(self.folder, f"{kind}-{rest}").write_text(str(sum(numbers)))


class Note:
    def __init__(self, folder):
        self.path = pathlib.Path(folder, "notes")
        self.found = sorted(path.name for path in pathlib.Path(folder).glob("rest-*"))  # of the stage before

    def __call__(self, element):
        with open(self.path, "a") as file:
            file.write(f"{element} {self.found}\n")
        yield element


def stages(folder, failure=""):
    steps = [Step("Split", Split, (failure,)), Step("Add up", AddUp, (folder,)), Step("Note", Note, (folder,))]
    return [Stage(range(50), steps, folder / "done"), Stage(["end"], [Step("Note", Note, (folder,))])]


@pytest.mark.parametrize("workers", [0, 2])
def test_groups_stages_and_marks(tmp_path, workers):
    looks = []
    Engine(workers).run(stages(tmp_path), tmp_path, lambda: looks.append(time.monotonic()))
    sums = [sum(n for n in range(50) if n % 3 == rest) for rest in range(3)]
    assert [(tmp_path / f"rest-{rest}").read_text() for rest in range(3)] == list(map(str, sums)) and looks
    *grouped, last = (tmp_path / "notes").read_text().splitlines()
    files = ["rest-0", "rest-1", "rest-2"]
    expected = {f"{(('rest', 0), [sums[0], sums[2]])}", f"{(('rest', 0), [sums[2], sums[0]])}"}
    assert len(grouped) == 2 and all(line.endswith(f" {files}") for line in grouped) and last == f"end {files}"
    assert any(line.removesuffix(f" {files}") in expected for line in grouped)
    assert not (tmp_path / "shuffle").exists() and (tmp_path / "done").exists()
    Engine(0).run(stages(tmp_path, "mistake"), tmp_path)  # only the stage that has no mark
    assert (tmp_path / "notes").read_text().splitlines() == [*grouped, last, last]


@pytest.mark.parametrize("workers, failure, message", [
    (0, "mistake", "13 is none."), (2, "mistake", "13 is none."), (1, "kill", KILLED),
    (2, "disk", "Cannot write to .*No space left on device"),
])  # fmt: skip
def test_failures_are_one_sentence(tmp_path, workers, failure, message):
    start = time.monotonic()
    with pytest.raises(UserError, match=message) as error:
        Engine(workers).run(stages(tmp_path, failure), tmp_path)
    assert "\n" not in str(error.value) and time.monotonic() - start < 60
    assert not (tmp_path / "done").exists() and not (tmp_path / "shuffle").exists()


def test_what_is_watched_ends_the_work(tmp_path):
    def stop():
        raise UserError("enough")

    with pytest.raises(UserError, match="enough"):
        Engine(2).run(stages(tmp_path, "sleep"), tmp_path, stop)


def test_engines_that_cannot_be_meant():
    with pytest.raises(UserError, match="workers is -1: expected 0 or more"):
        Engine(-1)
    for flags in ("--runner=DirectRunner", "--project=p"):
        with pytest.raises(UserError, match=f"--beam='{flags}' names no runner of a cluster: .* leave --beam out"):
            Engine(beam=flags)


def test_memory_is_that_of_a_group(tmp_path):
    """64 MB go through a shuffle of 64 groups."""
    program = f"""
import pathlib, resource, sys
sys.path[:0] = ["tests/core", "."]
from mural_tf.work import Engine, Stage, Step
class Give:
    def __call__(self, number):
        yield from ((("group", key), bytes(16_000)) for key in range(64))
class Take:
    def __call__(self, group):
        assert len(group[1]) == 64
        yield 1
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
steps = [Step("Give", Give), Step("Take", Take)]
Engine(0).run([Stage(range(64), steps)], pathlib.Path({str(tmp_path)!r}))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16_000  # KiB


PROGRAM = """
import pathlib, sys
sys.path[:0] = ["tests/core", "."]
import test_work
from mural_tf.work import Engine
if __name__ == "__main__":
    try:
        Engine(2).run(test_work.stages(pathlib.Path(sys.argv[1]), "sleep"), pathlib.Path(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit("Interrupted.")
"""


@pytest.mark.parametrize("how", ["parent", "worker", "Ctrl-C"])
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
