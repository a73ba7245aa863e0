"""Which devices train: one, all local ones, several workers, or a TPU; and what several workers agree on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from mural_tf.errors import UserError

Result = TypeVar("Result")


def build_strategy(tpu: str = "") -> tf.distribute.Strategy:
    """Returns the strategy for `--tpu`: "" = this machine, "local" = this TPU VM, else a TPU's name or address.

    With `tpu` empty, `TF_CONFIG` (several workers) selects MultiWorkerMirroredStrategy, several GPUs select
    MirroredStrategy, and one device needs none. Several workers are only possible before TensorFlow has run anything,
    so call this first. Raises `UserError` for a TPU that cannot be reached or a malformed `TF_CONFIG`.
    """
    if tpu:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except (ValueError, OSError, RuntimeError, tf.errors.OpError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"The TPU {tpu!r} cannot be used: {reason}. Leave --tpu empty for this machine.") from None
        # By default TPUs round the factors of float32 products to bfloat16. The towers ask for bfloat16 by
        # their own dtype; what is float32 on purpose is the similarity, divided by a temperature near 0.01.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        return tf.distribute.TPUStrategy(resolver)
    if os.environ.get("TF_CONFIG"):
        return _several_workers(os.environ["TF_CONFIG"])
    if len(tf.config.list_logical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _several_workers(cluster: str) -> tf.distribute.Strategy:
    try:
        task = json.loads(cluster)
        tasks = [name for name in task["cluster"] if name in ("chief", "worker")]
        known = task["task"]["type"] in tasks and 0 <= task["task"]["index"] < len(
            task["cluster"][task["task"]["type"]]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"The environment variable TF_CONFIG cannot be used ({type(error).__name__}: {error}): expected "
            '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}.'
        ) from None
    if not known:
        raise UserError(f"TF_CONFIG's task {task['task']} is none of its cluster's chief and workers.")
    return tf.distribute.MultiWorkerMirroredStrategy()


def workers(strategy: tf.distribute.Strategy) -> int:
    """Returns how many processes train, each running this program (a TPU's hosts do not: 1)."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return sum(len(hosts) for hosts in strategy.cluster_resolver.cluster_spec().as_dict().values())
    return 1


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether this process writes the workdir: the only one, or the first of several workers."""
    return strategy.extended.should_checkpoint


def sum_over_workers(strategy: tf.distribute.Strategy, value: int) -> int:
    """Adds up each worker's `value`. All workers must call it, and wait for each other here."""
    count = workers(strategy)
    if count == 1:
        return int(value)

    def add():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(value, tf.int32))

    total = strategy.experimental_local_results(strategy.run(add))[0]
    return int(total) * count // strategy.num_replicas_in_sync  # every worker has as many replicas


def chief_first(strategy: tf.distribute.Strategy, prepare: Callable[[], Result]) -> Result:
    """Returns `prepare()`, called by the chief before all others, which then find what it wrote."""
    if not is_chief(strategy):
        sum_over_workers(strategy, 0)
    result = prepare()
    if is_chief(strategy):
        sum_over_workers(strategy, 0)
    return result
