"""The dtype policy of one tower, set layer by layer so that the process-wide Keras policy stays untouched.

"auto" is the fast one of the platform, per tower because convolutions and matrix products differ:

| platform                        | text tower     | image tower    | why
|---------------------------------|----------------|----------------|----
| TPU                             | mixed_bfloat16 | mixed_bfloat16 | its matrix unit multiplies bfloat16
| x86 with AMX (`amx_bf16`)       | mixed_bfloat16 | float32        | AMX multiplies bfloat16 tiles, nothing in float32
| AMD with `avx512_bf16`          | mixed_bfloat16 | float32        | measured, see below
| Intel with `avx512_bf16` alone  | float32        | float32        | measured, see below
| any other                       | float32        | float32        | bfloat16 is emulated

Measured with TensorFlow 2.15.1 and oneDNN. On an AMD EPYC (family 26) a 2048 x 2048 product runs at 415 to 430 GFLOP/s
of two cores in float32 and at 750 to 800 in bfloat16; a training step with BERT-base (32 texts of 64 tokens) and
EfficientNet-B0 (128 pixels) takes 3.85 s all in float32, 2.70 with the text tower in mixed_bfloat16, 2.72 with both (a
process each, one after the other). On an Intel Xeon with avx512_bf16 and without AMX products of BERT-base's sizes run
at 120 to 158 GFLOP/s a core in float32 and 66 to 82 in bfloat16; forward and backward of 32 texts of 64 tokens through
two layers of BERT-base take 0.96 s of processor time in float32 and 1.56 in mixed_bfloat16, of 32 images of 128 pixels
through EfficientNet-B0 0.83 and 1.55 (depthwise gradients most of all).
`python -m benchmarks.against_transformers --text_precision=…` tells for another machine.
"""

from __future__ import annotations

import functools
import pathlib

import tensorflow as tf

from mural_tf.config import ConfigurationError

PRECISIONS = ("auto", "float32", "mixed_bfloat16")


def dtype_policy(precision: str, tower: str) -> tf.keras.mixed_precision.Policy:
    """Returns the Keras policy of that name: variables are float32 in all, "mixed_bfloat16" computes in bfloat16.

    `tower` is "image" or "text"; "auto" depends on it, on this machine and on the distribution strategy in scope.
    Raises `ConfigurationError` for any other name.
    """
    if precision not in PRECISIONS:
        raise ConfigurationError(f"Unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}.")
    if precision == "auto":
        on_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
        precision = fast_precision(tower, on_tpu, multiplies_bfloat16() and not tf.config.list_logical_devices("GPU"))
    return tf.keras.mixed_precision.Policy(precision)


def fast_precision(tower: str, on_tpu: bool, on_fast_processor: bool) -> str:
    """The table above."""
    if on_tpu or (on_fast_processor and tower == "text"):
        return "mixed_bfloat16"
    return "float32"


@functools.cache
def multiplies_bfloat16(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Tells whether the processor's bfloat16 products are the fast ones; `False` where the system does not say."""
    try:
        words = pathlib.Path(cpuinfo).read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return "amx_bf16" in words or ("avx512_bf16" in words and "AuthenticAMD" in words)
