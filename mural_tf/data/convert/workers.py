"""Blocks worked on by several processes, in bounded memory."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, Callable

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.blocks import Block

AHEAD = 2  # blocks that wait for a worker: reading rarely stops, and memory stays bounded


def map_blocks(
    blocks: Iterator[Block], workers: int, make: Callable[..., Callable[[Block], Any]], arguments: tuple
) -> Iterator[tuple[int, Any]]:
    """Yields (block's number, result) for every block, as they are done.

    Args:
      blocks: read only as fast as they are worked on.
      workers: processes; 0 works in this one.
      make: called once in each process with `arguments`; returns what is called with blocks. Both travel to the
        processes, so `make` is a class or function of a module.
      arguments: see make.

    Raises:
      ConfigurationError: a process was killed.
    """
    if workers == 0:
        work = make(*arguments)
        for block in blocks:
            yield block.number, work(block)
        return
    # A server process imports TensorFlow once, and workers are forked from it: forking this process, whose TensorFlow
    # may be at work, could leave them with locks that nobody releases.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mural_tf.data.convert.worker"])
    with concurrent.futures.ProcessPoolExecutor(workers, context, _start, (make, arguments)) as pool:
        waiting: dict[concurrent.futures.Future, int] = {}
        try:
            for block in blocks:
                waiting[pool.submit(_work, block)] = block.number
                if len(waiting) >= workers + AHEAD:
                    yield from _done(waiting, concurrent.futures.FIRST_COMPLETED)
            yield from _done(waiting, concurrent.futures.ALL_COMPLETED)
        except concurrent.futures.process.BrokenProcessPool:
            raise ConfigurationError(
                "A worker was killed, most likely for want of memory: run the same command again with fewer --workers. "
                "What is converted already is kept."
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def _done(waiting: dict[concurrent.futures.Future, int], until: str) -> Iterator[tuple[int, Any]]:
    for future in concurrent.futures.wait(waiting, return_when=until).done:
        yield waiting.pop(future), future.result()


_worker: Callable[[Block], Any] | None = None  # of a worker process


def _start(make: Callable, arguments: tuple) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the main one decides
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _worker = make(*arguments)


def _die_with_parent() -> None:
    """Ends this process when the main one is killed: it would wait for blocks for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(block: Block) -> Any:
    return _worker(block)
