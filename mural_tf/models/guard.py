"""Steps whose loss or gradient is not finite: left out, counted, and after too many in a row the end of the run."""

from __future__ import annotations

import tensorflow as tf

from mural_tf.config import ConfigurationError


class StepGuard(tf.Module):
    """Decides for each step whether it is applied, and remembers the last one that was not.

    Args:
      limit: steps in a row that may be left out; one more and `raise_if_stuck` raises.
    """

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit
        self._names: tuple[str, ...] = ()
        self.total = self._counter("skipped_steps")
        self._in_row = self._counter("skipped_steps_in_row")
        self._longest = self._counter("skipped_steps_longest_row")  # since it was last asked for
        self._last_step = self._counter("skipped_step_last")

    def build(self, names: list[str]) -> None:
        """Takes the names of the numbers by which a skipped step is described."""
        self._names = tuple(names)
        self._last_values = tf.Variable(
            tf.zeros([len(names)]),
            trainable=False,
            name="skipped_step_values",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def check(self, step: tf.Tensor, logs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns a bool scalar, whether all numbers of `build`'s names are finite; the same on every replica."""
        values = tf.stack([tf.cast(logs[name], tf.float32) for name in self._names])
        finite = tf.reduce_all(tf.math.is_finite(values))
        skipped = tf.cast(tf.logical_not(finite), tf.int64)
        in_row = (self._in_row + 1) * skipped
        self.total.assign_add(skipped)
        self._in_row.assign(in_row)
        self._longest.assign(tf.maximum(self._longest, in_row))
        self._last_step.assign(tf.where(finite, self._last_step, step))
        self._last_values.assign(tf.where(finite, self._last_values, values))
        return finite

    def raise_if_stuck(self) -> None:
        """Raises `ConfigurationError` if more than `limit` steps in a row were left out since the last call."""
        longest = int(self._longest.numpy())
        self._longest.assign(0)
        if longest > self.limit:
            values = zip(self._names, self._last_values.numpy())
            raise ConfigurationError(
                f"{longest} steps in a row had a loss or gradient that is not finite and were left out; the last was "
                f"step {int(self._last_step.numpy())}: {', '.join(f'{name} {value:.4g}' for name, value in values)}. "
                "The weights are those before them. Lower optimizer.learning_rate, set optimizer.clip_norm, or find "
                "the operation with --debug_nans."
            )

    @staticmethod
    def _counter(name: str) -> tf.Variable:
        return tf.Variable(
            tf.zeros([], tf.int64),
            trainable=False,
            name=name,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
