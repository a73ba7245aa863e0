"""Workdirs in an object store: kept in step, taken by one run at a time, killed and resumed."""

import contextlib
import errno
import glob
import io
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import fsspec
import numpy as np
import pytest
from object_store import object_store, stored, upload

from mural_lite import files, remote_folders
from mural_lite.errors import UserError
from mural_lite.paths import RemotePath, find
from mural_lite.remote_folders import Mirror, display_name, local_folder
from mural_tf.export.versions import check_export_folder

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A folder here, one in fsspec's store in memory, and a list of what happens there: names, "-name" if deleted."""
    fsspec.filesystem("memory").store.clear()
    monkeypatch.setattr(remote_folders, "EVERY", 0.05)
    monkeypatch.setattr(remote_folders, "LEASE", 0.3)
    (tmp_path / "local").mkdir()
    store, log = RemotePath("memory://bucket/store"), []
    unlink, copy_file = RemotePath.unlink, files.copy_file

    def copy(source, target):
        if "full" in log:
            raise OSError("no space")
        log.extend([target.relative_to(store)] if isinstance(target, RemotePath) else [])
        copy_file(source, target)

    def delete(path, missing_ok=False):
        log.append(f"-{path.relative_to(store)}")
        unlink(path, missing_ok)

    for module in (files, remote_folders):
        monkeypatch.setattr(module, "copy_file", copy)
    monkeypatch.setattr(RemotePath, "unlink", delete)
    return tmp_path / "local", store, log


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


@pytest.mark.parametrize("pattern", [
    "*", "**", "**/x.txt", "*/x.txt", "c/s-[!0]", "c/s-[0-9]", "c/s-?", "**/b", "a/*", "a/**/x.txt", "*.txt", "a/**/*",
])  # fmt: skip
def test_wildcards_of_a_store_are_those_of_a_folder(folders, pattern):
    local, store, _ = folders
    for name in ("x.txt", "a/x.txt", "a/b/x.txt", "c/s-0", "c/s-1", "c/s-x.txt"):
        for place in (local / name, store / name):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(name)
    here = {name for name in glob.glob(pattern, root_dir=local, recursive=True) if name}
    assert {path.relative_to(store) for path in find(f"{store}/{pattern}")} == here


def test_what_says_that_others_are_complete_comes_after_them(folders):
    local, store, log = folders
    data, index = "checkpoints/ckpt-5.data-00000-of-00001", "checkpoints/ckpt-5.index"
    write(local, "summary.json", index, data, "checkpoints/checkpoint", "metrics.jsonl")
    write(local, ".hidden", "a.partial", "in_use.lock")
    mirror = Mirror(local, store)
    mirror.push()
    assert log == [data, "metrics.jsonl", index, "checkpoints/checkpoint", "summary.json"]
    log.clear()
    mirror.push()
    assert log == []  # nothing changed
    (local / "metrics.jsonl").write_text("more")
    (local / index).unlink()
    mirror.push()
    assert log == ["metrics.jsonl", f"-{index}"]
    write(local, "ckpt-9.index")
    mirror.push()
    assert len(log) == 2  # it waits for its data
    write(local, "ckpt-9.data-00000-of-00001")
    mirror.push()
    assert log[2:] == ["ckpt-9.data-00000-of-00001", "ckpt-9.index"]
    log.clear()
    for name in ("ckpt-9.data-00000-of-00001", "ckpt-9.index", "metrics.jsonl", "checkpoints/checkpoint"):
        (local / name).unlink()
    mirror.push()  # what says that others are complete goes before them
    assert log == ["-checkpoints/checkpoint", "-ckpt-9.index", "-metrics.jsonl", "-ckpt-9.data-00000-of-00001"]


def test_an_export_that_did_not_arrive_whole_is_made_again(folders, tmp_path):
    local, store, log = folders
    write(local, "export/model_card.json", "export/config.json", "export/vocabulary.txt")
    Mirror(local, store).push()
    assert log[-1] == "export/model_card.json"
    for complete in (True, False):
        again = tmp_path / f"again{complete}"
        again.mkdir()
        Mirror(again, store).pull()
        there = {path.relative_to(again).as_posix() for path in again.rglob("*") if path.is_file()}
        assert there == ({"export/config.json", "export/model_card.json"} if complete else set())
        check_export_folder(again / "export", overwrite=True, version="")  # as the end of a longer run does
        (store / "export/model_card.json").unlink(missing_ok=True)


def test_another_export_is_not_complete_before_all_its_files_are_there(folders, tmp_path):
    local, store, log = folders
    names = ["export/config.json", "export/model_card.json", "export/vocabulary.txt"]
    write(local, *names)
    Mirror(local, store).push()
    (tmp_path / "longer").mkdir()
    mirror = Mirror(tmp_path / "longer", store)
    mirror.pull()
    log.clear()
    write(mirror.local, *names)
    os.utime(mirror.local / "export/config.json", ns=(1, 1))
    mirror.push()
    assert not (mirror.local / "export/versions").exists()
    assert log == ["-export/model_card.json", "export/config.json", "export/vocabulary.txt", "export/model_card.json"]
    mirror.push()
    assert len(log) == 4


def test_another_export_leaves_nothing_of_the_former_one(folders, tmp_path):
    local, store, _ = folders
    write(local, "export/config.json", "export/model_card.json", "export/lite/text.tflite", "metrics.jsonl")
    Mirror(local, store).push()
    (tmp_path / "longer").mkdir()
    mirror = Mirror(tmp_path / "longer", store)
    mirror.pull()
    shutil.rmtree(mirror.local / "export")
    names = ["export/config.json", "export/image_encoder/1/saved_model.pb", "export/model_card.json"]
    write(mirror.local, *names)
    mirror.push()
    assert [path.relative_to(store) for path in (store / "export").files()] == names


def test_a_database_comes_before_its_matrices_and_goes_after_them(folders):
    local, store, log = folders
    write(local, "vectors.npy", "captions.npy")
    with contextlib.closing(sqlite3.connect(local / "index.sqlite")) as database:
        database.execute("CREATE TABLE items (id)")
    mirror = Mirror(local, store)
    mirror.push()
    assert log == ["index.sqlite", "captions.npy", "vectors.npy"]
    for path in local.iterdir():
        path.unlink()
    mirror.push()
    assert log[3:] == ["-vectors.npy", "-captions.npy", "-index.sqlite"]


@pytest.mark.parametrize("text", ["", "process 12 on host", "[]", '{"time": 1}'])
def test_a_lock_of_another_form_is_waited_for(folders, text, capsys):
    """Half-written, or a workdir's own lock in a folder that was copied by hand."""
    _, store, _ = folders
    (store / "in_use.lock").write_text(text)
    with local_folder(store) as local:
        write(local, "metrics.jsonl")
    assert "was last used by an unknown run" in capsys.readouterr().out
    assert (store / "metrics.jsonl").exists() and not (store / "in_use.lock").exists()


def test_a_store_that_finds_nothing_is_a_failure(folders, monkeypatch):
    """s3fs says so of a bucket that is no longer there, and of an upload that was aborted."""
    local, store, _ = folders
    write(local, "metrics.jsonl")

    def fail(source, target):
        raise FileNotFoundError(errno.ENOENT, "The specified bucket does not exist", str(target))

    monkeypatch.setattr(remote_folders, "copy_file", fail)
    with pytest.raises(FileNotFoundError):
        Mirror(local, store).push()


def test_written_files_are_not_kept_by_the_client(folders):
    _, store, _ = folders
    client = fsspec.filesystem("memory", use_listings_cache=False)
    for _ in range(3):
        (store / "a").write_all(io.BytesIO(b"abc"))
    assert (store / "a").read_bytes() == b"abc" and not client.transaction.files


def test_a_folder_is_copied_again_only_if_it_changed(folders):
    _, store, _ = folders
    write(store, "config.json", "lite/text.tflite")
    first = remote_folders.local_copy(store)
    assert remote_folders.local_copy(store) == first
    shutil.rmtree(first)  # by a program that cleans /tmp
    first = remote_folders.local_copy(store)
    assert (first / "lite/text.tflite").exists()
    (store / "config.json").write_text("other text")
    again = remote_folders.local_copy(store)
    assert again != first and (again / "config.json").read_text() == "other text"
    fsspec.filesystem("memory").pipe_file("memory://bucket/store/a//b", b"no path has this name")
    names = [path.relative_to(store) for path in store.files()]
    assert "config.json" in names and not [name for name in names if "//" in name]


def test_an_export_with_versions_is_seen(folders, tmp_path):
    local, store, _ = folders
    write(local, "export/versions/2/model_card.json", "export/image_encoder/2/saved_model.pb")
    Mirror(local, store).push()
    (tmp_path / "again").mkdir()
    Mirror(tmp_path / "again", store).pull()
    assert [path.name for path in (tmp_path / "again").rglob("*")] == ["export", "versions"]


def test_what_says_that_a_folder_is_complete_goes_first_and_comes_last(folders):
    _, store, log = folders
    write(store, "dataset.json", "image_text/old.tfrecord")
    with files.whole_folder(store, "dataset.json") as partial:
        write(partial, "dataset.json", "image_text/new.tfrecord", "zebra.txt")
    assert log == [
        "-dataset.json", "-image_text/old.tfrecord", "image_text/new.tfrecord", "zebra.txt", "dataset.json",
    ]  # fmt: skip


def test_one_run_at_a_time(folders, tmp_path):
    local, store, _ = folders
    first = Mirror(local, store)
    first.start()
    write(local, "metrics.jsonl")
    with pytest.raises(UserError, match="is in use by another run .process"), local_folder(store):
        pass
    first._stop.set()  # it is killed: nothing is written from now on
    first._thread.join()
    with local_folder(store) as second:  # waits for a sign of it, and goes on
        with pytest.raises(UserError, match="was taken by another run .process .*, which is kept"):
            first.end()
        assert (store / "in_use.lock").exists()
    assert not (store / "in_use.lock").exists() and not second.exists()


@pytest.mark.parametrize("handler, expected", [(lambda *_: None, [signal.SIGTERM]), (signal.SIG_DFL, [])])
def test_a_store_that_cannot_be_written_keeps_what_is_here(folders, monkeypatch, handler, expected):
    """A run that takes signals is asked to stop; elsewhere SIGTERM would end all before anything can say why."""
    _, store, log = folders
    stopped, end = [], threading.Event()
    monkeypatch.setattr(remote_folders.os, "kill", lambda pid, number: stopped.append(number))
    monkeypatch.setattr(remote_folders.signal, "getsignal", lambda number: end.set() or handler)
    with pytest.raises(UserError, match="no space. Everything that is saved lies in .*, which is kept") as error:
        with local_folder(store) as local:
            write(local, "metrics.jsonl")
            log.append("full")
            assert end.wait(30)
    assert stopped == expected and str(local) in str(error.value)
    assert (local / "metrics.jsonl").read_text() == "metrics.jsonl"
    shutil.rmtree(local)


def test_names_as_the_user_knows_them(tmp_path, monkeypatch):
    monkeypatch.setitem(remote_folders._store_names, "/tmp/x", "gs://b/run1")
    assert display_name("/tmp/x/export") == "gs://b/run1/export" and display_name("/tmp/xy") == "/tmp/xy"
    assert display_name("No /tmp/x/a, nor /tmp/x.") == "No gs://b/run1/a, nor gs://b/run1."
    with local_folder(tmp_path / "w") as folder:
        assert folder == tmp_path / "w"


PROGRAM = """
import sys
from mural_lite import remote_folders
remote_folders.EVERY, remote_folders.LEASE = 0.5, 5.0
from mural_tf.commands import run
sys.argv[1:] = ["pretrain", "--config=shapes_smoke", *sys.argv[1:]]
run()
"""


@pytest.mark.slow
def test_a_run_in_a_store_is_killed_and_goes_on(tmp_path, monkeypatch):
    """Data and workdir in a store of another process; killed after a checkpoint, and run again: the same weights."""
    pytest.importorskip("tensorflow_io", reason="s3:// needs tensorflow-io")
    from mural_tf.demo.shapes import build_shapes

    build_shapes(tmp_path / "data")
    (tmp_path / "program.py").write_text(PROGRAM)
    flags = ["--config.train.steps=30", "--config.train.checkpoint_every=10", "--config.train.log_every=10",
             "--config.train.image_text_batch=16", "--config.train.text_text_batch=16",
             "--config.train.evaluate_every=0",
             "--config.image_tower.name=resnet", "--config.image_tower.width=0.15625",
             "--config.image_tower.depth=0.5"]  # fmt: skip
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
        assert sorted(set(rows)) == [10, 20, 30]
        ours = (tmp_path / "w/checkpoints/ckpt-30.data-00000-of-00001").read_bytes()
        theirs = found["checkpoints/ckpt-30.data-00000-of-00001"]
        assert np.array_equal(np.frombuffer(ours, np.uint8), np.frombuffer(theirs, np.uint8))
        assert not (tmp_path / "s3:").exists()
        finished = subprocess.run(remote, env=environment, capture_output=True, text=True)
        assert finished.returncode == 0 and "s3://bucket/run1 is finished" in finished.stdout
        longer = [*remote, "--config.train.steps=40"]
        lengthened = subprocess.run(longer, env=environment, capture_output=True, text=True)
        assert lengthened.returncode == 0, lengthened.stderr
        exported = stored(client, "run1/export")
        assert json.loads(exported["config.json"])["train"]["steps"] == 40
        weights = "image_encoder/1/variables/variables.data-00000-of-00001"
        assert exported[weights] != found[f"export/{weights}"]
