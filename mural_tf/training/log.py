"""The numbers of a run: rows of metrics.jsonl, TensorBoard, and progress for those who watch."""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from mural_tf.backend import keras
from mural_tf.data.skipped import SkippedRecords
from mural_tf.errors import UserError
from mural_tf.optimizers import learning_rates
from mural_tf.training.workdir import append_metrics


class TrainingLog(keras.callbacks.Callback):
    """Writes every number that the steps return, and shows progress: a bar at a terminal, plain lines otherwise.

    A row covers the steps since the row before it: `train.log_every` of them, or fewer where a signal ended the run or
    a run goes on from there; every step is in one row. Use it as a context manager around `fit`.

    Args:
      step: from which training goes on.
      steps: at which it ends.
      pairs_per_step: of both tasks, over all replicas.
      writes: whether this process writes the workdir and prints.
    """

    _supports_tf_logs = True  # or Keras would wait for the logs' numbers after every step

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
        self.workdir, self.step, self.steps = workdir, step, steps
        self.pairs_per_step, self.skipped, self.writes = pairs_per_step, skipped, writes
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
        done = self._interval_steps
        self._take_tallies()
        self.step += done
        values = {name: float(value) for name, value in (logs or {}).items()}
        wait = values.pop("data_wait_seconds", 0.0) * done
        values.update(
            learning_rates(self.model.optimizers),
            **self._epochs(),
            parameters=self.model.step.trained_parameters,
            pairs_per_second=self.pairs_per_step * done / seconds,
            seconds_per_step=seconds / done,
            processor_seconds_per_step=processor_seconds / done,  # of all threads, whatever else the machine does
            skipped_records=self.skipped.total,
            skipped_steps=int(self.model.guard.total.numpy()),
        )
        if abs(wall_seconds - seconds) < 0.1:  # else the clock was set, by which the pipeline measures waiting
            values["data_wait_fraction"] = wait / seconds
        self.record(self.step, {f"train/{name}": value for name, value in values.items()})
        self._show(done, values)
        if self._measured_from is None:
            self._measured_from = self.step, time.monotonic()
        self.model.guard.raise_if_stuck()

    def _epochs(self) -> dict[str, int]:
        """Epochs that are over, of each part of the data: one begun as the first is epoch 0."""
        epochs = [epoch for of_stream in self.model.progress.epochs().values() for epoch in of_stream]
        return {f"epoch_{part}": epoch for part, epoch in zip(self.skipped.by_part, epochs)}

    def _take_tallies(self) -> None:
        tallies = self.model.progress.tallies.values()  # [pipelines, sources, …] each
        of_parts = [of_source for tally in tallies for of_source in np.swapaxes(tally.numpy(), 0, 1)]
        for part, of_pipelines in zip(self.skipped.by_part, of_parts):
            self.skipped.take(part, of_pipelines)

    def record(self, step: int, values: Mapping[str, float], shown: Iterable[str] | None = None) -> None:
        """Writes one row; of its numbers TensorBoard gets the ones named in `shown`, or all."""
        if not self.writes:
            return
        append_metrics(self.workdir, {"step": step, **values})

        def write():
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self.workdir / "tensorboard"))
            with self._writer.as_default(step=step):
                for name in values if shown is None else shown:
                    tf.summary.scalar(name, values[name])
            self._writer.flush()

        self._tensorboard(write)

    def _tensorboard(self, write) -> None:
        try:
            write()
        except tf.errors.OpError as error:
            self._writer = None
            raise UserError(
                f"Cannot write {self.workdir / 'tensorboard'}: {error.message}. Free some space and run the same "
                "command again."
            ) from None

    def _show(self, done: int, values: Mapping[str, float]) -> None:
        self._bar.update(done)
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {values['pairs_per_second']:.0f} pairs/s", refresh=False)
        now = time.monotonic()
        if not self.writes or not self._bar.disable or (now - self._last_line <= 15 and self.step < self.steps):
            return
        self._last_line = now
        left = self.seconds_left()
        temperature = f"temperature {values['temperature']:.4f}, " if "temperature" in values else ""
        print(
            f"Step {self.step} of {self.steps}: loss {values['loss']:.4f}, {temperature}"
            f"{values['pairs_per_second']:.0f} pairs/s" + (f", about {duration(left)} left." if left else "."),
            flush=True,
        )

    def seconds_left(self, after: float = 0.0) -> float | None:
        """How long the remaining steps will take, evaluations on the way included.

        `None` before the first interval of this start is over, and `after` seconds more.
        """
        if self._measured_from is None:
            return None
        step, begun = self._measured_from
        seconds = time.monotonic() - begun
        return (
            (self.steps - self.step) * seconds / (self.step - step) if self.step > step and seconds >= after else None
        )


def duration(seconds: float) -> str:
    """Returns "40 s", "12 min", "5.5 h" or "3.1 days"."""
    for size, unit in ((86_400, "days"), (3_600, "h")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _clocks() -> tuple[float, float, float]:
    """Seconds: elapsed, of the processor, and by the clock on the wall, which may be set."""
    return time.monotonic(), time.process_time(), time.time()
