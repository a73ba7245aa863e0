"""What happens between the steps: logs, progress, checkpoints, evaluation, stopping on a signal.

One Keras "epoch" is `train.log_every` steps, so that callbacks run only there and the steps between need no host.
"""

from __future__ import annotations

import pathlib
import signal
import sys
import threading
import time

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from mural_tf.data.skipped import SkippedRecords
from mural_tf.training.checkpoints import Checkpoints
from mural_tf.training.workdir import append_metrics


class TrainingLog(tf.keras.callbacks.Callback):
    """Writes `metrics.jsonl` and TensorBoard rows, and shows progress: a bar at a terminal, plain lines otherwise."""

    def __init__(self, workdir: pathlib.Path, steps: int, log_every: int, pairs_per_step: int, skipped: SkippedRecords):
        super().__init__()
        self.workdir, self.steps, self.log_every = workdir, steps, log_every
        self.pairs_per_step, self.skipped = pairs_per_step, skipped
        self.step = 0
        self._writer = tf.summary.create_file_writer(str(workdir / "tensorboard"))

    def on_train_begin(self, logs=None):
        self.step = int(next(iter(self.model.optimizers.values())).iterations)
        self._bar = tqdm(
            total=self.steps,
            initial=self.step,
            desc="Training",
            unit=" steps",
            smoothing=0.05,
            disable=not sys.stderr.isatty(),
        )
        self._begun = self._last_line = time.monotonic()
        self._begun_at = self.step
        self._first = True

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_begun = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        if self._first:
            print(f"First step after {time.monotonic() - self._begun:.1f} s.", flush=True)
            self._first = False

    def on_epoch_end(self, epoch, logs=None):
        done = min(self.log_every, self.steps - self.step)
        seconds = time.monotonic() - self._epoch_begun
        self.step += done
        values = {name: float(value) for name, value in (logs or {}).items()}
        wait = values.pop("data_wait_seconds", 0.0) * done
        values.update(
            learning_rate=float(self._rate()),
            pairs_per_second=self.pairs_per_step * done / seconds,
            seconds_per_step=seconds / done,
            data_wait_fraction=wait / seconds,
            skipped_records=self.skipped.total,
        )
        append_metrics(self.workdir, {"step": self.step, **{f"train/{k}": v for k, v in values.items()}})
        with self._writer.as_default(step=self.step):
            for name, value in values.items():
                tf.summary.scalar(f"train/{name}", value)
        self._bar.update(done)
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}, {values['pairs_per_second']:.0f} pairs/s", refresh=False)
        if self._bar.disable and (time.monotonic() - self._last_line > 15 or self.step >= self.steps):
            self._last_line = time.monotonic()
            left = (self.steps - self.step) * (self._last_line - self._begun) / max(self.step - self._begun_at, 1)
            print(
                f"Step {self.step} of {self.steps}: loss {values['loss']:.4f}, "
                f"temperature {values['temperature']:.4f}, {values['pairs_per_second']:.0f} pairs/s, "
                f"about {left:.0f} s left.",
                flush=True,
            )
        self.skipped.check()

    def on_train_end(self, logs=None):
        self._bar.close()
        self._writer.close()

    def _rate(self):
        optimizer = next(iter(self.model.optimizers.values()))
        return optimizer.learning_rate(optimizer.iterations)


class SaveCheckpoints(tf.keras.callbacks.Callback):
    """Saves every `every` steps, at the end, and when asked to stop."""

    def __init__(self, checkpoints: Checkpoints, log: TrainingLog, every: int):
        super().__init__()
        self.checkpoints, self.log, self.every = checkpoints, log, every

    def on_epoch_end(self, epoch, logs=None):
        step, stopping = self.log.step, self.model.stop_training
        if stopping or step >= self.log.steps or step // self.every > (step - self.log.log_every) // self.every:
            self.checkpoints.save(step)


class StopOnSignal(tf.keras.callbacks.Callback):
    """Turns SIGTERM into a stop after the running log interval, before which the checkpoint is saved."""

    def __init__(self):
        super().__init__()
        self.received = False

    def on_train_begin(self, logs=None):
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._stop)

    def on_train_end(self, logs=None):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._previous)

    def on_epoch_end(self, epoch, logs=None):
        if self.received:
            self.model.stop_training = True

    def _stop(self, number, frame):
        logging.warning("SIGTERM: saving and stopping.")
        self.received = True


class PeriodicEvaluation(tf.keras.callbacks.Callback):
    """Calls `evaluate(step)` every `every` steps."""

    def __init__(self, evaluate, log: TrainingLog, every: int):
        super().__init__()
        self.evaluate, self.log, self.every = evaluate, log, every

    def on_epoch_end(self, epoch, logs=None):
        step = self.log.step
        if step < self.log.steps and step // self.every > (step - self.log.log_every) // self.every:
            self.evaluate(step)
