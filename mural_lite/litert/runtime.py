"""Encoders that LiteRT runs: named arrays in, named arrays out, one example at a time.

LiteRT is TensorFlow Lite under its newer name, the package `ai-edge-litert`: a wheel of 22 MB that needs only NumPy.
Its kernels for CPUs (XNNPACK) take int8 products with activations that are quantised on the fly.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import threading
from collections.abc import Mapping

import numpy as np

from mural_lite.errors import UserError, first_line, install_extra

_threads = 0


def set_threads(number: int) -> None:
    """Sets the number of threads of each encoder that is loaded from now on; 0: one per core, at most 4."""
    global _threads
    _threads = number


class Encoder:
    """One encoder; safe to call from several threads, which then wait for each other.

    Args:
      path: the .tflite file, which stays mapped into memory.

    Raises `UserError` if the file is missing, cut off or damaged, or this version of LiteRT cannot run it.
    """

    def __init__(self, path: pathlib.Path):
        self._lock = threading.Lock()
        self._path = path
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError as error:
            raise UserError(f"{path} needs the package ai-edge-litert ({error}): {install_extra('lite')}.") from None
        threads = _threads or min(4, os.cpu_count() or 1)
        try:
            self._interpreter = Interpreter(model_path=str(path), num_threads=threads)
            signature = self._interpreter.get_signature_runner()
            inputs = signature.get_input_details()
            outputs = signature.get_output_details()
        except (ValueError, RuntimeError) as error:
            raise self._unusable(error) from None
        self._inputs = {name: details["index"] for name, details in inputs.items()}
        self._outputs = {name: details["index"] for name, details in outputs.items()}
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the inputs that memory was allocated for

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of one example, {name: float32 [1, D]}, as copies; `inputs`: {name: array [1, …]}."""
        with self._lock:
            try:
                self._allocate({name: inputs[name].shape for name in self._inputs})
                for name, index in self._inputs.items():
                    self._interpreter.set_tensor(index, inputs[name])
                self._interpreter.invoke()
            except (ValueError, RuntimeError) as error:
                self._shapes = {}
                raise self._unusable(error) from None
            return {name: self._interpreter.get_tensor(index) for name, index in self._outputs.items()}

    def _allocate(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Prepares the encoder for inputs of these shapes, unless it already is."""
        if shapes == self._shapes:
            return
        for name, index in self._inputs.items():
            self._interpreter.resize_tensor_input(index, shapes[name])
        self._interpreter.allocate_tensors()
        self._shapes = shapes

    def _unusable(self, error: Exception) -> UserError:
        """Returns the `UserError` for an error of LiteRT."""
        return UserError(
            f"{self._path} cannot be run by ai-edge-litert {importlib.metadata.version('ai-edge-litert')}: "
            f"{first_line(error).rstrip('. ')}. It is damaged, cut off or of a newer version: copy it again, or "
            "pip install -U ai-edge-litert."
        )
