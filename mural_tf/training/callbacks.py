"""Work between the steps: numbers, progress, checkpoints, evaluation, stopping on a signal.

One Keras "epoch" is an interval of `train.log_every` steps. Intervals begin at multiples of `log_every`, also after an
interruption, so that evaluations and checkpoints fall on the same steps.

SIGTERM and Ctrl-C end a run cleanly: after the current step, or immediately if nothing would be lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.progress import tqdm
from mural_tf.backend import keras
from mural_tf.data.skipped_records import SkippedRecords
from mural_tf.optimizers import learning_rates
from mural_tf.training.checkpoints import BestCheckpoint, Checkpoints
from mural_tf.training.metrics_file import append_metrics, has_evaluation, read_metrics
from mural_tf.training.workers import sum_over_workers, workers


@dataclasses.dataclass(frozen=True)
class Intervals:
    """The intervals of a run, and the steps after which periodic work is due.

    steps: the run's last step; log_every: steps of an interval.
    """

    steps: int
    log_every: int

    @classmethod
    def of(cls, train: ConfigDict) -> Intervals:
        """Returns the intervals of `config.train`: without `log_every` they end where anything else is due first."""
        others = [every for every in (train.checkpoint_every, train.evaluate_every) if every]
        return cls(train.steps, train.log_every or min(others, default=train.steps))

    def is_due(self, step: int, every: int) -> bool:
        """Whether work with a period of `every` steps is due after `step`; with `every` = 0 it is never due.

        It is due after the last step, and at the first end of an interval at or after each multiple of `every`.
        """
        if not every or step <= 0:
            return False
        if step >= self.steps:
            return True
        if step % self.log_every:  # no interval ends here
            return False
        interval_start = step - self.log_every
        return step // every > interval_start // every

    def after(self, step: int) -> list[tuple[int, int]]:
        """Returns [(number of intervals, steps in each)] from `step` on: a rest, full intervals, a shorter interval."""
        next_end = min(-(-step // self.log_every) * self.log_every, self.steps)
        full_intervals, rest = divmod(self.steps - next_end, self.log_every)
        parts = [(1, next_end - step), (full_intervals, self.log_every), (1, rest)]
        return [(count, length) for count, length in parts if count and length]


class Callback(keras.callbacks.Callback):
    """A callback that Keras hands tensors."""

    _supports_tf_logs = True  # or Keras would wait for the logs' numbers after every step


class TrainingLog(Callback):
    """Writes every number that the steps return, and shows progress: a bar at a terminal, plain lines otherwise.

    A row covers the steps since the row before it: `train.log_every` of them, or fewer where a signal ended the run or
    a run goes on from there; every step is in one row. Use it as a context manager around `fit`.

    Args:
      step: the step from which training goes on.
      steps: the step at which it ends.
      pairs_per_step: pairs of all streams, over all replicas.
      skipped: the skipped records so far; the batches' tallies are added.
      writes: whether this process writes the workdir and prints.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        step: int,
        steps: int,
        pairs_per_step: int,
        skipped: SkippedRecords,
        writes: bool = True,
    ):
        super().__init__()
        self.workdir = workdir
        self.step = step
        self.steps = steps
        self.pairs_per_step = pairs_per_step
        self.skipped = skipped
        self.writes = writes
        self._first = True
        self._interval_steps = 0

    def __enter__(self) -> TrainingLog:
        self._bar = tqdm(
            total=self.steps,
            initial=self.step,
            desc="Training",
            unit=" steps",
            smoothing=0.05,
            disable=not self.writes or not sys.stderr.isatty(),
        )
        self._begun = self._last_line = time.monotonic()
        self._measured_from: tuple[int, float] | None = None  # the end of the first interval, which compiles
        self._writer = None
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()
        if self._writer is not None:
            self._tensorboard(self._writer.close)

    def on_train_begin(self, logs=None):
        if self._first and self.writes:
            print("Building and compiling the first step …", flush=True)

    def on_epoch_begin(self, epoch, logs=None):
        self._interval_begun = _clocks()

    def on_train_batch_end(self, batch, logs=None):
        self._interval_steps = batch + 1
        if self._first and self.writes:
            print(f"First step after {time.monotonic() - self._begun:.1f} s.", flush=True)
        self._first = False

    def on_epoch_end(self, epoch, logs=None):
        now = _clocks()
        seconds, processor_seconds, wall_seconds = (end - begun for end, begun in zip(now, self._interval_begun))
        steps = self._interval_steps
        self._take_tallies()
        self.step += steps
        values = {name: float(value) for name, value in (logs or {}).items()}
        wait = values.pop("data_wait_seconds", 0.0) * steps  # the log is a mean over the steps
        values.update(
            learning_rates(self.model.optimizers),
            **self._epochs(),
            parameters=self.model.step.trained_parameters,
            pairs_per_second=self.pairs_per_step * steps / seconds,
            seconds_per_step=seconds / steps,
            processor_seconds_per_step=processor_seconds / steps,  # of all threads of this process
            skipped_records=self.skipped.total,
            skipped_steps=int(self.model.step.guard.total.numpy()),
        )
        if abs(wall_seconds - seconds) < 0.1:  # else someone set the clock by which the pipeline measures waiting
            values["data_wait_fraction"] = wait / seconds
        self.record(self.step, {f"train/{name}": value for name, value in values.items()})
        self._show(steps, values)
        if self._measured_from is None:
            self._measured_from = self.step, time.monotonic()
        self.model.step.guard.raise_if_stuck()

    def _epochs(self) -> dict[str, int]:
        """Returns {"epoch_<part>": how many epochs of this part of the data are over}."""
        epochs = itertools.chain(*self.model.progress.epochs().values())
        return {f"epoch_{part}": epoch for part, epoch in zip(self.skipped.by_part, epochs)}

    def _take_tallies(self) -> None:
        """Counts the skipped records of the batches that were trained on."""
        tallies = []  # of each source, [pipelines, 1 + kinds, 3]
        for variable in self.model.progress.tallies.values():
            tallies += list(np.swapaxes(variable.numpy(), 0, 1))
        for part, source_tallies in zip(self.skipped.by_part, tallies):
            self.skipped.add_tallies(part, source_tallies)

    def record(self, step: int, values: Mapping[str, float], shown: Iterable[str] | None = None) -> None:
        """Writes one row; TensorBoard gets the numbers that `shown` names, or all."""
        if not self.writes:
            return
        append_metrics(self.workdir, {"step": step, **values})
        names = values if shown is None else shown

        def write():
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self.workdir / "tensorboard"))
            with self._writer.as_default(step=step):
                for name in names:
                    tf.summary.scalar(name, values[name])
            self._writer.flush()

        self._tensorboard(write)

    def _tensorboard(self, write) -> None:
        """Calls `write`; raises `UserError` where TensorBoard's file cannot be written."""
        try:
            write()
        except tf.errors.OpError as error:
            self._writer = None
            raise UserError(
                f"Cannot write {self.workdir / 'tensorboard'}: {error.message}. Free some space and run the same "
                "command again."
            ) from None

    def _show(self, steps: int, values: Mapping[str, float]) -> None:
        """Moves the bar on by an interval's steps or, without a bar, prints a line, at most every 15 seconds."""
        self._bar.update(steps)
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {values['pairs_per_second']:.0f} pairs/s", refresh=False)
        now = time.monotonic()
        if not self.writes or not self._bar.disable:
            return
        if now - self._last_line <= 15 and self.step < self.steps:
            return
        self._last_line = now
        parts = [f"loss {values['loss']:.4f}"]
        if "temperature" in values:
            parts.append(f"temperature {values['temperature']:.4f}")
        parts.append(f"{values['pairs_per_second']:.0f} pairs/s")
        seconds_left = self.seconds_left()
        if seconds_left:
            parts.append(f"about {duration(seconds_left)} left")
        print(f"Step {self.step} of {self.steps}: {', '.join(parts)}.", flush=True)

    def seconds_left(self, after: float = 0.0) -> float | None:
        """Returns how long the remaining steps will take, evaluations on the way included.

        `None` until `after` seconds after the first interval of this start, which is not measured: it compiles.
        """
        if self._measured_from is None:
            return None
        step, begun = self._measured_from
        seconds = time.monotonic() - begun
        if self.step == step or seconds < after:
            return None
        return (self.steps - self.step) * seconds / (self.step - step)


def duration(seconds: float) -> str:
    """Returns "40 s", "12 min", "5.5 h" or "3.1 days"."""
    for size, unit in ((86_400, "days"), (3_600, "h")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _clocks() -> tuple[float, float, float]:
    """Returns seconds: elapsed, of the processor, and by the clock on the wall, which may be set."""
    return time.monotonic(), time.process_time(), time.time()


class SaveCheckpoints(Callback):
    """Saves whenever one of `periods`, in steps, is over, at the end, and when training stops."""

    def __init__(self, checkpoints: Checkpoints, log: TrainingLog, intervals: Intervals, periods: tuple[int, ...]):
        super().__init__()
        self.checkpoints = checkpoints
        self.log = log
        self.intervals = intervals
        self.periods = periods

    def on_epoch_end(self, epoch, logs=None):
        self.checkpoints.check()
        is_due = any(self.intervals.is_due(self.log.step, every) for every in self.periods)
        if is_due or self.model.stop_training or self.log.step >= self.intervals.steps:
            self.checkpoints.save(self.log.step)


class StopRequested(BaseException):
    """Unwinds work that can simply be done again: data preparation, evaluation, export.

    A `BaseException` as `KeyboardInterrupt`, so that no code on the way takes it for a failure of its own.
    """


class StopSignals:
    """While entered, a first signal raises `StopRequested`; within `after_the_step()` it only sets `received`.

    A second signal always raises, without waiting for the step. Handlers exist in the main thread
    only; elsewhere entering does nothing.
    """

    def __init__(self):
        self.received: signal.Signals | None = None
        self._waits = False
        self._previous: dict = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def after_the_step(self, waits: bool = True) -> Iterator[None]:
        """Inside, signals wait until `received` is read; with `waits` False, nested, they do not."""
        outer_waits = self._waits
        self._waits = waits
        try:
            yield
        finally:
            self._waits = outer_waits

    def check(self) -> None:
        """Raises `StopRequested` if a signal came."""
        if self.received:
            raise StopRequested

    def _stop(self, number, frame) -> None:
        """The handler of both signals."""
        is_first = self.received is None
        self.received = signal.Signals(number)
        if not is_first or not self._waits:
            raise StopRequested
        print(f"\n{self.received.name}: stopping after this step …", file=sys.stderr, flush=True)


class StopAfterStep(Callback):
    """Ends training after the running step once a signal came.

    Several workers agree at the end of an interval, since none can take a step without the others.
    """

    def __init__(self, signals: StopSignals, strategy: tf.distribute.Strategy):
        super().__init__()
        self.signals = signals
        self.strategy = strategy
        self.is_only_worker = workers(strategy) == 1

    def on_train_batch_end(self, batch, logs=None):
        if self.is_only_worker and self.signals.received:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if sum_over_workers(self.strategy, int(self.signals.received is not None)):
            self.model.stop_training = True


class PeriodicEvaluation(Callback):
    """Evaluates every `every` steps, records the numbers, and keeps the best weights.

    The checkpoint of the step is complete before. So a run that is interrupted meanwhile loses no step, and evaluates
    when it starts again: that the numbers are in metrics.jsonl is the mark that all of it was done.

    Args:
      evaluate: called with the step; returns None, or an evaluation with `name`, `metrics` and `groups`.
        `evaluate.name` begins its keys, `evaluate.model(step)` is the model it measures.
    """

    def __init__(
        self,
        evaluate,
        log: TrainingLog,
        checkpoints: Checkpoints,
        signals: StopSignals,
        intervals: Intervals,
        every: int,
    ):
        super().__init__()
        self.evaluate = evaluate
        self.log = log
        self.checkpoints = checkpoints
        self.signals = signals
        self.intervals = intervals
        self.every = every
        self._best: BestCheckpoint | None = None

    def on_epoch_end(self, epoch, logs=None):
        # A run that is asked to stop does so; the next one begins with this evaluation.
        if not self.model.stop_training:
            self.evaluate_if_due(self.log.step)

    def evaluate_if_due(self, step: int, first: bool = False) -> None:
        """Evaluates `step` if an evaluation is due and is not done yet; only where the workdir is written.

        Args:
          first: whether this is the evaluation before a run's first step, which is due.
        """
        is_due = first or self.intervals.is_due(step, self.every)
        if not self.log.writes or not is_due:
            return
        if any(has_evaluation(row, self.evaluate.name, step) for row in read_metrics(self.log.workdir)):
            return
        self.checkpoints.wait()
        with self.signals.after_the_step(False):
            self.signals.check()
            evaluation = self.evaluate(step)
            if evaluation is None:
                return
            if self._best is None:
                self._best = BestCheckpoint(self.evaluate.model(step), self.log.workdir)
            name = evaluation.name
            self._best.offer(step, evaluation.metrics[f"{name}/all/mean_recall"])  # the mean over all languages
            means = [f"{name}/{group}/mean_recall" for group in (*evaluation.groups, "all")]
            self.log.record(step, evaluation.metrics, means)
