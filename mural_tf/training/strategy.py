"""Which devices train: one, all local ones, several workers, or a TPU."""

from __future__ import annotations

import os

import tensorflow as tf

from mural_tf.config import ConfigurationError


def build_strategy(tpu: str = "") -> tf.distribute.Strategy:
    """Returns the strategy for `--tpu`: "" = this machine, "local" = this TPU VM, else a TPU's name or address.

    With `tpu` empty, `TF_CONFIG` (several workers) selects MultiWorkerMirroredStrategy, several GPUs select
    MirroredStrategy, and one device needs none. Raises `ConfigurationError` if the TPU cannot be reached.
    """
    if tpu:
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except (ValueError, OSError, RuntimeError, tf.errors.OpError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigurationError(
                f"The TPU {tpu!r} cannot be used: {reason}. Leave --tpu empty for this machine."
            ) from None
        return tf.distribute.TPUStrategy(resolver)
    if os.environ.get("TF_CONFIG"):
        return tf.distribute.MultiWorkerMirroredStrategy()
    if len(tf.config.list_logical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()
