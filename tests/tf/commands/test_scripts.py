"""The commands as a user calls them: the whole path on the shapes, and mistakes."""

import contextlib
import functools
import io
import json
import os
import re
import signal
import subprocess

import forked
import pytest
import tensorflow as tf
from test_commands import run_here
from toy_data import ONE_LAYER

from mural_tf.commands import COMMANDS
from mural_tf.demo import shapes
from mural_tf.runs import pretrain

SMOKE = ["--config=configs/shapes_smoke.py", "--config.train.steps=2", "--config.train.log_every=1",
         "--config.train.checkpoint_every=1", "--config.train.evaluate_every=1",
         *(f"--config.image_tower.{name}={value}" for name, value in ONE_LAYER.items()),
         "--config.text_tower.dropout=0.1", "--config.train.fused=off"]  # fmt: skip
TINY = ["--config.train.image_text_batch=16", "--config.train.text_text_batch=16"]


def run(command, *arguments, check=True):
    """Runs a command in this process, of which nothing is traced but exports and input; what it printed."""
    printed, errors = io.StringIO(), io.StringIO()
    tf.config.run_functions_eagerly(True)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            code = run_here(COMMANDS, command, *map(str, arguments))
    finally:
        tf.config.run_functions_eagerly(False)
    done = subprocess.CompletedProcess([command, *arguments], code, printed.getvalue(), errors.getvalue())
    assert not check or code == 0, done.stderr
    return done


def options(workdir, data):
    """Without the export, which takes longer than all the rest: test_export.py exports a model."""
    return [*SMOKE, *TINY, "--config.train.export=False", f"--config.data.directory={data}", f"--workdir={workdir}"]


@pytest.fixture(scope="module", autouse=True)
def in_the_repository():
    """With a tenth of the pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(forked.ROOT)
        patch.setattr(shapes, "build_shapes", functools.partial(shapes.build_shapes, images=200))
        patch.setattr(shapes, "DEV_IMAGES", 10)
        patch.setattr(shapes, "TEST_IMAGES", 15)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data") / "shapes"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    """A finished run: its workdir and what it printed."""
    workdir = tmp_path_factory.mktemp("run") / "workdir"
    return workdir, run("pretrain", *options(workdir, data)).stdout


def rows(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name, code", [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_signal_ends_a_run_with_a_sentence(name, code, data, tmp_path, monkeypatch):
    """test_training_log.py has what is saved and that it goes on alike, test_kills.py whole runs in processes."""
    monkeypatch.setattr(pretrain, "prepare_data", lambda config: os.kill(os.getpid(), signal.Signals[name]))
    done = run("pretrain", *options(tmp_path / "w", data), check=False)
    assert done.returncode == code and "Traceback" not in done.stderr
    said = f"Stopped by {name}; everything is saved in {tmp_path / 'w'}. The same command goes on from there."
    assert said in done.stdout + done.stderr


def test_the_whole_path(trained, data):
    workdir, printed = trained
    for name in ("config.json", "vocabulary.txt", "metrics.jsonl", "tensorboard", "report.html", "summary.json"):
        assert (workdir / name).exists(), name
    assert re.search(r"under-resourced +1 +[0-9.]+", printed) and "Next:" in printed and "Found for" in printed
    last = rows(workdir)[-1]
    assert last["step"] == 2 and 0 <= last["retrieval/en/mean_recall"] <= 100
    assert {row["step"] for row in rows(workdir) if "retrieval_dev/en/mean_recall" in row} == {1, 2}
    assert "train/data_wait_fraction" in rows(workdir)[0]


def test_a_finished_run_says_so_and_changes_nothing(trained, data):
    workdir, _ = trained
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}
    printed = run("pretrain", *options(workdir, data)).stdout
    assert "is finished" in printed and "under-resourced" in printed
    assert before == {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path.is_file()}


def last_line(done):
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("command, expected", [
    ("pretrain --config=configs/mural_base.py", "No data folder given"),
    ("pretrain --config=configs/shapes_smoke.py --config.data.directory=d --profile=5", "--profile=5 cannot be used"),
    ("pretrain --config=configs/shapes_smoke.py --config.data.directory=d --tpu=nobody", "The TPU 'nobody' cannot be"),
    ("evaluate --model=x --data_dir=y --protocol.coco.one_kk=first", 'Did you mean "one_k"'),
    ("export --model=/nothing", "--model=/nothing: there is no such file or folder"),
])  # fmt: skip
def test_mistakes_are_one_line(command, expected, data, tmp_path):
    command, *arguments = command.replace("=d ", f"={data} ").split()
    more = [f"--workdir={tmp_path / 'w'}"] if command == "pretrain" else []
    assert expected in last_line(run(command, *arguments, *more, check=False))


@pytest.mark.parametrize("mistake", ["optimizer.name=sgd", "optimizer.mode=both", "model=clip"])
def test_wrong_names_are_reported_before_data_is_built(mistake, tmp_path):
    arguments = ["--config=configs/shapes_smoke.py", f"--config.{mistake}", f"--config.data.directory={tmp_path / 'd'}"]
    said = last_line(run("pretrain", *arguments, f"--workdir={tmp_path / 'w'}", check=False))
    assert "Unknown" in said and mistake.partition("=")[2] in said
    assert not (tmp_path / "d").exists()
