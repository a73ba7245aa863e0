"""How fast this machine trains: the peak of its products, each tower by itself, and whole steps of a compiled model.

Whole steps are those of a run, the input pipeline included, but nothing is written. Their weights change; nobody keeps
them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

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


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, and operations a second.

    step, processor: elapsed and of the processor, all threads; 0 where whole steps were not run.
    parts: {tower: elapsed seconds}, and "rest": losses, optimiser and input.
    peak: {dtype: operations a second} of a large product.
    efficiency: {tower: share of the peak that its products reach}.
    """

    step: float
    processor: float
    parts: dict[str, float]
    peak: dict[str, float]
    efficiency: dict[str, float]


def measure_towers(
    model: DualEncoder, batch: dict, groups: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Runs each tower forward and backward on a batch.

    Args:
      model: its towers train.
      batch: {name: tensor}.
      groups: {tower: {dtype: operations of this batch, forward and backward}}.

    Returns:
      {tower: seconds}, {dtype: the peak} and {tower: efficiency}.
    """
    dtypes = {dtype for operations in groups.values() for dtype in operations}
    peak = {dtype: _peak(dtype) for dtype in sorted(dtypes)}
    seconds = {group: _seconds_of(_pass(model, batch, group)) for group in groups}
    efficiency = {
        group: sum(count / peak[dtype] for dtype, count in operations.items()) / seconds[group]
        for group, operations in groups.items()
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
    """Returns operations a second of a large matrix product."""
    factors = [tf.cast(tf.random.stateless_uniform([SIDE, SIDE], [0, seed]), dtype) for seed in (1, 2)]
    product = tf.function(lambda: tf.reduce_sum(tf.matmul(*factors)), autograph=False)
    return 2.0 * SIDE**3 / _seconds_of(product, TOWER_SECONDS / 3, least=True)


def _seconds_of(function, limit: float = TOWER_SECONDS, least: bool = False) -> float:
    """Returns elapsed seconds of a call, the mean or the least of `limit` seconds, after one that is not counted."""
    _run(function)
    begun, turns = time.monotonic(), []
    while not turns or time.monotonic() - begun < limit:
        turn = time.monotonic()
        _run(function)
        turns.append(time.monotonic() - turn)
    return min(turns) if least else sum(turns) / len(turns)


def _run(function) -> None:
    tf.nest.map_structure(lambda value: value.numpy(), function())


def measure_steps(model: DualEncoder, config: ConfigDict, tokenizer, pad: str) -> tuple[float, float]:
    """Returns elapsed and processor seconds of a step of a compiled model."""
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
    def seconds(self) -> tuple[float, float]:
        (begun, processor), (end, processor_end) = self._counted()[0], self._counted()[-1]
        steps = (len(self._counted()) - 1) * self._every
        return (end - begun) / steps, (processor_end - processor) / steps
