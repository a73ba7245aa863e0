"""Which part of the training this process has, and agreement among several workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf
from ml_collections import ConfigDict

Result = TypeVar("Result")


def compiles_steps(config: ConfigDict, strategy: tf.distribute.Strategy) -> bool:
    """Whether XLA compiles whole steps, and so needs sizes that are known before the first step."""
    return config.train.jit or isinstance(strategy, tf.distribute.TPUStrategy)


def workers(strategy: tf.distribute.Strategy) -> int:
    """Returns how many processes train, each running this program; 1 for a TPU, whose hosts do not run it."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return sum(len(hosts) for hosts in strategy.cluster_resolver.cluster_spec().as_dict().values())
    return 1


def input_pipelines(strategy: tf.distribute.Strategy) -> int:
    """Returns how many input pipelines feed the replicas: as many as processes or, on a TPU, as its hosts."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return strategy.extended.num_hosts
    return workers(strategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes the workdir: the only one, or the first of several workers."""
    return strategy.extended.should_checkpoint


def sum_over_workers(strategy: tf.distribute.Strategy, value: int) -> int:
    """Returns the sum of the workers' values; waits for all workers, each of which must call it."""
    worker_count = workers(strategy)
    if worker_count == 1:
        return int(value)

    def sum_over_replicas():
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(value, tf.int32))

    total = strategy.experimental_local_results(strategy.run(sum_over_replicas))[0]
    replicas_per_worker = strategy.num_replicas_in_sync // worker_count  # the same number in every worker
    return int(total) // replicas_per_worker


def chief_first(strategy: tf.distribute.Strategy, prepare: Callable[[], Result]) -> Result:
    """Returns `prepare()`, called by the chief before all others, which then find its files."""
    if not is_chief(strategy):
        sum_over_workers(strategy, 0)  # waits for the chief
    result = prepare()
    if is_chief(strategy):
        sum_over_workers(strategy, 0)  # lets the others go on
    return result
