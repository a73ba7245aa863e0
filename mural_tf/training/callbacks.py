"""Work between the steps: numbers, progress, checkpoints, evaluation, stopping on a signal.

One Keras "epoch" is an interval of `train.log_every` steps. Intervals begin at multiples of `log_every`, also after an
interruption, so that evaluations and checkpoints fall on the same steps.

SIGTERM and Ctrl-C end a run cleanly: after the current step, or immediately if nothing would be lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
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

LINE_EVERY = 15.0  # seconds between two lines of progress


@dataclasses.dataclass(frozen=True)
class Intervals:
    """The intervals of a run, and the steps after which periodic work is due.

    Attributes:
      steps: the run's last step.
      log_every: steps of an interval.
    """

    steps: int
    log_every: int

    @classmethod
    def of(cls, train: ConfigDict) -> Intervals:
        """Returns intervals of `train.log_every` steps; if it is 0, of the smallest other period, or of all steps."""
        other_periods = [every for every in (train.checkpoint_every, train.evaluate_every) if every]
        return cls(train.steps, train.log_every or min(other_periods, default=train.steps))

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
        """Returns [(number of intervals, steps in each)] from `step` to the last step.

        They are the rest of an interval, full intervals, and a shorter interval; for example, with 10 steps per
        interval of 35 steps, [(1, 3), (2, 10), (1, 5)] after step 7.
        """
        interval_end = min(math.ceil(step / self.log_every) * self.log_every, self.steps)
        full_intervals, rest = divmod(self.steps - interval_end, self.log_every)
        parts = [(1, interval_end - step), (full_intervals, self.log_every), (1, rest)]
        return [(count, length) for count, length in parts if count and length]


class Callback(keras.callbacks.Callback):
    """A Keras callback whose `logs` are tensors, not numbers."""

    _supports_tf_logs = True  # or Keras would wait for the logs' numbers after every step


class TrainingLog(Callback):
    """Writes the means of the steps' numbers, and shows progress: a bar at a terminal, plain lines otherwise.

    A row of metrics.jsonl and TensorBoard covers the steps since the row before it: `train.log_every` of them, or fewer
    where a signal ended the run or a run goes on from there; every step is in one row. Use the log as a context manager
    around `fit`.

    Args:
      workdir: the run's folder.
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
        self._is_first_step = True
        self._interval_steps = 0

    def __enter__(self) -> TrainingLog:
        self._bar = tqdm(
            total=self.steps,
            initial=self.step,
            desc="Training",
            unit=" steps",
            smoothing=0.05,  # an even speed: most steps are alike
            disable=not self.writes or not sys.stderr.isatty(),
        )
        self._start_time = time.monotonic()
        self._line_time = self._start_time
        self._measured_from = None  # (step, time) of the end of the first interval, which compiles
        self._writer = None
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()
        if self._writer is not None:
            with self._tensorboard_errors():
                self._writer.close()

    def on_train_begin(self, logs=None):
        if self._is_first_step and self.writes:
            print("Building and compiling the first step …", flush=True)

    def on_epoch_begin(self, epoch, logs=None):
        self._interval_start = _clocks()

    def on_train_batch_end(self, batch, logs=None):
        self._interval_steps = batch + 1
        if self._is_first_step and self.writes:
            print(f"First step after {time.monotonic() - self._start_time:.1f} s.", flush=True)
        self._is_first_step = False

    def on_epoch_end(self, epoch, logs=None):
        seconds = np.subtract(_clocks(), self._interval_start).tolist()
        steps = self._interval_steps
        self._take_tallies()
        self.step += steps
        values = self._interval_values(logs or {}, steps, seconds)
        self.record(self.step, {f"train/{name}": value for name, value in values.items()})
        self._show(steps, values)
        if self._measured_from is None:
            self._measured_from = self.step, time.monotonic()
        self.model.step.guard.raise_if_stuck()  # last: the row that shows why is written

    def _interval_values(self, logs: Mapping[str, tf.Tensor], steps: int, seconds: list[float]) -> dict[str, float]:
        """Returns {name: number} of an interval: the steps' means in `logs`, rates, times and counts.

        `seconds` are the interval's by the clocks of `_clocks`.
        """
        elapsed, processor, wall = seconds
        values = {name: float(value) for name, value in logs.items()}
        wait = values.pop("data_wait_seconds", 0.0) * steps  # the log is a mean over the steps
        values.update(
            learning_rates(self.model.optimizers),
            **self._epochs(),
            parameters=self.model.step.trained_parameters,
            pairs_per_second=self.pairs_per_step * steps / elapsed,
            seconds_per_step=elapsed / steps,
            processor_seconds_per_step=processor / steps,
            skipped_records=self.skipped.total,
            skipped_steps=int(self.model.step.guard.total.numpy()),
        )
        if abs(wall - elapsed) < 0.1:  # seconds; else someone set the clock by which the pipeline measures waiting
            values["data_wait_fraction"] = wait / elapsed
        return values

    def _epochs(self) -> dict[str, int]:
        """Returns {"epoch_<part>": how many epochs are over}; a part of the data is one source of a stream."""
        epochs = itertools.chain.from_iterable(self.model.progress.epochs().values())  # in the order of the parts
        return {f"epoch_{part}": epoch for part, epoch in zip(self.skipped.by_part, epochs)}

    def _take_tallies(self) -> None:
        """Counts the skipped records of the batches that were trained on."""
        tallies_by_part = []  # [pipelines, 1 + kinds, 3] each
        for variable in self.model.progress.tallies.values():  # [pipelines, sources, 1 + kinds, 3]
            tallies_by_part += list(np.swapaxes(variable.numpy(), 0, 1))
        for part, tallies in zip(self.skipped.by_part, tallies_by_part):
            self.skipped.add_tallies(part, tallies)

    def record(self, step: int, values: Mapping[str, float], shown: Iterable[str] | None = None) -> None:
        """Writes a row, if this process writes; with `shown` TensorBoard gets only the numbers of these names."""
        if not self.writes:
            return
        append_metrics(self.workdir, {"step": step, **values})
        names = values if shown is None else shown
        with self._tensorboard_errors():
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self.workdir / "tensorboard"))
            with self._writer.as_default(step=step):
                for name in names:
                    tf.summary.scalar(name, values[name])
            self._writer.flush()

    @contextlib.contextmanager
    def _tensorboard_errors(self) -> Iterator[None]:
        """Inside, errors in writing TensorBoard's file raise `UserError`; the file is then not used any longer."""
        try:
            yield
        except tf.errors.OpError as error:
            self._writer = None
            raise UserError(
                f"Cannot write {self.workdir / 'tensorboard'}: {error.message}. Free some space and run the same "
                "command again."
            ) from None

    def _show(self, steps: int, values: Mapping[str, float]) -> None:
        """Moves the bar on by `steps` or, without a bar, prints a line, at most every `LINE_EVERY` seconds."""
        loss = values["loss"]
        speed = f"{values['pairs_per_second']:.0f} pairs/s"
        self._bar.update(steps)
        self._bar.set_postfix_str(f"loss {loss:.3f}, {speed}", refresh=False)
        now = time.monotonic()
        is_bar_shown = not self._bar.disable
        if is_bar_shown or not self.writes:
            return
        if now - self._line_time <= LINE_EVERY and self.step < self.steps:
            return
        self._line_time = now
        parts = [f"loss {loss:.4f}"]
        if "temperature" in values:
            parts.append(f"temperature {values['temperature']:.4f}")
        parts.append(speed)
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
        first_step, begun = self._measured_from
        seconds = time.monotonic() - begun
        if self.step == first_step or seconds < after:
            return None
        return (self.steps - self.step) * seconds / (self.step - first_step)


def duration(seconds: float) -> str:
    """Returns a time in words: "40 s", from two minutes on "12 min", from 1.5 of the unit on "5.5 h" or "3.1 days"."""
    for size, unit in ((86_400, "days"), (3_600, "h")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s"


def _clocks() -> tuple[float, float, float]:
    """Returns seconds: elapsed, of all threads' processor time, and by the clock on the wall, which may be set."""
    return time.monotonic(), time.process_time(), time.time()


class SaveCheckpoints(Callback):
    """Saves a checkpoint whenever one of `periods` is over, at the end, and when training stops.

    Args:
      checkpoints: the run's checkpoints.
      log: the run's numbers.
      intervals: the run's intervals, at whose ends it saves.
      periods: numbers of steps; 0 is never over.
    """

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
        self.received = None  # the last signal
        self._waits = False
        self._previous = {}  # {signal: its handler}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def after_the_step(self, waits: bool = True) -> Iterator[None]:
        """Inside, a first signal only sets `received`; in a block with `waits` False within such a block, it raises."""
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
        """Handles both signals: raises `StopRequested`, or notes and prints the first signal where signals wait."""
        is_first = self.received is None
        self.received = signal.Signals(number)
        if is_first and self._waits:
            print(f"\n{self.received.name}: stopping after this step …", file=sys.stderr, flush=True)
        else:
            raise StopRequested


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

    The step's checkpoint is complete before its evaluation begins, and only a completed evaluation has its numbers in
    metrics.jsonl. So a run that is interrupted meanwhile loses no step, and evaluates when it starts again.

    Args:
      evaluate: called with the step; returns `None`, or an evaluation with `name`, `metrics` and `groups`.
        `evaluate.name` begins its keys, `evaluate.model(step)` is the model it measures.
      log: the run's numbers, which the evaluation's are added to.
      checkpoints: the run's checkpoints, saved at the same steps.
      signals: entered; a signal interrupts an evaluation.
      intervals: the run's intervals, at whose ends it evaluates.
      every: the period in steps; 0: never.
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
        self._best = None  # made by the first evaluation, when all weights exist

    def on_epoch_end(self, epoch, logs=None):
        # A run that is asked to stop does so; the next one begins with this evaluation.
        if not self.model.stop_training:
            self.evaluate_if_due(self.log.step)

    def evaluate_if_due(self, step: int, first: bool = False) -> None:
        """Evaluates the model, records the numbers and keeps the best weights, if that is due and not done yet.

        Does nothing in a worker that does not write. Raises `StopRequested` if a signal interrupts it.

        Args:
          step: the step that training has reached.
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
            if evaluation is not None:
                self._keep(evaluation, step)

    def _keep(self, evaluation, step: int) -> None:
        """Keeps the weights if they are the best, then records the evaluation's numbers."""
        name = evaluation.name
        if self._best is None:
            self._best = BestCheckpoint(self.evaluate.model(step), self.log.workdir)
        self._best.offer(step, evaluation.metrics[f"{name}/all/mean_recall"])  # the mean over all languages
        shown = [f"{name}/{group}/mean_recall" for group in (*evaluation.groups, "all")]
        self.log.record(step, evaluation.metrics, shown)
