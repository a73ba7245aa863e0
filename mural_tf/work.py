"""Data work by many: by processes of this machine, or by Apache Beam on Dataflow, Flink and Spark.

Work is a list of `Stage`s of picklable functions, which both ways call with the same elements. On this machine that is
a pool of processes; what one step yields for the next lies on the disk in between, in files by the hash of its key, so
that memory depends on one key's rows and not on how many keys there are. Beam is imported only where its flags are
given.

What a step did is on disk when it returns: engines elsewhere repeat and reorder elements, and count them twice.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import multiprocessing
import os
import pathlib
import pickle
import re
import shlex
import signal
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from mural_tf.errors import UserError, install_extra
from mural_tf.files import remove_tree, storage_errors, write_whole
from mural_tf.progress import tqdm

BUCKETS = 1024  # files, in each worker, of what waits for the next step: about one for each key of a large conversion
POLL = 0.2  # seconds between two looks at what is finished
_OF_THIS_MACHINE = ("DirectRunner", "SwitchingDirectRunner", "InteractiveRunner")  # they fetch a program, or are slow


class Step(NamedTuple):
    """`make(*arguments)`, called in every worker, returns a function from an element to an iterable of what follows."""

    name: str
    make: Callable[..., Callable[[Any], Iterable]]
    arguments: tuple = ()


@dataclasses.dataclass
class Stage:
    """Elements that go through steps. A stage begins when those before it are complete.

    Attributes:
      elements: of the first step.
      steps: each but the last yields (key, value), and the next one takes (key, list of all the key's values, in any
        order). Keys are tuples of texts and whole numbers.
      mark: a file that says that the stage is complete, and spares going through it again.
    """

    elements: Sequence
    steps: Sequence[Step]
    mark: pathlib.Path | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it was gone through before."""
        return self.mark is not None and self.mark.is_file()


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
        if self.beam and self._flag("runner") in ("", *_OF_THIS_MACHINE):
            raise UserError(
                f"--beam={self.beam!r} names no runner of a cluster: expected --runner=DataflowRunner, FlinkRunner or "
                "the like. On this machine leave --beam out: --workers processes do the work."
            )
        if self.beam:
            _import_beam()

    def _flag(self, name: str) -> str:
        found = re.search(rf"--{name}[= ](\S+)", self.beam)
        return found[1] if found else ""

    def describe(self) -> list[str]:
        """Returns lines that say where work would run."""
        if not self.beam:
            return [f"Runs on: {self.workers} processes here"]
        container = self._flag("sdk_container_image") or "none named (--sdk_container_image)"
        return [f"Runs on: {self._flag('runner')} with {self.beam}", f"Container: {container}"]

    def run(self, stages: Sequence[Stage], folder: pathlib.Path, watch: Callable[[], None] = lambda: None) -> None:
        """Goes through all stages that are not complete.

        Args:
          stages: with workers, they are pickled, and the calling script has an `if __name__ == "__main__":`.
          folder: of the work, seen by all workers.
          watch: called again and again meanwhile, and at the end; what it raises ends the work.

        Raises:
          UserError: a step raised it, a worker was killed, or an engine elsewhere failed.
          KeyboardInterrupt: Ctrl-C; no process is left.
        """
        (_run_on_beam if self.beam else _run_here)(self, stages, folder, watch)
        watch()


class _Made:
    """A step in a worker, made with its first element."""

    def __init__(self, step: Step, folder: pathlib.Path):
        self._step, self._folder, self._work = step, folder, None

    def call(self, element, *waited_for) -> Iterator:  # Beam's way to wait is an argument more
        with storage_errors(self._folder):
            self._work = self._work or self._step.make(*self._step.arguments)
            yield from self._work(element)


# On this machine.


def _run_here(engine: Engine, stages: Sequence[Stage], folder: pathlib.Path, watch: Callable[[], None]) -> None:
    with contextlib.ExitStack() as stack:
        if isinstance(folder, pathlib.Path):
            shuffled = folder / "shuffle"  # beside the output, where there is room
        else:
            shuffled = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mural-tf-")), "shuffle")
        stack.callback(remove_tree, shuffled)
        each, next_look = stack.enter_context(_workers(engine.workers, _Worker(stages, folder, shuffled))), 0.0
        for number, stage in enumerate(stages):
            if stage.is_complete:
                continue
            remove_tree(shuffled)  # also of a run that was killed
            elements = stage.elements
            for step in range(len(stage.steps)):
                for _ in each((number, step, element) for element in elements):
                    if time.monotonic() >= next_look:
                        watch()
                        next_look = time.monotonic() + POLL
                elements = sorted({path.name.partition("-")[0] for path in (shuffled / str(step)).glob("*")})
            if stage.mark:
                write_whole(stage.mark, "")


class _Worker:
    """What a process does with an element, or with a bucket of what the step before has left."""

    def __init__(self, stages: Sequence[Stage], folder: pathlib.Path, shuffled: pathlib.Path):
        self._stages, self._folder, self._shuffled = stages, folder, shuffled
        self._place, self._step = None, None

    def __call__(self, stage: int, step: int, element) -> None:
        steps = self._stages[stage].steps
        if self._place != (stage, step):
            self._place, self._step = (stage, step), _Made(steps[step], self._folder)
        for whole in self._grouped(step - 1, element) if step else [element]:
            for found in self._step.call(whole):
                if step + 1 < len(steps):
                    self._leave(step, *found)

    def _leave(self, step: int, key, value) -> None:
        folder, bucket = self._shuffled / str(step), zlib.crc32(repr(key).encode()) % BUCKETS
        with storage_errors(self._folder):
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / f"{bucket}-{os.getpid()}", "ab") as file:
                pickle.dump((key, value), file)

    def _grouped(self, step: int, bucket: str) -> Iterable[tuple]:
        groups = collections.defaultdict(list)
        for path in (self._shuffled / str(step)).glob(f"{bucket}-*"):
            with open(path, "rb") as file, contextlib.suppress(EOFError):
                while True:
                    key, value = pickle.load(file)  # noqa: S301 - from our own workers
                    groups[key].append(value)
            path.unlink()
        return groups.items()


@contextlib.contextmanager
def _workers(count: int, worker: _Worker) -> Iterator[Callable[[Iterable[tuple]], Iterator[None]]]:
    """Gives what calls a worker with each of many arguments and yields now and then; leaves no process behind."""
    if not count:
        yield lambda calls: (worker(*call) for call in calls)
        return
    context = multiprocessing.get_context("spawn")  # TensorFlow must not be forked
    theirs, ours = context.Pipe(duplex=False)
    pool = futures.ProcessPoolExecutor(count, context, _begin, (theirs, worker))

    def each(calls: Iterable[tuple]) -> Iterator[None]:
        calls, running = iter(calls), set()
        while True:
            # Processes that are started meanwhile never hear of Ctrl-C: they end with this one.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                running |= {pool.submit(_call, *call) for call in itertools.islice(calls, 2 * count - len(running))}
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
        raise UserError(
            "A worker was killed, most likely for want of memory: run the same command again with fewer --workers. "
            "What is finished is kept."
        ) from None
    finally:
        ours.close()  # which ends the workers, whatever they do
        theirs.close()
        pool.shutdown(cancel_futures=True)


def _begin(parent: multiprocessing.connection.Connection, worker: _Worker) -> None:
    """The start of a process of the pool: it ends when the other end of the connection is closed, or its owner dies."""
    global _worker
    _worker = worker
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system's, which would be left behind

    def end_with_parent():
        with contextlib.suppress(EOFError, OSError):
            parent.recv_bytes()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _call(*call) -> None:
    _worker(*call)


# Elsewhere.


def _import_beam():
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # Beam warns of clients of Google's that nobody asked for
    try:
        import apache_beam
    except ImportError:
        raise UserError(f"--beam needs Apache Beam, which is not installed: {install_extra('beam')}.") from None
    finally:
        logging.disable(level)
    return apache_beam


def _run_on_beam(engine: Engine, stages: Sequence[Stage], folder: pathlib.Path, watch: Callable[[], None]) -> None:
    beam = _import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineState

    try:
        pipeline = beam.Pipeline(options=PipelineOptions(shlex.split(engine.beam)))
        add_stages(pipeline, stages, folder)
        result = pipeline.run()
        try:
            while not PipelineState.is_terminal(result.state):
                watch()
                time.sleep(POLL)
        except BaseException:
            result.cancel()
            raise
        result.wait_until_finish()  # raises what went wrong
        if str(result.state) not in ("DONE", "UPDATED"):
            raise RuntimeError(f"Error: it ended in the state {result.state}: its own pages have the reason")
    except UserError:
        raise
    except Exception as error:  # engines have no common one
        raise UserError(_reason(traceback.format_exc())) from error


def add_stages(pipeline, stages: Sequence[Stage], folder: pathlib.Path) -> None:
    """Adds the stages that are not complete to a `beam.Pipeline`."""
    beam, waited_for = _import_beam(), ()
    for number, stage in enumerate(stages, start=1):
        if stage.is_complete:
            continue
        found = pipeline | f"Plan {number}" >> beam.Create(list(stage.elements))
        found = found | f"Spread {number}" >> beam.Reshuffle()
        for place, step in enumerate(stage.steps):
            if place:
                found = found | f"Group for {step.name}" >> beam.GroupByKey()
            found = found | step.name >> beam.FlatMap(_Made(step, folder).call, *(() if place else waited_for))
        complete = found | f"Count {number}" >> beam.combiners.Count.Globally()
        if stage.mark:
            complete = complete | f"Mark {number}" >> beam.Map(functools.partial(_mark, stage.mark))
        waited_for = (beam.pvalue.AsSingleton(complete),)


def _mark(path: pathlib.Path, count: int) -> int:
    write_whole(path, "")
    return count


def _reason(log: str) -> str:
    """Returns what a step said, whose error comes as text, or the last line of an engine that failed by itself."""
    told = re.search(r"UserError: (.+?)(?: \[while running|\n|$)", log)
    if told:
        return told[1]
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "Error" in line), lines[-1])
    return f"The engine failed: {last[:500].rstrip('.')}. Its own log has more; what is finished is kept."
