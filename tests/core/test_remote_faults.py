"""Runs in a store on its bad days: failed, slow and dropped answers, no permission, no room. Checkpoints stay whole."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf
from object_store import object_store, stored
from store_proxy import DROP, proxy_before

from mural_tf.data.datasets.shapes import build_shapes

PROGRAM = """
import sys
from mural_tf import remote_folders
remote_folders.EVERY, remote_folders.LEASE = 0.5, 3.0
from mural_tf.commands import run
sys.argv[1:] = ["pretrain", "--config=shapes_smoke", *sys.argv[1:]]
run()
"""
SMALL = ["--config.train.steps=30", "--config.train.checkpoint_every=10", "--config.train.log_every=10",
         "--config.train.image_text_batch=16", "--config.train.text_text_batch=16", "--config.train.export=False",
         "--config.vocabulary.builder=tokenizers"]  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Gives a proxy, the store's client, and what runs the training command to its end."""
    pytest.importorskip("tensorflow_io", reason="s3:// needs tensorflow-io")
    build_shapes(tmp_path / "data")
    (tmp_path / "here").mkdir()
    program = [sys.executable, "-c", PROGRAM, *SMALL, f"--config.data.directory={tmp_path / 'data'}"]

    def run(workdir="s3://bucket/run"):
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])}
        command = [*program, f"--workdir={workdir}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path / "here")
        assert "Traceback" not in done.stderr and not list((tmp_path / "here").iterdir()), done.stderr
        return done

    with object_store(monkeypatch) as client, proxy_before(os.environ["S3_ENDPOINT"], monkeypatch) as proxy:
        yield run, proxy, client


def test_bad_days_are_lived_through(train):
    run, proxy, client = train
    proxy.rule = lambda method, path, number: {1: 503, 4: DROP, 8: 0.2, 11: 500}.get(number % 13)
    done = run()
    assert done.returncode == 0, done.stderr
    assert {answer for _, _, answer in proxy.requests} == {None, 503, 500, DROP, 0.2}
    assert {"summary.json", "checkpoints/ckpt-30.index"} <= set(stored(client, "run"))


def rows_of_training(content: bytes) -> dict[int, dict]:
    """The rows of metrics.jsonl by step, without those of evaluations."""
    rows = [json.loads(line) for line in content.decode().splitlines()]
    return {row["step"]: row for row in rows if "train/loss" in row}


@pytest.mark.parametrize("status, refused", [(403, ""), (507, "ckpt-20.index")])
def test_a_store_that_takes_nothing_more_keeps_the_last_checkpoint(train, tmp_path, status, refused):
    """From the first checkpoint on all writes, or that of the second one's index, which makes it whole."""
    run, proxy, client = train
    saved = []

    def rule(method, path, number):
        answer = status if saved and method in ("PUT", "POST") and refused in path else None
        if method == "PUT" and path.endswith("ckpt-10.index"):
            saved.append(path)
        return answer

    proxy.rule = rule
    done = run()
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: Cannot write to s3://bucket/run: ") and "is kept: copy it there" in last, last
    found = stored(client, "run")
    indexes = {name for name in found if name.endswith(".index")}
    assert indexes == {"checkpoints/ckpt-10.index"} and "summary.json" not in found
    assert not refused or "checkpoints/ckpt-20.data-00000-of-00001" in found
    for name in ("ckpt-10.index", "ckpt-10.data-00000-of-00001"):
        (tmp_path / name).write_bytes(found[f"checkpoints/{name}"])
    reader = tf.train.load_checkpoint(str(tmp_path / "ckpt-10"))
    assert all(reader.get_tensor(name) is not None for name in reader.get_variable_to_shape_map())
    proxy.rule = lambda method, path, number: None
    again = run()
    assert again.returncode == 0, again.stderr
    after = stored(client, "run")
    assert {"summary.json", "checkpoints/ckpt-30.index"} <= set(after)
    one, two = (rows_of_training(files["metrics.jsonl"]) for files in (found, after))
    assert list(two) == [10, 20, 30] and two[10] == one[10]  # times and all: it went on from the tenth
    assert two[30] != one.get(30)


@pytest.mark.parametrize("methods, reason", [
    (("GET", "HEAD", "PUT", "POST", "DELETE"), "AccessDenied"),
    (("PUT", "POST"), "AccessDenied"),
    (("GET", "HEAD"), "what is written there is not found again"),
])  # fmt: skip
def test_a_bucket_without_permission_is_one_line(train, methods, reason):
    run, proxy, client = train
    proxy.rule = lambda method, path, number: 403 if method in methods else None
    done = run()
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and reason in done.stderr, done.stderr
    assert done.stderr.startswith("Error: Cannot read and write s3://bucket/run: ")
    assert set(stored(client, "run")) <= {"in_use.lock"}
