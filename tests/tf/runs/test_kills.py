"""Runs that are killed, at chosen moments or at any, and the same command again: bit-identical weights and metrics."""

import functools
import json
import os
import pathlib
import random
import signal
import threading

import forked
import numpy as np
import pytest
import tensorflow as tf

COMMAND = ["--config=configs/shapes_smoke.py", "--config.train.steps=30", "--config.train.log_every=5",
           "--config.train.checkpoint_every=10", "--config.train.evaluate_every=20",
           "--config.train.image_text_batch=16", "--config.train.text_text_batch=16",
           "--config.text_tower.dropout=0.1"]  # fmt: skip


def send_at(moment, number, workdir, delay=0.0):
    """Makes this process send itself a signal at one moment of its life, or so many seconds after it."""
    from mural_tf.runs import finish
    from mural_tf.training import callbacks

    def now(name):
        if name == moment and delay:
            threading.Timer(delay, os.kill, (os.getpid(), number)).start()
        elif name == moment:
            os.kill(os.getpid(), number)

    def around(owner, attribute, name):
        function = getattr(owner, attribute)

        def wrapped(*arguments, **options):
            now("before " + name(*arguments, **options))
            result = function(*arguments, **options)
            now("after " + name(*arguments, **options))
            return result

        setattr(owner, attribute, wrapped)

    def relative(_, path):
        path = pathlib.Path(path)
        return str(path.relative_to(workdir)) if workdir in path.parents else path.name

    around(os, "replace", relative)
    around(callbacks.TrainingLog, "on_train_batch_end", lambda self, batch, logs=None: f"step {self.step + batch + 1}")
    around(finish, "measure_retrieval", lambda e, *_, name, **__: f"{name} {e.step}")
    around(finish, "append_metrics", lambda _, row: "last row")
    around(tf.saved_model, "save", lambda _, path, *__: "export " + relative(None, path).split(".export.partial/")[-1])


PARTS = ("data-00000-of-00001", "index")
PREPARING = ["before config.json", "after config.json", "before environment.json", "before vocabulary.txt",
             "after vocabulary.txt"]  # fmt: skip
STEPPING = [f"after step {step}" for step in range(1, 31)]
SAVING = [f"{when} checkpoints/ckpt-{step}.{part}" for step in (10, 20, 30) for part in PARTS
          for when in ("before", "after")]  # fmt: skip
EVALUATING = ["before retrieval_dev 20", "after retrieval_dev 20", "before checkpoints/best/ckpt-20.index",
              "after checkpoints/best/ckpt-20.index", "before checkpoints/best/best.json",
              "after checkpoints/best/best.json"]  # fmt: skip
FINISHING = ["before retrieval 30", "after retrieval 30", "after last row", "before evaluation/retrieval-test.json",
             "before export image_encoder/1", "after export text_encoder/1", "after export hub/text_encoder",
             "before export", "after export", "before summary.json"]  # fmt: skip


def start(moment, signal_name, workdir, data, delay=0.0):
    where = [f"--config.data.directory={data}", f"--workdir={workdir}"]
    send = functools.partial(send_at, moment, signal.Signals[signal_name], workdir, delay)
    return forked.run_script("run_pretrain.py", *COMMAND, *where, before=send)


def untimed_rows(workdir):
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    timed = ("seconds", "wait", "pairs_per")
    return [{k: v for k, v in row.items() if not any(word in k for word in timed)} for row in rows]


def weights(workdir, folder="checkpoints"):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(workdir / folder)))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "VARIABLE_VALUE" in name}


def assert_same_runs(one, other):
    """Everything but times: each step once with the same numbers, the same weights, the same files."""
    assert untimed_rows(one) == untimed_rows(other)
    for folder in ("checkpoints", "checkpoints/best"):
        first, second = weights(one, folder), weights(other, folder)
        assert first.keys() == second.keys()
        for name in first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    for name in ("checkpoints/best/best.json", "checkpoints/checkpoint", "vocabulary.txt", "config.json"):
        assert (one / name).read_text() == (other / name).read_text(), name
    for name, keys in (("summary.json", ("metrics", "table")), ("export/model_card.json", ("metrics", "temperature"))):
        first, second = (json.loads((workdir / name).read_text()) for workdir in (one, other))
        assert {key: first[key] for key in keys} == {key: second[key] for key in keys}
    files = [sorted(str(path.relative_to(workdir)) for path in workdir.rglob("*") if "tfevents" not in path.name)
             for workdir in (one, other)]  # fmt: skip
    assert files[0] == files[1]  # nothing is missing, no leftovers


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing(tmp_path):
    """Over all that a run does: drawn moments and up to half a second after each. Then two signals that are handled."""
    start("never", "SIGKILL", tmp_path / "whole", tmp_path / "shapes")
    draw, kills, run = random.Random(12), 0, 0
    while kills < 20:
        workdir, run = tmp_path / f"killed-{run}", run + 1
        for moments in (PREPARING, STEPPING[:9], SAVING[:8], EVALUATING, STEPPING[20:29], FINISHING):
            moment, delay = draw.choice(moments), draw.random() / 2
            done = start(moment, "SIGKILL", workdir, tmp_path / "shapes", delay)
            assert done.returncode in (0, -signal.SIGKILL), (moment, delay, done.stderr[-3000:])
            kills += done.returncode != 0
            print(f"{'killed' if done.returncode else 'ended'}: {moment} + {delay:.3f} s", flush=True)
        done = start("never", "SIGKILL", workdir, tmp_path / "shapes")
        assert done.returncode == 0, done.stderr[-3000:]
        assert_same_runs(tmp_path / "whole", workdir)
    for moment, name, code in (("before vocabulary.txt", "SIGINT", 130), ("after export text_encoder/1", "SIGTERM", 0)):
        done = start(moment, name, tmp_path / "stopped", tmp_path / "shapes")
        assert done.returncode == code and f"Stopped by {name}" in done.stdout + done.stderr, done.stderr[-3000:]
        assert not (tmp_path / "stopped/summary.json").exists() and "Traceback" not in done.stderr
    start("never", "SIGKILL", tmp_path / "stopped", tmp_path / "shapes")
    assert_same_runs(tmp_path / "whole", tmp_path / "stopped")
