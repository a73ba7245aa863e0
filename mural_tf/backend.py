"""The packages below this one whose shape depends on TensorFlow's line: Keras 2, TF-Hub and TensorFlow Text.

This project is written for Keras 2: `TPUStrategy`, `hub.KerasLayer` and the tokenizer inside of a SavedModel need it.
TensorFlow 2.15 has it as `tf.keras`, which TensorFlow Addons' LAMB is built on; from 2.16 on `tf.keras` is Keras 3, and
Keras 2 is the package tf_keras. All of this project takes `keras` from here, so that it does not matter which Keras
`tf.keras` is, what `TF_USE_LEGACY_KERAS` says, or who imported TensorFlow first. Other code may use Keras 3.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator

import tensorflow as tf

KERAS_2_IS_TF_KERAS = tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16)


def _keras_2() -> types.ModuleType:
    """Returns the module of Keras 2; raises `ImportError` where its package is missing."""
    if KERAS_2_IS_TF_KERAS:
        return tf.keras
    try:
        return importlib.import_module("tf_keras")
    except ImportError as error:
        raise ImportError(
            f"TensorFlow {tf.__version__} needs the package tf_keras of the same line, which is Keras 2: "
            f"pip install 'tf_keras=={'.'.join(tf.__version__.split('.')[:2])}.*' ({error})"
        ) from None


keras = _keras_2()


@contextlib.contextmanager
def _package_resources() -> Iterator[None]:
    """Puts a substitute for `pkg_resources`, which setuptools 82 lacks but TF-Hub imports, into `sys.modules`."""
    if "pkg_resources" in sys.modules or importlib.util.find_spec("pkg_resources"):
        yield
        return
    substitute = types.ModuleType("pkg_resources")
    substitute.parse_version = importlib.import_module("packaging.version").Version
    sys.modules["pkg_resources"] = substitute
    try:
        yield
    finally:
        del sys.modules["pkg_resources"]


def tensorflow_hub() -> types.ModuleType:
    """Returns TF-Hub, which is slow to import and rarely needed."""
    with _package_resources():
        return importlib.import_module("tensorflow_hub")


with _package_resources():  # TensorFlow Text 2.15 imports TF-Hub
    import tensorflow_text as tf_text  # noqa: E402, F401 - also registers the tokenizer's operations


def sentencepiece_operations() -> types.ModuleType:
    """Returns tensorflow_text's SentencePiece operations, which take a resource's name; their class takes no name."""
    return importlib.import_module("tensorflow_text.python.ops.sentencepiece_tokenizer").gen_sentencepiece_tokenizer


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Silences file descriptor 2 within the context: XLA's first compilation writes there at any level of logging."""
    sys.stderr.flush()
    with open(os.devnull, "w") as null_device:
        standard_error = os.dup(2)
        os.dup2(null_device.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)
