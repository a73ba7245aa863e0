"""Callbacks that look at the numbers of a run and speak up: a forecast, a warning, a profile."""

from __future__ import annotations

import collections
import re
import signal
import sys

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.data.streams.pipeline import batch_size
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.training.callbacks import Callback, TrainingLog, duration
from mural_tf.training.workers import workers

MINUTE = 60.0  # seconds
DAYS = 1.5 * 86_400  # seconds
STUCK = 3  # intervals in succession after which a number that does not move is reported


def observers(
    model: DualEncoder,
    config: ConfigDict,
    log: TrainingLog,
    strategy: tf.distribute.Strategy,
    profile: tuple[int, int] | None = None,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of this file that a run has.

    Args:
      model: a compiled model.
      config: the run's configuration.
      log: the run's numbers.
      strategy: the strategy of the run.
      profile: (first, last) step to profile; `None`: no profile is written.
    """
    # "Go on?" needs a user who waits for the run, as for fine-tuning, which evaluates first; and one terminal, which
    # several workers do not share.
    may_ask = config.train.evaluate_first and workers(strategy) == 1
    batch_sizes = {task: batch_size(config, model.tasks[task].stream) for task in model.compared_pairs()}
    callbacks = [Forecast(log, may_ask), AtChance(log, batch_sizes, config.optimizer.warmup_steps)]
    if profile:
        callbacks.append(Profile(profile, log))
    return callbacks


class Forecast(Callback):
    """Prints after a minute of steps how long the rest takes, and may ask whether to go on.

    Args:
      log: the run's numbers.
      may_ask: name shorter runs where the rest takes days and, at a terminal, ask whether to go on.
    """

    def __init__(self, log: TrainingLog, may_ask: bool):
        super().__init__()
        self.log = log
        self.may_ask = may_ask
        self._is_printed = False

    def on_epoch_end(self, epoch, logs=None):
        seconds_left = self.log.seconds_left(after=MINUTE)
        if self._is_printed or seconds_left is None or not self.log.writes:
            return
        self._is_printed = True
        steps_left = self.log.steps - self.log.step
        print(f"Forecast: {duration(seconds_left)} for the {steps_left:,} steps that are left.", flush=True)
        if seconds_left < DAYS or not self.may_ask:
            return
        print(
            "Shorter: fewer steps (--config.train.steps), a frozen image tower (--config.image_tower.frozen=True), a "
            "machine with a GPU or TPU (--dry_run --tpu=… forecasts how long on a TPU).",
            flush=True,
        )
        if sys.stdin.isatty() and input("Go on? [Y/n] ").strip().lower().startswith("n"):
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C: the run stops after the next step, and saves it


class AtChance(Callback):
    """Reports a task whose matches are found no better than by guessing after the warm-up, or whose loss stays 0.

    Args:
      log: the run's numbers.
      batch_sizes: {task: examples in its global batch} of the tasks with an in-batch recall.
      warmup_steps: steps before which no recall is expected.
    """

    def __init__(self, log: TrainingLog, batch_sizes: dict[str, int], warmup_steps: int):
        super().__init__()
        self.log = log
        self.batch_sizes = batch_sizes
        self.warmup_steps = warmup_steps
        self._stuck_intervals = collections.Counter()  # {name of a number: the last intervals, in which it was stuck}

    def on_epoch_end(self, epoch, logs=None):
        for name, value in (logs or {}).items():
            value = float(value)
            measure, _, task = name.partition("_")  # of "loss_image_text": "loss", "image_text"; "loss" has no task
            if measure == "loss" and task:
                message = (
                    f"{name} is exactly 0, and teaches nothing: it has learned all, or nothing in a batch counts as "
                    "negative, as in a batch of one pair or where all images have one image_id."
                )
                self._report_if_stuck(name, value == 0.0, message)
            elif measure == "recall@1" and task in self.batch_sizes:
                self._check_recall(name, task, value)

    def _check_recall(self, name: str, task: str, recall: float) -> None:
        """Reports a task's in-batch recall@1, 0..1, that stays below twice the chance after the warm-up."""
        batch = self.batch_sizes[task]
        is_at_chance = recall < 2.0 / batch
        message = (
            "after the warm-up the run still finds no more than by guessing: in-batch recall "
            f"{task} {recall:.4f} (1 in {batch:,} by guessing); the loss stays near ln N. Likely causes: "
            "optimizer.learning_rate is too high or 0, the captions do not belong to the images, or the "
            "temperature is at its bound."
        )
        self._report_if_stuck(name, is_at_chance and self.log.step > self.warmup_steps, message)

    def _report_if_stuck(self, name: str, is_stuck: bool, message: str) -> None:
        """Prints the message when the number `name` has been stuck for `STUCK` intervals in succession; counts them."""
        if not is_stuck:
            self._stuck_intervals[name] = 0
            return
        self._stuck_intervals[name] += 1
        if self._stuck_intervals[name] == STUCK and self.log.writes:
            print(f"Step {self.log.step}: {message}", file=sys.stderr, flush=True)


class Profile(Callback):
    """Writes a TensorBoard profile of `steps`, (first, last), into `tensorboard/`.

    With several steps per execution it is a profile of the executions that hold these steps.
    """

    def __init__(self, steps: tuple[int, int], log: TrainingLog):
        super().__init__()
        self.first, self.last = steps
        self.log = log
        self._is_running = False

    def on_train_batch_begin(self, batch, logs=None):
        step = self.log.step + batch + 1
        if not self._is_running and self.log.writes and self.first <= step <= self.last:
            tf.profiler.experimental.start(str(self.log.workdir / "tensorboard"))
            self._is_running = True

    def on_train_batch_end(self, batch, logs=None):
        if self.log.step + batch + 1 >= self.last:
            self.on_train_end()  # ends the profile; nothing is left for the training's own end

    def on_train_end(self, logs=None):
        if self._is_running:
            self._is_running = False
            tf.profiler.experimental.stop()
            print(f"Profile written to {self.log.workdir / 'tensorboard'}.", flush=True)


def parse_profile(text: str, steps: int) -> tuple[int, int] | None:
    """Returns (START, STOP) for "START,STOP", steps counted from 1, or `None` for "".

    Raises `UserError` for other texts, and for steps that are not among the run's `steps`.
    """
    if not text:
        return None
    match = re.fullmatch(r"(\d+),(\d+)", text)
    if match:
        first, last = map(int, match.groups())
        if 1 <= first <= last <= steps:
            return first, last
    raise UserError(
        f"--profile={text} cannot be used: expected START,STOP, the first and the last step, with "
        f"1 <= START <= STOP <= {steps} (train.steps)."
    )
