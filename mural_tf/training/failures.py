"""Failures of devices and of other workers, in one line in place of TensorFlow's hundred."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError, is_out_of_memory
from mural_tf.data.streams.columns import CHANGED
from mural_tf.training.batch_sizes import chunk_numbers
from mural_tf.training.workers import workers

ENDS_OF_WORKERS = (  # as the others see them
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError,
    tf.errors.DeadlineExceededError,
)  # fmt: skip


@contextlib.contextmanager
def failures_in_one_line(config: ConfigDict, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Inside, a full device, changed data and the end of another worker raise `UserError` in place of TensorFlow's.

    Args:
      config: the run's configuration.
      strategy: the strategy of the run.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if is_out_of_memory(error):
            remedy = _remedy_of_little_memory(config, strategy.num_replicas_in_sync)
            raise UserError(
                f"A device of this machine has too little memory: {remedy}; --dry_run lists what a step needs."
            ) from None
        if CHANGED in error.message:
            raise UserError(CHANGED) from None
        if workers(strategy) > 1 and isinstance(error, ENDS_OF_WORKERS):
            raise UserError(
                f"Another worker of this run ended or cannot be reached ({_reason(error)}); if it stopped by itself, "
                "its own message says why. The last checkpoint is intact: start all workers again by the same command."
            ) from None
        raise


def _remedy_of_little_memory(config: ConfigDict, replicas: int) -> str:
    """Returns advice in words: more chunks or, where the batch cannot be divided further, smaller batches."""
    larger_numbers = chunk_numbers(config, replicas)
    if larger_numbers:
        return f"encode a batch in more chunks, with --config.train.micro_batches={larger_numbers[0]}"
    return "take smaller batches"


def _reason(error: tf.errors.OpError) -> str:
    """Returns how the connection to another worker failed, such as "socket closed", or else the error's class."""
    ends = r"heartbeat timeout|(connection|socket|channel)[\w ]* (closed|refused|reset|broken)"
    match = re.search(ends, error.message, re.IGNORECASE)
    if match:
        return match[0]
    return type(error).__name__
