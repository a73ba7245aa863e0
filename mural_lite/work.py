"""One function over many elements, in parallel: by processes of this machine or by Apache Beam (`beam.py`).

Calls share nothing and return nothing: their results are files. Beam may call the function twice with an element.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from mural_lite.errors import UserError
from mural_lite.files import storage_errors
from mural_lite.progress import tqdm

POLL = 0.2  # seconds between two looks at finished blocks
FEWER = "run the same command again with fewer --workers. What is finished is kept."


class Step(NamedTuple):
    """A function for each element: `make(*arguments)`, called once in every worker, returns the function."""

    name: str
    make: Callable[..., Callable[[Any], None]]
    arguments: tuple = ()


@dataclasses.dataclass(frozen=True)
class Engine:
    """Where work runs."""

    workers: int = 1  # number of processes of this machine; 0: the calling process. Unused with `beam`
    beam: str = ""  # flags of Apache Beam that name a runner: "--runner=FlinkRunner --flink_master=localhost:8081"

    def __post_init__(self):
        if self.workers < 0:
            raise UserError(f"workers is {self.workers}: expected 0 or more.")
        if self.beam:
            self._beam().check(self.beam)

    def _beam(self):
        from mural_lite import beam  # only now: most work runs here

        return beam

    def describe(self) -> list[str]:
        """Returns lines for the user that say where work would run."""
        if self.beam:
            return self._beam().describe(self.beam)
        return [f"Runs on: {self.workers} processes here"]

    def map(
        self, step: Step, elements: Sequence, folder: pathlib.Path, watch: Callable[[], None] = lambda: None
    ) -> None:
        """Calls the step's function with each element, in any order.

        Args:
          step: picklable if there are workers; then the calling script needs an `if __name__ == "__main__":`.
          elements: picklable.
          folder: the work's folder, which all workers see; errors name it.
          watch: called about every `POLL` seconds meanwhile, and at the end; its exception ends the work.

        Raises:
          UserError: the step raised it, a worker was killed, or an engine elsewhere failed.
          KeyboardInterrupt: Ctrl-C; no process is left.
        """
        if not elements:
            return
        worker = Worker(step, folder)
        if self.beam:
            self._beam().run(self.beam, step.name, worker, elements, watch)
        else:
            with _workers(self.workers, worker) as call_with:
                next_look = 0.0
                for _ in call_with(elements):
                    if time.monotonic() >= next_look:
                        watch()
                        next_look = time.monotonic() + POLL
        watch()


class Worker:
    """A step in a process; its function is made when the first element comes."""

    def __init__(self, step: Step, folder: pathlib.Path):
        self._step = step
        self._folder = folder
        self._function = None

    def __call__(self, element) -> None:
        """Calls the step's function with an element; raises `UserError` if the disk or the memory is full."""
        try:
            with storage_errors(self._folder):
                if self._function is None:
                    self._function = self._step.make(*self._step.arguments)
                self._function(element)
        except MemoryError:
            raise UserError(f"A worker found too little memory: {FEWER}") from None


@contextlib.contextmanager
def _workers(count: int, worker: Worker) -> Iterator[Callable[[Iterable], Iterator[None]]]:
    """Gives a function that calls a worker with elements in `count` processes; the processes end with the block.

    With 0 it works in this process. The function yields now and then, so that its caller can look at finished work.
    Raises `UserError` if a process is killed.
    """
    if not count:
        yield functools.partial(map, worker)
        return
    context = multiprocessing.get_context("spawn")  # TensorFlow must not be forked
    receiver, sender = context.Pipe(duplex=False)
    pool = futures.ProcessPoolExecutor(count, context, _start_process, (receiver, worker))
    try:
        yield functools.partial(_call_in_pool, pool, 2 * count)
    except futures.process.BrokenProcessPool:
        raise UserError(f"A worker was killed, most likely for want of memory: {FEWER}") from None
    finally:
        sender.close()  # which ends the workers at once
        receiver.close()
        pool.shutdown(cancel_futures=True)


def _call_in_pool(pool: futures.ProcessPoolExecutor, most_running: int, elements: Iterable) -> Iterator[None]:
    """Calls the workers of a pool with elements; yields when some are finished, and at least every `POLL` seconds.

    `most_running`: how many elements the pool is given at a time: twice its processes, so that no process waits.
    """
    remaining = iter(elements)
    running = set()
    while True:
        # The pool starts processes meanwhile, which inherit the mask and never hear of Ctrl-C: they end with this one.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for element in itertools.islice(remaining, most_running - len(running)):
                running.add(pool.submit(_call, element))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if not running:
            return
        finished, running = futures.wait(running, POLL, futures.FIRST_COMPLETED)
        for future in finished:
            future.result()  # raises the worker's exception
        yield


def _start_process(parent: multiprocessing.connection.Connection, worker: Worker) -> None:
    """Prepares a process of the pool for `_call`; it ends when its parent dies or closes its end of the connection."""
    global _worker
    _worker = worker
    tqdm.set_lock(threading.RLock())  # tqdm's default is a semaphore of the system, which would be left behind

    def end_with_parent():
        with contextlib.suppress(EOFError, OSError):
            parent.recv_bytes()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _call(element) -> None:
    """Calls the worker of this process, which `_start_process` has set, with an element."""
    _worker(element)
