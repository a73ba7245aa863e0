"""What happens between the steps: rows, TensorBoard, stopping on a signal, resuming in the middle, profiles."""

import functools
import shutil
import threading
import types

import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_lite.errors import UserError
from mural_lite.skipped import KINDS
from mural_tf.backend import keras
from mural_tf.data.skipped_records import SkippedRecords
from mural_tf.data.streams.epochs import start_of
from mural_tf.models.build import build_model
from mural_tf.models.labse import Labse
from mural_tf.models.step import StepGuard
from mural_tf.training import callbacks, metrics_file
from mural_tf.training import fit as fit_module
from mural_tf.training.callbacks import (
    Intervals,
    StopSignals,
    TrainingLog,
    duration,
)
from mural_tf.training.data_progress import DataProgress
from mural_tf.training.fit import compile_model, fit
from mural_tf.training.metrics_file import read_metrics
from mural_tf.training.observers import observers
from mural_tf.training.workdir import open_workdir

TOKENIZER = toy_data.toy_tokenizer()
TIMED = ("seconds", "wait", "pairs_per")


def test_intervals_begin_at_the_same_steps_wherever_a_run_was_interrupted():
    intervals = Intervals(steps=23, log_every=5)
    assert intervals.after(0) == [(4, 5), (1, 3)]
    assert intervals.after(7) == [(1, 3), (2, 5), (1, 3)]
    assert intervals.after(10) == [(2, 5), (1, 3)]
    assert intervals.after(21) == [(1, 2)]
    assert intervals.after(23) == []
    assert [step for step in range(30) if step <= 23 and intervals.is_due(step, 7)] == [10, 15, 23]  # 7, 14, 21 → 25
    assert not any(intervals.is_due(step, 0) for step in range(24))


def test_time_left_is_measured_without_the_first_interval(tmp_path, monkeypatch):
    """The first interval, which compiles, took 50 s; the 20 steps after it 30 s: 180 steps are 270 s."""
    log = TrainingLog(tmp_path, 0, 210, 1, None)
    now = [50.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])
    log._measured_from, log.step = (10, 50.0), 10
    assert log.seconds_left() is None
    log.step, now[0] = 30, 80.0
    assert (
        log.seconds_left() == 270.0 and log.seconds_left(after=30.0) == 270.0 and log.seconds_left(after=31.0) is None
    )
    assert [duration(s) for s in (40, 119, 120, 5399, 5400, 129_600)] == [
        "40 s",
        "119 s",
        "2 min",
        "90 min",
        "1.5 h",
        "1.5 days",
    ]


@pytest.fixture
def log(tmp_path):
    log = TrainingLog(tmp_path, 0, 10, 32, SkippedRecords({"image_text": str}))
    optimizer = types.SimpleNamespace(iterations=3, learning_rate=lambda step: 0.5 * step)
    guard = StepGuard(10)
    guard.total.assign(2)
    optimizers = {"image_text": optimizer, "text_text": optimizer}
    step = types.SimpleNamespace(trained_parameters=9, guard=guard)
    progress = DataProgress({"image_text": 1}, pipelines=2)
    progress.places["image_text"].assign(np.stack([[start_of(epoch)] for epoch in (4, 3)]))
    log.model = types.SimpleNamespace(optimizers=optimizers, step=step, progress=progress)
    return log


def scalars(folder):
    """Returns {(tag, step)} of the TensorBoard files in a folder."""
    found = set()
    for path in folder.glob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            found |= {(value.tag, event.step) for value in event.summary.value}
    return found


def test_tensorboard_has_numbers_at_once(log, tmp_path):
    with log:
        log.record(5, {"train/loss": 1.0, "dev/all": 2.0})
        log.record(7, {"dev/en": 1.0, "dev/all": 2.0}, ["dev/all"])
        assert scalars(tmp_path / "tensorboard") == {("train/loss", 5), ("dev/all", 5), ("dev/all", 7)}
    assert read_metrics(tmp_path)[1] == {"step": 7, "dev/en": 1.0, "dev/all": 2.0}


def test_too_many_steps_that_are_not_finite_end_the_run_after_their_row(log, tmp_path):
    guard = log.model.step.guard
    guard.build(["loss"])
    for step in range(11):  # of which ten are borne
        guard.check(tf.constant(step, tf.int64), {"loss": tf.constant(np.nan)})
    with log:
        log.on_epoch_begin(0)
        log.on_train_batch_end(4)
        with pytest.raises(UserError, match="11 steps in a row"):
            log.on_epoch_end(0, {"loss": np.nan})
    assert len(read_metrics(tmp_path)) == 1


def test_waiting_is_not_measured_by_a_clock_that_was_set(log, tmp_path, monkeypatch):
    clock = iter([(0.0, 0.0, 100.0), (2.0, 1.0, 3702.0)])  # an hour forward meanwhile
    monkeypatch.setattr(callbacks, "_clocks", lambda: next(clock))
    with log:
        log.on_epoch_begin(0)
        log.on_train_batch_end(4)
        log.on_epoch_end(0, {"loss": 1.5, "temperature": 0.1, "data_wait_seconds": 720.0})
    (row,) = read_metrics(tmp_path)
    assert row["train/seconds_per_step"] == 0.4 and "train/data_wait_fraction" not in row


def test_a_process_that_does_not_write_leaves_nothing(log, tmp_path, capsys):
    log.writes = False
    log.on_train_begin()
    with log:
        log.on_epoch_begin(0)
        log.on_train_batch_end(9)
        log.on_epoch_end(0, {"loss": 1.5, "temperature": 0.1})
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == "" and log.step == 10


def test_a_full_disk_is_one_message(log, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(metrics_file, "open", lambda *a, **k: open("/dev/full", "a"), raising=False)
        with pytest.raises(UserError, match="Cannot write .*metrics.jsonl: No space left on device"):
            log.record(1, {"a": 1.0})

    def full(*arguments, **options):
        raise tf.errors.UnknownError(None, None, "No space left on device")

    monkeypatch.setattr(tf.summary, "scalar", full)
    with pytest.raises(UserError, match="Cannot write .*tensorboard: No space left on device"), log:
        log.record(1, {"a": 1.0})


class Recorder(Labse):
    """Notes the ids of what is really trained on, and does something at a step."""

    def train_step(self, batch):
        def note(ids):
            self.ids.append(ids.numpy().tolist())
            self.at_step(len(self.ids))
            return True

        with tf.control_dependencies([tf.py_function(note, [batch["text_a_id"]], tf.bool)]):
            return super().train_step(batch)


@pytest.fixture
def run(tmp_path, eager):
    """Returns a function that trains a small model, as a new process would."""
    config = toy_data.toy_config(toy_data.write_toy_features(tmp_path / "data", size=12))
    config.train.update(dict(image_text_batch=32, text_text_batch=32))
    config.image_tower.update(dict(name="features", feature_size=12, branch_size=16, projection=32))
    config.text_tower.update(dict(hidden_size=16, feed_forward_size=16))
    config.embedding_size = 32
    config.model = "test_training_log:Recorder"

    def run(name, at_step=lambda step: None, evaluate=None, **options):
        workdir = tmp_path / name
        workdir.mkdir(exist_ok=True)
        keras.utils.set_random_seed(0)
        model = build_model(config, TOKENIZER.vocabulary_size)
        model.ids, model.at_step = [], at_step
        compile_model(model, config)
        with StopSignals() as signals:
            strategy = tf.distribute.get_strategy()
            model.finished = fit(model, TOKENIZER, config, workdir, strategy, signals, evaluate, **options)
        return model

    run.config = config
    return run


def untimed(rows):
    return [{k: v for k, v in row.items() if not any(word in k for word in TIMED)} for row in rows]


def assert_same_weights(one, other):
    for a, b in zip(one.trainable_variables, other.trainable_variables):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=a.name)


def batches_without_a_pipeline(config, tokenizer, places, *_):
    """As `training_batches`, of texts that follow from the place: making a pipeline takes longer than a run here."""
    size, (place,) = config.train.text_text_batch, places["text_text"]
    batches = []
    for number in range(place[2] // size, place[2] // size + config.train.steps):
        ids = tf.range(size, dtype=tf.int64) + number * size
        sides = {f"text_{side}": tokenizer([f"{word}{i % 64}" for i in ids.numpy()])
                 for side, word in (("a", "thing w"), ("b", "ding v"))}  # fmt: skip
        after = start_of(0)
        after[2] = (number + 1) * size
        batches.append({
            **sides, "text_a_id": ids, "text_b_id": -ids, "text_group_id": ids,
            "text_text_place": tf.constant(after)[None, None],
            "text_text_tally": tf.zeros([1, 1, 1 + len(KINDS), 3], tf.int64),
        })  # fmt: skip
    return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda *values: tf.stack(values), *batches))


def test_killed_and_lengthened_runs_are_the_run_of_all_steps(run, tmp_path, monkeypatch, capsys):
    """Where rates do not depend on the number of steps.

    Data are neither repeated nor skipped, and rows cover every step once. What a kill leaves is a copy of the workdir.
    test_shares.py goes on in and after an epoch of a real pipeline, and saves the places of two streams.
    """
    monkeypatch.setattr(fit_module, "training_batches", batches_without_a_pipeline)
    run.config.train.update(dict(log_every=2, checkpoint_every=2))
    run.config.optimizer.update(dict(warmup_steps=1, decay=(0.9, 2)))

    def copy(step):
        if step == 3:  # in the middle of an interval of 2
            for thread in threading.enumerate():
                thread.join() if thread.name.startswith("checkpoint") else None
            shutil.copytree(tmp_path / "whole", tmp_path / "killed")

    def run_steps(name, steps, **options):
        run.config.train.steps = steps
        open_workdir(tmp_path / name, run.config)
        return run(name, **options)

    whole, rest = run_steps("whole", 4, at_step=copy), run_steps("killed", 4)
    assert len(whole.ids) == 4 and whole.finished
    assert rest.ids == whole.ids[2:] and rest.finished  # the checkpoint of step 2 was the last
    first, later = run_steps("lengthened", 2), run_steps("lengthened", 4)
    assert [*first.ids, *later.ids] == whole.ids and len(first.ids) == 2 and later.finished
    printed = capsys.readouterr().out
    assert "lengthened was last started: train.steps was 2, is 4.\n" in printed and "rate" not in printed
    rows = untimed(read_metrics(tmp_path / "whole"))
    assert [row["step"] for row in rows] == [2, 4]
    for name, model in (("killed", rest), ("lengthened", later)):
        assert untimed(read_metrics(tmp_path / name)) == rows
        assert_same_weights(whole, model)


@pytest.mark.slow  # what the flag may be: `test_profile_flag`
def test_a_profile_is_written(run, tmp_path):
    run.config.train.steps = 4
    assert run("whole", make_observers=functools.partial(observers, profile=(2, 3))).finished
    assert list((tmp_path / "whole/tensorboard/plugins/profile").glob("*/*.xplane.pb"))
