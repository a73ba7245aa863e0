"""Workdirs in an object store: kept in step, taken by one run at a time, killed and resumed."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from object_store import object_store, stored, upload

from mural_tf import files, remote_folders
from mural_tf.errors import UserError
from mural_tf.remote_folders import Mirror, local_folder, shown

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Upload(io.BytesIO):
    """What is written is there when it is closed."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def close(self):
        if not self.closed:
            self.path.write_bytes(self.getvalue())
        super().close()


class Store:
    """A folder with the methods of `RemotePath` that a mirror uses, which notes what happens to it."""

    def __init__(self, folder, log=None, name=""):
        self.folder, self.log, self.name = folder, [] if log is None else log, name

    def __truediv__(self, name):
        return Store(self.folder, self.log, f"{self.name}/{name}".strip("/"))

    def __str__(self):
        return f"xx://store/{self.name}".rstrip("/")

    def files(self):
        return [self / str(p.relative_to(self.folder)) for p in sorted(self.folder.rglob("*")) if p.is_file()]

    def relative_to(self, store):
        return self.name

    def open(self, mode):
        return Upload(self) if mode == "wb" else (self.folder / self.name).open(mode)

    def read_text(self):
        return (self.folder / self.name).read_text()

    def write_bytes(self, data):
        if "full" in self.log:
            raise OSError("no space")
        self.log.append(self.name)
        (self.folder / self.name).parent.mkdir(parents=True, exist_ok=True)
        whole = self.folder.with_name(f"{threading.get_ident()}.new")  # as a store: all of it, or what was there
        whole.write_bytes(data)
        whole.replace(self.folder / self.name)

    def write_text(self, text):
        self.write_bytes(text.encode())

    def unlink(self, missing_ok=False):
        self.log.append(f"-{self.name}")
        (self.folder / self.name).unlink(missing_ok=missing_ok)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_folders, "EVERY", 0.05)
    monkeypatch.setattr(remote_folders, "LEASE", 0.3)
    (tmp_path / "store").mkdir()
    (tmp_path / "local").mkdir()
    return tmp_path / "local", Store(tmp_path / "store")


def test_what_says_that_others_are_complete_comes_after_them(folders):
    local, store = folders
    mirror = Mirror(local, store)
    (local / "checkpoints").mkdir()
    names = ["summary.json", "checkpoints/ckpt-5.index", "checkpoints/ckpt-5.data-00000-of-00001",
             "checkpoints/checkpoint", "metrics.jsonl", ".hidden", "a.partial", "in_use.lock"]  # fmt: skip
    for name in names:
        (local / name).write_text(name)
    mirror.push()
    assert (
        store.log == ["metrics.jsonl", names[2], names[1], names[3], "summary.json"]
        or store.log.index(names[2]) < store.log.index(names[1]) < store.log.index("summary.json") == len(store.log) - 1
    )
    assert set(store.log) == set(names[:5])
    store.log.clear()
    mirror.push()
    assert store.log == []  # nothing changed
    (local / "metrics.jsonl").write_text("more")
    (local / names[1]).unlink()
    mirror.push()
    assert store.log == ["metrics.jsonl", f"-{names[1]}"]


def test_an_export_that_did_not_arrive_whole_is_made_again(folders, tmp_path):
    local, store = folders
    (local / "export").mkdir()
    for name in ("model_card.json", "config.json", "vocabulary.txt"):
        (local / "export" / name).write_text(name)
    Mirror(local, store).push()
    assert store.log[-1] == "export/model_card.json"
    (store.folder / "in_use.lock").write_text("{}")
    for count, complete in enumerate((True, False)):
        again = tmp_path / f"again{count}"
        again.mkdir()
        Mirror(again, store).pull()
        assert (again / "export").exists() == complete
        (store.folder / "export/model_card.json").unlink(missing_ok=True)


def test_what_cannot_be_found_again_is_not_taken_for_an_empty_folder(folders):
    """A store's client says that there is no file where it may not look."""
    local, store = folders
    store.files = list
    with pytest.raises(UserError, match="Cannot read and write xx://store: what is written there is not found again"):
        Mirror(local, store).begin()
    assert not list(local.iterdir())


def test_what_says_that_a_folder_is_complete_goes_first_and_comes_last(folders):
    local, store = folders
    for name in ("dataset.json", "image_text/old.tfrecord"):
        (store / name).write_text("old")
    for name in ("dataset.json", "image_text/new.tfrecord", "zebra.txt"):
        (local / name).parent.mkdir(exist_ok=True)
        (local / name).write_text("new")
    store.log.clear()
    files._upload(local, store, "dataset.json")
    assert store.log == [
        "-dataset.json", "-image_text/old.tfrecord", "image_text/new.tfrecord", "zebra.txt", "dataset.json",
    ]  # fmt: skip


def test_an_index_waits_for_its_data(folders):
    local, store = folders
    (local / "ckpt-5.index").write_text("index")
    mirror = Mirror(local, store)
    mirror.push()
    assert store.log == []
    (local / "ckpt-5.data-00000-of-00001").write_text("data")
    mirror.push()
    assert store.log == ["ckpt-5.data-00000-of-00001", "ckpt-5.index"]


def test_one_run_at_a_time(folders, tmp_path):
    local, store = folders
    first = Mirror(local, store)
    first.begin()
    (local / "metrics.jsonl").write_text("row")
    (tmp_path / "second").mkdir()
    with pytest.raises(UserError, match="is in use by another run .process"):
        Mirror(tmp_path / "second", store).begin()
    first._stop.set()  # it is killed: nothing is renewed from now on
    first._thread.join()
    (tmp_path / "third").mkdir()
    third = Mirror(tmp_path / "third", store)
    third.begin()  # waits for a sign of it, and goes on
    third.end()
    assert not (store.folder / "in_use.lock").exists()
    first.end()


@pytest.mark.parametrize("handler, expected", [(lambda *_: None, [signal.SIGTERM]), (signal.SIG_DFL, [])])
def test_a_store_that_cannot_be_written_keeps_what_is_here(folders, monkeypatch, handler, expected):
    """A run that takes signals is asked to stop; elsewhere SIGTERM would end all before anything can say why."""
    local, store = folders
    stopped = []
    monkeypatch.setattr(remote_folders.os, "kill", lambda pid, number: stopped.append(number))
    monkeypatch.setattr(remote_folders.signal, "getsignal", lambda number: handler)
    mirror = Mirror(local, store)
    mirror.begin()
    (local / "metrics.jsonl").write_text("row")
    store.log.append("full")
    mirror._thread.join(30)
    assert stopped == expected and not mirror._thread.is_alive()
    with pytest.raises(UserError, match="no space. Everything that is saved lies in .*local, which is kept"):
        remote_folders._end(mirror, local)
    assert (local / "metrics.jsonl").read_text() == "row"


def test_names_as_the_user_knows_them(tmp_path, monkeypatch):
    monkeypatch.setitem(remote_folders._shown, "/tmp/x", "gs://b/run1")
    assert shown("/tmp/x/export") == "gs://b/run1/export" and shown("/tmp/xy") == "/tmp/xy"
    assert shown("No /tmp/x/a, nor /tmp/x.") == "No gs://b/run1/a, nor gs://b/run1."
    with local_folder(tmp_path / "w") as folder:
        assert folder == tmp_path / "w"


PROGRAM = """
import sys
from mural_tf import remote_folders
remote_folders.EVERY, remote_folders.LEASE = 0.5, 5.0
from mural_tf.commands import run
sys.argv[1:] = ["pretrain", "--config=shapes_smoke", *sys.argv[1:]]
run()
"""


@pytest.mark.slow
def test_a_run_in_a_store_is_killed_and_goes_on(tmp_path, monkeypatch):
    """Data and workdir in a store of another process; killed after a checkpoint, and run again: the same weights."""
    pytest.importorskip("tensorflow_io", reason="s3:// needs tensorflow-io")
    from mural_tf.data.datasets.shapes import build_shapes

    build_shapes(tmp_path / "data")
    (tmp_path / "program.py").write_text(PROGRAM)
    flags = ["--config.train.steps=60", "--config.train.checkpoint_every=10", "--config.train.log_every=10"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def command(workdir, data):
        program = [sys.executable, str(tmp_path / "program.py"), *flags]
        return [*program, f"--workdir={workdir}", f"--config.data.directory={data}"]

    done = subprocess.run(command(tmp_path / "w", tmp_path / "data"), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with object_store(monkeypatch) as client:
        upload(client, tmp_path / "data", "data")
        remote = command("s3://bucket/run1", "s3://bucket/data")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        monkeypatch.chdir(tmp_path)
        process = subprocess.Popen(
            remote, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        deadline = time.time() + 300
        while not any(name.endswith(".index") for name in stored(client, "run1")) and time.time() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.3)
        process.kill()
        process.wait()
        assert "summary.json" not in stored(client, "run1")
        again = subprocess.run(remote, env=environment, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert (
            "s3://bucket/run1/export" in again.stdout and "/tmp/mural-tf-folder" not in again.stdout.split("Next:")[1]
        )
        found = stored(client, "run1")
        assert {"config.json", "summary.json", "metrics.jsonl", "export/config.json"} <= set(found)
        assert "in_use.lock" not in found
        rows = [json.loads(line)["step"] for line in found["metrics.jsonl"].decode().splitlines()]
        assert sorted(set(rows)) == list(range(10, 61, 10))
        ours = (tmp_path / "w/checkpoints/ckpt-60.data-00000-of-00001").read_bytes()
        theirs = found["checkpoints/ckpt-60.data-00000-of-00001"]
        assert np.array_equal(np.frombuffer(ours, np.uint8), np.frombuffer(theirs, np.uint8))
        assert not (tmp_path / "s3:").exists()
        finished = subprocess.run(remote, env=environment, capture_output=True, text=True)
        assert finished.returncode == 0 and "s3://bucket/run1 is finished" in finished.stdout
