"""Runs scripts and functions in forks of a process that has imported TensorFlow already, which saves seconds per run.

A script sees what a process of its own would show it: arguments, folder, standard streams, exit code. What differs
when a process starts from nothing is left to the tests that use `subprocess`.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import inspect
import multiprocessing
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run_script(script: str, *arguments, before=None) -> subprocess.CompletedProcess:
    """Runs a script of this project to its end; `before`, a function of a module, is called first in the process."""
    context = _context()
    with tempfile.TemporaryDirectory() as folder:
        streams = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        process = context.Process(target=_run, args=(script, list(map(str, arguments)), streams, before))
        process.start()
        process.join()
        printed = [pathlib.Path(stream).read_text(encoding="utf-8") for stream in streams]
    return subprocess.CompletedProcess([script, *arguments], process.exitcode, *printed)


def apart(function):
    """Decorates a function of a test module: it runs in a fork, one for all such functions.

    Models built in a `tf.Graph` turn Keras' layer classes into those of TensorFlow 1, for the whole process and for
    models that were there before.
    """

    @functools.wraps(function)
    def run_apart(*arguments, **options):
        return _submit(_pool_apart(), function, *arguments, **options)

    return run_apart


@functools.cache
def _pool_apart():
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=_context())


def call(function, *arguments, **options):
    """Returns what a function of a test module returns in a fork of its own."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=_context()) as pool:
        return _submit(pool, function, *arguments, **options)


def _submit(pool, function, *arguments, **options):
    return pool.submit(_call, function.__module__, function.__name__, arguments, options).result()


def _call(module: str, name: str, arguments, options):
    return inspect.unwrap(getattr(importlib.import_module(module), name))(*arguments, **options)


def _context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mural_tf.runs.pretrain", "mural_tf.runs.finetune", "mural_lite.embedder"])
    return context


def _run(script: str, arguments: list[str], streams: list[str], before) -> None:
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(ROOT)
    sys.argv = [str(ROOT / script), *arguments]
    if before is not None:
        before()
    runpy.run_path(sys.argv[0], run_name="__main__")
