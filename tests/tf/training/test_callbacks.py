"""What callbacks do at which step, with made-up clocks, models and checkpoints: whole rows, lines and messages."""

import os
import re
import signal
import threading
import types

import numpy as np
import pytest
import tensorflow as tf
from test_training_log import log  # noqa: F401 - a fixture

from mural_lite.errors import UserError
from mural_tf.training import callbacks, observers
from mural_tf.training.callbacks import (
    Intervals,
    PeriodicEvaluation,
    SaveCheckpoints,
    StopAfterStep,
    StopRequested,
    StopSignals,
)
from mural_tf.training.data_progress import DataProgress
from mural_tf.training.metrics_file import append_metrics, read_metrics
from mural_tf.training.observers import AtChance, Forecast, Profile


class Clock:
    """Stands for `time`; 3 s of the processor pass in a second."""

    def __init__(self):
        self.now = 0.0
        self.monotonic = lambda: self.now
        self.process_time = lambda: 3.0 * self.now
        self.time = lambda: 1e9 + self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(callbacks, "time", clock)
    return clock


class Bar:
    """Stands for a bar of progress."""

    def __init__(self, **options):
        self.options = options
        self.disable = options["disable"]
        self.calls = []
        self.update = self.calls.append
        self.set_postfix_str = lambda text, refresh: self.calls.append((text, refresh))
        self.close = lambda: self.calls.append("closed")


def interval(log, clock, seconds, logs, steps=5):  # noqa: F811
    log.on_epoch_begin(0)
    for batch in range(steps):
        clock.now += seconds / steps
        log.on_train_batch_end(batch)
    log.on_epoch_end(0, logs)


def test_rows_and_lines_by_hand(log, clock, tmp_path, capsys):  # noqa: F811
    log.steps = 20
    log.on_train_begin()
    logs = {"loss": 1.5, "temperature": np.float32(0.25), "data_wait_seconds": 0.5}
    with log:
        for seconds in (10.0, 6.0, 15.0):  # the first line comes after more than 15 s
            interval(log, clock, seconds, logs)
        interval(log, clock, 2.0, {"loss": 0.5})
    assert capsys.readouterr().out == (
        "Building and compiling the first step …\nFirst step after 2.0 s.\n"
        "Step 10 of 20: loss 1.5000, temperature 0.2500, 27 pairs/s, about 12 s left.\n"  # 10 steps of 1.2 s
        "Step 20 of 20: loss 0.5000, 80 pairs/s.\n"
    )
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    assert {name.removeprefix("train/"): value for name, value in rows[0].items()} == {
        "step": 5, "loss": 1.5, "temperature": 0.25, "learning_rate_image_text": 1.5, "learning_rate_text_text": 1.5,
        "epoch_image_text": 3, "parameters": 9, "pairs_per_second": 16.0, "seconds_per_step": 2.0,
        "processor_seconds_per_step": 6.0, "skipped_records": 0, "skipped_steps": 2, "data_wait_fraction": 0.25,
    }  # fmt: skip
    log.on_train_begin()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("writes,at_terminal", [(True, True), (True, False), (False, True)])
def test_a_bar_at_a_terminal(log, clock, writes, at_terminal, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(callbacks, "tqdm", Bar)
    monkeypatch.setattr(callbacks.sys, "stderr", types.SimpleNamespace(isatty=lambda: at_terminal))
    log.writes, log.step = writes, 3
    with log:
        interval(log, clock, 40.0, {"loss": 1.23456}, steps=7)
    options = dict(total=10, initial=3, desc="Training", unit=" steps", smoothing=0.05)
    assert log._bar.options == {**options, "disable": not (writes and at_terminal)}
    assert log._bar.calls == [7, ("loss 1.235, 6 pairs/s", False), "closed"]
    assert ("Step 10 of 10" in capsys.readouterr().out) == (writes and not at_terminal)


def test_tallies_of_each_source_over_all_pipelines(log):  # noqa: F811
    progress = DataProgress({"image_text": 1, "text_text": 2}, pipelines=2)
    for number, variable in enumerate(progress.tallies.values()):
        variable.assign(np.arange(variable.shape.num_elements()).reshape(variable.shape) + 1000 * number)
    taken = {}
    parts = dict.fromkeys(("image_text", "text_text/a", "text_text/b"))
    log.skipped = types.SimpleNamespace(
        by_part=parts, add_tallies=lambda part, values: taken.update({part: values[:, 0, 0]})
    )
    log.model.progress = progress
    log._take_tallies()
    assert {part: values.tolist() for part, values in taken.items()} == {
        "image_text": [0, 30], "text_text/a": [1000, 1060], "text_text/b": [1030, 1090]
    }  # fmt: skip


def test_checkpoints_when_one_of_the_periods_is_over():
    calls = []
    saved = types.SimpleNamespace(check=lambda: calls.append("check"), save=calls.append)
    log = types.SimpleNamespace(step=0)  # noqa: F811
    saving = SaveCheckpoints(saved, log, Intervals(23, 5), (10, 0, 15))
    saving.model = types.SimpleNamespace(stop_training=False)
    for log.step in (5, 10, 15, 20, 23):
        saving.on_epoch_end(0)
    assert calls == ["check", "check", 10, "check", 15, "check", 20, "check", 23]
    calls.clear()
    log.step, saving.model.stop_training = 7, True
    saving.on_epoch_end(0)
    assert calls == ["check", 7]
    never = SaveCheckpoints(saved, log, Intervals(23, 5), (0, 0))
    never.model = types.SimpleNamespace(stop_training=False)
    for log.step in (22, 23):
        never.on_epoch_end(0)
    assert calls == ["check", 7, "check", "check", 23]


@pytest.mark.parametrize("count", [1, 2])
def test_one_worker_stops_after_a_step_and_several_after_an_interval(count, monkeypatch):
    monkeypatch.setattr(callbacks, "workers", lambda strategy: count)
    of_others = [0]
    monkeypatch.setattr(callbacks, "sum_over_workers", lambda strategy, value: value + of_others[0])
    signals = types.SimpleNamespace(received=None)
    stop = StopAfterStep(signals, "a strategy")
    stop.model = types.SimpleNamespace(stop_training=False)
    stop.on_train_batch_end(0)
    stop.on_epoch_end(0)
    assert not stop.model.stop_training
    signals.received = signal.SIGTERM
    stop.on_train_batch_end(0)
    assert stop.model.stop_training == (count == 1)
    stop.on_epoch_end(0)
    assert stop.model.stop_training
    signals.received, stop.model.stop_training, of_others[0] = None, False, 1
    stop.on_epoch_end(0)
    assert stop.model.stop_training


def test_signals_and_where_they_wait(capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopSignals() as signals:
        signals.check()
        with signals.after_the_step():
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.received is signal.SIGINT
            with pytest.raises(StopRequested):
                signals.check()
            with pytest.raises(StopRequested):  # twice: not even for the step
                signals._stop(signal.SIGTERM, None)
        assert capsys.readouterr().err == "\nSIGINT: stopping after this step …\n"
        signals.received = None
        with signals.after_the_step(), signals.after_the_step(False):
            with pytest.raises(StopRequested):
                signals._stop(signal.SIGTERM, None)
        signals.received = None
        with pytest.raises(StopRequested):  # they wait no longer
            signals._stop(signal.SIGTERM, None)
        assert capsys.readouterr().err == ""
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    entered = []
    thread = threading.Thread(
        target=lambda: [entered.append(signals._previous) for signals in [StopSignals().__enter__()]]
    )
    thread.start()
    thread.join()
    assert entered == [{}]


class Evaluate:
    """`None` at step 5; the weights at 15 are no better than at 10."""

    name = "dev"
    values = {10: 3.0, 15: 3.0, 20: 4.0}

    def __init__(self):
        self.steps = []
        self.model = lambda step: f"model of {step}"

    def __call__(self, step):
        self.steps.append(step)
        self.waits = self.signals._waits
        if step not in self.values:
            return None
        metrics = {f"dev/{part}/mean_recall": self.values[step] for part in ("en", "rare", "all")}
        return types.SimpleNamespace(name="dev", metrics=metrics, groups={"rare": ["en"]})


def test_evaluations_that_are_due_and_not_done(tmp_path, monkeypatch):
    calls = []

    class Best:
        def __init__(self, model, workdir):
            calls.append((model, workdir))
            self.offer = lambda step, value: calls.append((step, value))

    monkeypatch.setattr(callbacks, "BestCheckpoint", Best)
    log = types.SimpleNamespace(step=0, writes=True, workdir=tmp_path)  # noqa: F811
    log.record = lambda step, values, shown: calls.append((step, list(values), shown))
    saved = types.SimpleNamespace(wait=lambda: calls.append("wait"))
    evaluate = Evaluate()
    signals = evaluate.signals = StopSignals()
    evaluation = PeriodicEvaluation(evaluate, log, saved, signals, Intervals(23, 5), every=5)
    evaluation.model = types.SimpleNamespace(stop_training=False)
    metrics = [f"dev/{part}/mean_recall" for part in ("en", "rare", "all")]
    for log.step in (5, 7, 10):
        evaluation.on_epoch_end(0)
    assert calls == ["wait", "wait", ("model of 10", tmp_path), (10, 3.0), (10, metrics, metrics[1:])]
    calls.clear()
    log.step = 15
    evaluation.on_epoch_end(0)
    assert calls == ["wait", (15, 3.0), (15, metrics, metrics[1:])]
    calls.clear()
    evaluation.model.stop_training = True
    log.step = 20
    evaluation.on_epoch_end(0)
    log.writes = False
    evaluation.evaluate_if_due(20)
    log.writes = True
    append_metrics(tmp_path, {"step": 20, "dev/all/mean_recall": 1.0})
    evaluation.evaluate_if_due(20)
    evaluation.evaluate_if_due(0)
    assert calls == [] and evaluate.steps == [5, 10, 15]
    evaluation.evaluate_if_due(0, first=True)
    assert calls == ["wait"] and evaluate.steps[3:] == [0]
    with signals.after_the_step():
        evaluation.evaluate_if_due(23)
        assert evaluate.steps[4:] == [23] and not evaluate.waits and signals._waits  # it can simply be done again
        signals.received = signal.SIGTERM
        with pytest.raises(StopRequested):
            evaluation.evaluate_if_due(23)
    assert evaluate.steps[5:] == []


# Observers.


def test_the_observers_of_a_run(monkeypatch):
    config = types.SimpleNamespace(
        train=types.SimpleNamespace(evaluate_first=True), optimizer=types.SimpleNamespace(warmup_steps=7)
    )
    tasks = {name: types.SimpleNamespace(stream=f"stream of {name}") for name in ("image_text", "text_text", "cloze")}
    model = types.SimpleNamespace(tasks=tasks, compared_pairs=lambda: ["image_text", "text_text"])
    monkeypatch.setattr(observers, "batch_size", lambda config, stream: {"stream of image_text": 32}.get(stream, 16))
    log = types.SimpleNamespace(name="log")  # noqa: F811
    for count, first in ((1, True), (2, True), (1, False)):
        monkeypatch.setattr(observers, "workers", lambda strategy, count=count: count)
        config.train.evaluate_first = first
        forecast, chance = observers.observers(model, config, log, "strategy")
        assert forecast.may_ask == (count == 1 and first) and forecast.log is chance.log is log
        assert chance.batch_sizes == {"image_text": 32, "text_text": 16} and chance.warmup_steps == 7
    profile = observers.observers(model, config, log, "strategy", (3, 5))[2]
    assert (profile.first, profile.last, profile.log) == (3, 5, log)


SHORTER = (
    "Shorter: fewer steps (--config.train.steps), a frozen image tower (--config.image_tower.frozen=True), a machine "
    "with a GPU or TPU (--dry_run --tpu=… forecasts how long on a TPU).\n"
)


@pytest.mark.parametrize("seconds,asks,answer,question,stopped", [
    (129_599, True, "n", False, False), (129_600, False, "n", False, False), (129_600, True, " No ", True, True),
    (129_600, True, "y", True, False), (129_600, True, "", True, False), (129_600, True, None, False, False),
])  # fmt: skip
def test_a_forecast_of_days_is_asked_about(seconds, asks, answer, question, stopped, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: answer is not None))
    given = []
    found = [None, seconds]
    log = types.SimpleNamespace(writes=True, steps=10_000, step=4)  # noqa: F811
    log.seconds_left = lambda after: given.append(after) or found.pop(0)
    forecast = Forecast(log, asks)
    signals = []
    monkeypatch.setattr("signal.raise_signal", signals.append)
    for epoch in range(2):
        forecast.on_epoch_end(epoch)
    words = {129_599: "36.0 h", 129_600: "1.5 days"}[seconds]
    line = f"Forecast: {words} for the 9,996 steps that are left.\n"
    assert capsys.readouterr().out == line + SHORTER * (asks and seconds == 129_600)
    assert signals == [signal.SIGINT] * stopped  # after which the run saves its step
    assert asked == ["Go on? [Y/n] "] * question and given == [60.0, 60.0]
    found.append(seconds)
    forecast.on_epoch_end(2)  # said once
    silent = Forecast(types.SimpleNamespace(writes=False, seconds_left=lambda after: 1.0), True)
    silent.on_epoch_end(0)
    assert capsys.readouterr().out == ""


def test_a_run_at_chance_says_so_once(capsys):
    log = types.SimpleNamespace(writes=True, step=0)  # noqa: F811
    chance = AtChance(log, {"image_text": 1000, "text_text": 50}, warmup_steps=20)

    def after(*steps, **logs):
        for log.step in steps:
            chance.on_epoch_end(0, {"recall@1_image_text": 0.00199, "recall@1_text_text": 0.04, **logs})
        return capsys.readouterr().err

    said = (
        "Step 60: after the warm-up the run still finds no more than by guessing: in-batch recall image_text 0.0020 (1 "
        "in 1,000 by guessing); the loss stays near ln N. Likely causes: optimizer.learning_rate is too high or 0, the "
        "captions do not belong to the images, or the temperature is at its bound.\n"
    )
    assert after(10, 20, 30, 40) == "" and after(60) == said and after(70, 80) == ""
    assert after(90, **{"recall@1_image_text": 0.5}) == "" and after(100, 110) == "" and "Step 120: after" in after(120)
    log.writes = False
    assert after(130, **{"recall@1_image_text": 0.5}) == "" and after(140, 150, 160) == ""


def test_a_loss_of_exactly_zero_is_said_once(capsys):
    log = types.SimpleNamespace(writes=True)  # noqa: F811
    chance = AtChance(log, {}, warmup_steps=1000)
    for log.step, loss in enumerate([0.0, 0.0, 1e-9, 0.0, 0.0, 0.0, 0.0]):
        chance.on_epoch_end(0, {"loss": 0.0, "loss_image_text": np.float32(loss), "loss_mlm": 1.0, "recall_mlm": 0.0})
        said = (
            "Step 5: loss_image_text is exactly 0, and teaches nothing: it has learned all, or nothing in a batch "
            "counts as negative, as in a batch of one pair or where all images have one image_id.\n"
        )
        assert capsys.readouterr().err == said * (log.step == 5)


@pytest.mark.parametrize("wanted,started,stopped", [((3, 5), [13], [15]), ((12, 12), [], []), ((1, 11), [11], [11])])
def test_the_steps_of_a_profile(wanted, started, stopped, tmp_path, monkeypatch, capsys):
    """From step 11 on, in intervals of 4 steps; a profile of earlier steps is not written."""
    calls = []
    log = types.SimpleNamespace(writes=True, workdir=tmp_path, step=10)  # noqa: F811
    wanted = tuple(number + 10 if wanted[0] != 1 else number for number in wanted)
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: calls.append(("start", running[0], folder)))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: calls.append(("stop", running[0])))
    running = [0]
    profile = Profile(wanted, log)
    for log.step in (10, 14):
        for batch in range(4):
            running[0] = log.step + batch + 1
            profile.on_train_batch_begin(batch)
            profile.on_train_batch_end(batch)
    profile.on_train_end()
    folder = str(tmp_path / "tensorboard")
    expected = []
    for begin, end in zip(started, stopped):
        expected += [("start", begin, folder), ("stop", end)]
    assert calls == expected
    assert capsys.readouterr().out == f"Profile written to {folder}.\n" * len(started)


def test_profile_flag():
    for text, expected in (("", None), ("3,10", (3, 10)), ("1,1", (1, 1))):
        assert observers.parse_profile(text, 10) == expected
    for wrong in ("3", "a,b", "0,2", "5,4", "3,11", "1,2,3", "-1,2"):
        message = f"--profile={wrong} cannot be used: expected START,STOP, the first and the last step, with 1 <= START"
        with pytest.raises(UserError, match=f"^{re.escape(message)} <= STOP <= 10 .train.steps.[.]$"):
            observers.parse_profile(wrong, 10)
