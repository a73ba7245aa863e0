"""Runs data work on Apache Beam: in this process, in several on this machine, or on Dataflow, Flink or Spark.

A piece of work is a `Graph`: a picklable function from a pipeline to nothing, whose steps are `Step`s. On this machine
Beam's own runner for tests and small data executes it (`FnApiRunner`; `DirectRunner` fetches a program from the network
first). It keeps what is shuffled in memory and it waits for a worker that was killed: so graphs shuffle small rows
only, and several processes run in a group of their own that is watched from here and ended as a whole.

What a step did is on disk when it returns: engines repeat, reorder and count twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import pickle
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mural_tf.errors import UserError
from mural_tf.files import as_path, storage_errors

_level = logging.root.manager.disable
logging.disable(logging.WARNING)  # Beam warns of clients of Google's that nobody asked for
try:
    import apache_beam as beam
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError:
    raise UserError(
        "Conversions, vocabularies and `embed` run on Apache Beam, which is not installed: "
        "pip install apache-beam (or mural-tf[convert])."
    ) from None
finally:
    logging.disable(_level)

Graph = Callable[["beam.Pipeline"], None]
FAILED = "failed.txt"
GRACE = 4.0  # seconds between the end of a worker and that of the work, when all is well
POLL = 0.2  # seconds between two looks at the workers and at what is finished
_NO_WORKERS_NEEDED = ("DirectRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner", "InteractiveRunner")


@dataclasses.dataclass(frozen=True)
class Engine:
    """Where work runs.

    Attributes:
      workers: processes of this machine; 0 works in the calling process.
      beam: Beam's own flags, such as "--runner=FlinkRunner --flink_master=localhost:8081": then `workers` means
        nothing. Without --runner they go to the runner of this machine.
    """

    workers: int = 1
    beam: str = ""

    def __post_init__(self):
        FileSystems.set_options(PipelineOptions(self.arguments))  # for files elsewhere that this process looks at
        if self.workers < 0:
            raise UserError(f"workers is {self.workers}: expected 0 or more.")
        if self.runner in _NO_WORKERS_NEEDED:
            raise UserError(
                f"--runner={self.runner} would fetch a program from the network, or run in one process only: leave it "
                "out, and --workers processes of this machine do the work."
            )

    @property
    def arguments(self) -> list[str]:
        """Beam's flags."""
        return shlex.split(self.beam)

    @property
    def runner(self) -> str:
        """The name of another runner than this machine's, or ""."""
        return PipelineOptions(self.arguments).get_all_options(drop_default=True).get("runner") or ""

    @property
    def container(self) -> str:
        """The image that workers elsewhere run, or ""."""
        return PipelineOptions(self.arguments).get_all_options(drop_default=True).get("sdk_container_image") or ""


class Step(beam.DoFn):
    """A step whose work is a picklable `make`, called once in every worker, that returns a function of an element.

    What a user can put right is written to `folder/failed.txt` on its way up, because engines pass on text at best.
    """

    def __init__(self, make: Callable[..., Callable[[Any], Iterable]], *arguments, folder: os.PathLike | str):
        self._make, self._arguments, self._folder = make, arguments, str(folder)
        self._work = None

    def process(self, element, *waited_for):
        """Yields what the work yields; what it waited for is not looked at."""
        del waited_for
        try:
            if self._work is None:
                self._register()
                self._work = self._make(*self._arguments)
            with storage_errors(self._folder):
                yield from self._work(element)
        except UserError as error:
            with contextlib.suppress(OSError, UserError):
                (as_path(self._folder) / FAILED).write_text(str(error), encoding="utf-8")
            raise

    def _register(self) -> None:
        """Leaves this process's number where `run` looks for processes that are gone."""
        folder = os.environ.get(_WORKERS)
        if folder:
            pathlib.Path(folder, str(os.getpid())).touch()


_WORKERS = "MURAL_TF_WORKERS"  # a folder of this machine


# Beam's many threads would each keep what they freed: these settings of glibc's give it back at once.
_SMALL_HEAPS = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "100000", "MALLOC_MMAP_THRESHOLD_": "65536"}


def run(
    graph: Graph,
    engine: Engine,
    folder: pathlib.Path,
    watch: Callable[[], None] = lambda: None,
    small_heaps: bool = True,
) -> None:
    """Runs a graph to its end.

    Args:
      graph: adds its steps to a pipeline.
      engine: where.
      folder: of the work, seen by all workers.
      watch: called again and again meanwhile; what it raises ends the work.
      small_heaps: whether the processes of this machine return memory at once; for work that computes, it is dear.

    Raises:
      UserError: a step raised it, a worker was killed, or the engine failed.
      KeyboardInterrupt: Ctrl-C; no process is left.
    """
    with contextlib.suppress(OSError):
        (folder / FAILED).unlink(missing_ok=True)
    if engine.runner:
        _run_elsewhere(graph, engine, folder, watch)
    elif engine.workers:
        _run_in_processes(graph, engine, folder, watch, _SMALL_HEAPS if small_heaps else {})
    else:
        with _reported(folder):
            _run_here(graph, ["--direct_running_mode=in_memory", *engine.arguments])
    watch()


def dry_run(graph: Graph, engine: Engine) -> list[str]:
    """Returns the names of a graph's steps and the flags, without running anything."""
    pipeline = beam.Pipeline(runner=_own_runner(), options=PipelineOptions(engine.arguments))
    graph(pipeline)
    return [part.full_label for part in pipeline.transforms_stack[0].parts]


def _own_runner():
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    return FnApiRunner()


def _run_here(graph: Graph, arguments: list[str]) -> None:
    pipeline = beam.Pipeline(runner=_own_runner(), options=PipelineOptions(arguments))
    graph(pipeline)
    pipeline.run().wait_until_finish()


def _run_elsewhere(graph: Graph, engine: Engine, folder: pathlib.Path, watch: Callable[[], None]) -> None:
    with _reported(folder, engine.runner):
        pipeline = beam.Pipeline(options=PipelineOptions(engine.arguments))
        graph(pipeline)
        result = pipeline.run()
        finished = threading.Event()
        failures: list[BaseException] = []

        def wait():
            try:
                result.wait_until_finish()
            except BaseException as error:  # noqa: BLE001 - raised again below
                failures.append(error)
            finished.set()

        threading.Thread(target=wait, daemon=True).start()
        try:
            while not finished.wait(POLL):
                watch()
        except BaseException:
            result.cancel()
            raise
        if failures:
            raise failures[0]
        if str(result.state) not in ("DONE", "UPDATED"):
            raise UserError(f"{engine.runner} ended in the state {result.state}: its own pages have the reason.")


@contextlib.contextmanager
def _reported(folder: pathlib.Path, elsewhere: str = "") -> Iterator[None]:
    """Turns a failure of the engine into what a step wrote about it; of an engine elsewhere, into its first line."""
    try:
        yield
    except (KeyboardInterrupt, UserError):
        raise
    except BaseException as error:
        text = _told(folder)
        if text:
            raise UserError(text) from None
        if _interrupted(error):
            raise KeyboardInterrupt from None
        if elsewhere:
            raise UserError(_reason(traceback.format_exc(), elsewhere, folder)) from None
        raise


def _interrupted(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt) or "KeyboardInterrupt" in str(error)


def _told(folder: pathlib.Path) -> str:
    path = folder / FAILED
    return path.read_text(encoding="utf-8") if path.is_file() else ""


# Several processes of this machine.


def _run_in_processes(
    graph: Graph, engine: Engine, folder: pathlib.Path, watch: Callable[[], None], heaps: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="mural-tf-") as scratch:
        workers = pathlib.Path(scratch, "workers")
        workers.mkdir()
        log = pathlib.Path(scratch, "log")
        modes = ["--direct_running_mode=multi_processing", f"--direct_num_workers={engine.workers}"]
        work = pickle.dumps((graph, [*modes, *engine.arguments]))
        # Workers find what this process finds.
        path = os.pathsep.join(dict.fromkeys([*map(os.path.abspath, filter(None, sys.path)), os.getcwd()]))
        environment = {**heaps, **os.environ, _WORKERS: str(workers), "PYTHONPATH": path}
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "mural_tf.work"],
                stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=environment, start_new_session=True,
            )  # fmt: skip
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(len(work).to_bytes(8, "little") + work)
                process.stdin.flush()
            lost_since, seen = None, set()
            while process.poll() is None:
                present = _workers_of(process.pid)
                seen |= present
                lost = bool(seen - present) or any(not _is_alive(int(name)) for name in os.listdir(workers))
                lost_since = (lost_since or time.monotonic()) if lost else None
                if lost and time.monotonic() - lost_since > GRACE:
                    raise UserError(
                        "A worker was killed, most likely for want of memory: run the same command again with fewer "
                        "--workers. What is finished is kept."
                    )
                watch()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
                if _told(folder):
                    break
        finally:
            _end(process)
        text = _told(folder)
        if text:
            raise UserError(text)
        if process.returncode:
            what = f"exit code {process.returncode}"
            raise UserError(_reason(log.read_text(errors="replace"), what, folder))


def _reason(log: str, what: str, folder: pathlib.Path) -> str:
    """Returns one sentence about an engine that failed by itself; its whole output is kept."""
    path = folder / f"engine-{secrets.token_hex(4)}.log"
    with contextlib.suppress(OSError):
        path.write_text(log, encoding="utf-8")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no message")
    return f"The work ended ({what}): {last[:500].rstrip('.')}. Its output is in {path}; what is finished is kept."


def _workers_of(session: int) -> set[int]:
    """Returns Beam's workers in a session, also those that have not begun to work; none where there is no /proc."""
    found = set()
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z" and b"sdk_worker" in path.with_name("cmdline").read_bytes():
                found.add(int(path.parent.name))
    return found


def _is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # one that is dead and not waited for yet
        return pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return os.path.exists("/proc/self") is False


def _end(process: subprocess.Popen) -> None:
    """Ends the whole group: a worker would wait for its runner for minutes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()


def _main() -> None:
    """The process that `_run_in_processes` starts: it ends with the one that started it, and with its own workers."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    graph, arguments = pickle.loads(sys.stdin.buffer.read(size))  # noqa: S301 - from our own parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger().setLevel(logging.ERROR)
    try:
        _run_here(graph, arguments)
    except BaseException:
        logging.exception("The pipeline failed.")
        sys.stderr.flush()
        os._exit(1)  # Beam's threads would wait for workers
    os._exit(0)


def _end_with_parent() -> None:
    """Standard input ends when the parent does, however it ends."""
    sys.stdin.buffer.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    _main()
