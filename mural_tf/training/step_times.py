"""How fast this machine trains: the peak of its products, each tower by itself, and whole steps of a compiled model.

Whole steps are those of a run, the input pipeline included, but nothing is written. Their weights change; nobody keeps
them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.encoders.layers import forward_pass
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.training.step_work import tower_of

WARM_UP = 8.0  # seconds of steps after the first one that are not counted: new shapes are still compiled
SECONDS = 15.0  # of steps that are counted
TOWER_SECONDS = 3.0
LONGEST_STEP = 20.0  # seconds above which whole steps are not tried
SIDE = 2048  # of the square matrices whose product is taken for the peak


class Seconds(NamedTuple):
    """Of one call: elapsed, and of the processor, all threads together."""

    elapsed: float
    processor: float

    @property
    def used(self) -> float:
        """What the call takes whatever else the machine does: of the processor where it computes, else elapsed."""
        return self.elapsed if tf.config.list_logical_devices("GPU") else self.processor


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """What was measured.

    step: seconds of whole steps, or `None` where they were not run.
    parts: {tower: elapsed seconds of a step}, and what else it consists of.
    peak: {dtype: operations for each second that a large product uses}.
    efficiency: {tower: share of the peak that its products reach}.
    """

    step: Seconds | None
    parts: dict[str, float]
    peak: dict[str, float]
    efficiency: dict[str, float]


def measure_towers(
    model: DualEncoder, batch: dict, operations: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, Seconds], dict[str, float], dict[str, float]]:
    """Runs each tower forward and backward on a batch.

    Args:
      model: its towers train.
      batch: {name: tensor}.
      operations: {tower: {dtype: operations of this batch, forward and backward}}.

    Returns:
      {tower: seconds}, {dtype: the peak} and {tower: efficiency}, as in `StepTimes`.
    """
    dtypes = {dtype for counts in operations.values() for dtype in counts}
    peak = {dtype: _peak(dtype) for dtype in sorted(dtypes)}
    seconds = {tower: _mean(_turns(_pass(model, batch, tower), TOWER_SECONDS)) for tower in operations}
    efficiency = {
        tower: sum(count / peak[dtype] for dtype, count in counts.items()) / seconds[tower].used
        for tower, counts in operations.items()
    }
    return seconds, peak, efficiency


def _pass(model: DualEncoder, batch: dict, tower: str):
    """Returns a function of one pass through a tower; TensorFlow leaves out what the other one computes."""
    wanted = [name for name, embedding in model.used.items() if tower_of(model, embedding.part) == tower]

    @tf.function(autograph=False)
    @tf.autograph.experimental.do_not_convert
    def run():
        with tf.GradientTape() as tape, forward_pass(tf.constant([0, 0])):
            embeddings = model.encode(batch, training=True)
            total = tf.add_n([tf.reduce_sum(embeddings[name]) for name in wanted])
        gradients = [each for each in tape.gradient(total, model.trainable_variables) if each is not None]
        return [tf.reduce_sum(getattr(each, "values", each)) for each in gradients] or [total]

    return run


def _peak(dtype: str) -> float:
    """Returns operations for each second that a large matrix product uses."""
    factors = [tf.cast(tf.random.stateless_uniform([SIDE, SIDE], [0, seed]), dtype) for seed in (1, 2)]
    product = tf.function(lambda: tf.reduce_sum(tf.matmul(*factors)), autograph=False)
    return 2.0 * SIDE**3 / min(turn.used for turn in _turns(product, TOWER_SECONDS / 3))


def _turns(function, limit: float) -> list[Seconds]:
    """Returns what each call takes, for `limit` seconds, after one that is not counted."""
    _run(function)
    begun, turns = time.monotonic(), []
    while not turns or time.monotonic() - begun < limit:
        elapsed, processor = time.monotonic(), time.process_time()
        _run(function)
        turns.append(Seconds(time.monotonic() - elapsed, time.process_time() - processor))
    return turns


def _mean(turns: list[Seconds]) -> Seconds:
    return Seconds(*(sum(values) / len(turns) for values in zip(*turns)))


def _run(function) -> None:
    tf.nest.map_structure(lambda value: value.numpy(), function())


def measure_steps(model: DualEncoder, config: ConfigDict, tokenizer, pad: str) -> Seconds:
    """Returns what a step of a compiled model takes."""
    batches = training_batches(config, tokenizer, streams=model.streams, pad=pad)
    clock = _Clock(config.train.steps_per_execution)
    model.fit(batches, epochs=1, steps_per_epoch=10**9, callbacks=[clock], verbose=0)
    return clock.seconds


class _Clock(keras.callbacks.Callback):
    """Ends training when enough steps are counted."""

    _supports_tf_logs = True  # or Keras would wait for the logs' numbers after every step

    def __init__(self, steps_per_execution: int):
        super().__init__()
        self._every, self._times = steps_per_execution, []

    def on_train_batch_end(self, batch, logs=None):
        self._times.append((time.monotonic(), time.process_time()))
        if len(self._counted()) > 1 and self._times[-1][0] - self._counted()[0][0] > SECONDS:
            self.model.stop_training = True

    def _counted(self) -> list[tuple[float, float]]:
        return [each for each in self._times if each[0] - self._times[0][0] >= WARM_UP]

    @property
    def seconds(self) -> Seconds:
        (begun, processor), (end, processor_end) = self._counted()[0], self._counted()[-1]
        steps = (len(self._counted()) - 1) * self._every
        return Seconds((end - begun) / steps, (processor_end - processor) / steps)
