"""Keeps what TensorFlow prints on stderr while it is imported from the terminal; everything else gets there.

TensorFlow's libraries speak of CUDA plugins, oneDNN and processor features before any setting of their logs is read
(2.20 and later, whatever `TF_CPP_MIN_LOG_LEVEL` says). It comes from C++, past Python's `sys.stderr`.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence

NOISY = ("tensorflow", "tensorflow_text", "tf_keras")
NOISE = re.compile(
    r"absl::InitializeLog|oneDNN custom operations|cpu_feature_guard|TF_ENABLE_ONEDNN_OPTS|To enable the following|"
    r"This TensorFlow binary is optimized|cuda drivers on your machine|Unable to register cu\w+ factory|"
    r"Unable to register cuDNN|TF-TRT Warning|computation_placer|Compiled cluster using XLA"
)


def quiet_imports() -> None:
    """From now on importing TensorFlow prints no notices; what is not known to be one is printed when it is done."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None):
        if name not in NOISY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Another loader, quietly."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        with without_noise():
            self._loader.exec_module(module)

    def __getattr__(self, name: str):  # such as `get_data`, for packages that read their own files
        return getattr(self._loader, name)


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Holds back what is written to file descriptor 2, and writes what is not noise there at the end."""
    with tempfile.TemporaryFile() as held:
        try:
            terminal = os.dup(2)
        except OSError:  # a process without stderr
            yield
            return
        sys.stderr.flush()
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            lines = held.read().decode("utf-8", "replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not NOISE.search(line)))
