"""The dtype policy of one tower, set layer by layer so that the process-wide Keras policy stays untouched."""

from __future__ import annotations

import tensorflow as tf

from mural_tf.config import ConfigurationError

PRECISIONS = ("float32", "mixed_bfloat16")


def dtype_policy(precision: str) -> tf.keras.mixed_precision.Policy:
    """Returns the Keras policy of that name: variables are float32 in both, "mixed_bfloat16" computes in bfloat16.

    Raises `ConfigurationError` for any other name.
    """
    if precision not in PRECISIONS:
        raise ConfigurationError(f"Unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}.")
    return tf.keras.mixed_precision.Policy(precision)
