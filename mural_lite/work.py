"""Work by many: one function over many elements, by processes of this machine or by Apache Beam (`beam.py`).

Nothing goes from one element to another, and nothing is returned: what a call did is on disk when it returns, and an
engine elsewhere may do it twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
    """`make(*arguments)`, called once in every worker, returns the function that is called with each element."""

    name: str
    make: Callable[..., Callable[[Any], None]]
    arguments: tuple = ()


@dataclasses.dataclass(frozen=True)
class Engine:
    """Where work runs.

    Attributes:
      workers: processes of this machine; 0 works in the calling process.
      beam: flags of Apache Beam that name a runner, such as "--runner=FlinkRunner --flink_master=localhost:8081": then
        `workers` means nothing.
    """

    workers: int = 1
    beam: str = ""

    def __post_init__(self):
        if self.workers < 0:
            raise UserError(f"workers is {self.workers}: expected 0 or more.")
        if self.beam:
            self._beam().check(self.beam)

    def _beam(self):
        from mural_lite import beam  # only now: most work runs here

        return beam

    def describe(self) -> list[str]:
        """Returns lines that say where work would run."""
        return self._beam().describe(self.beam) if self.beam else [f"Runs on: {self.workers} processes here"]

    def map(
        self, step: Step, elements: Sequence, folder: pathlib.Path, watch: Callable[[], None] = lambda: None
    ) -> None:
        """Takes the step with each element, in any order.

        Args:
          step: with workers, it is pickled, and the calling script has an `if __name__ == "__main__":`.
          elements: picklable.
          folder: of the work, seen by all workers; named where writing fails.
          watch: called again and again meanwhile, and at the end; what it raises ends the work.

        Raises:
          UserError: the step raised it, a worker was killed, or an engine elsewhere failed.
          KeyboardInterrupt: Ctrl-C; no process is left.
        """
        worker = Worker(step, folder)
        if not elements:
            return
        if self.beam:
            self._beam().run(self.beam, step.name, worker, elements, watch)
        else:
            with _workers(self.workers, worker) as calls:
                next_look = 0.0
                for _ in calls(elements):
                    if time.monotonic() >= next_look:
                        watch()
                        next_look = time.monotonic() + POLL
        watch()


class Worker:
    """A step in a process, made with its first element."""

    def __init__(self, step: Step, folder: pathlib.Path):
        self._step, self._folder, self._function = step, folder, None

    def __call__(self, element) -> None:
        """Takes the step with an element."""
        try:
            with storage_errors(self._folder):
                self._function = self._function or self._step.make(*self._step.arguments)
                self._function(element)
        except MemoryError:
            raise UserError(f"A worker found too little memory: {FEWER}") from None


@contextlib.contextmanager
def _workers(count: int, worker: Worker) -> Iterator[Callable[[Iterable], Iterator[None]]]:
    """Gives what calls a worker with each of many elements and yields now and then; leaves no process behind."""
    if not count:
        yield lambda elements: (worker(element) for element in elements)
        return
    context = multiprocessing.get_context("spawn")  # TensorFlow must not be forked
    theirs, ours = context.Pipe(duplex=False)
    pool = futures.ProcessPoolExecutor(count, context, _begin, (theirs, worker))

    def each(elements: Iterable) -> Iterator[None]:
        elements, running = iter(elements), set()
        while True:
            # Processes that are started meanwhile never hear of Ctrl-C: they end with this one.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                running |= {pool.submit(_call, item) for item in itertools.islice(elements, 2 * count - len(running))}
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if not running:
                return
            finished, running = futures.wait(running, POLL, futures.FIRST_COMPLETED)
            for future in finished:
                future.result()
            yield

    try:
        yield each
    except futures.process.BrokenProcessPool:
        raise UserError(f"A worker was killed, most likely for want of memory: {FEWER}") from None
    finally:
        ours.close()  # which ends the workers at once
        theirs.close()
        pool.shutdown(cancel_futures=True)


def _begin(parent: multiprocessing.connection.Connection, worker: Worker) -> None:
    """The start of a process of the pool: it ends when the other end of the connection is closed, or its owner dies."""
    global _worker
    _worker = worker
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system's, which would be left behind

    def end_with_parent():
        with contextlib.suppress(EOFError, OSError):
            parent.recv_bytes()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _call(element) -> None:
    _worker(element)
