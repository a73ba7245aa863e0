"""Apache Beam as the engine of clusters (Dataflow, Flink, Spark), for a map of one function over many elements.

Only the elements are shuffled, and they are small. Beam is imported where its flags are given.
"""

from __future__ import annotations

import logging
import re
import shlex
import time
import traceback
from collections.abc import Callable, Sequence

from mural_lite.errors import UserError, install_extra

POLL = 0.2  # seconds between two looks at the job
_OF_THIS_MACHINE = ("DirectRunner", "SwitchingDirectRunner", "InteractiveRunner")  # they fetch a program, or are slow


def check(flags: str) -> None:
    """Raises `UserError` for flags that name no runner of a cluster, and where Beam is not installed."""
    if _flag(flags, "runner") in ("", *_OF_THIS_MACHINE):
        raise UserError(
            f"--beam={flags!r} names no runner of a cluster: expected --runner=DataflowRunner, FlinkRunner or the "
            "like. On this machine leave --beam out: --workers processes do the work."
        )
    _import_beam()


def describe(flags: str) -> list[str]:
    """Returns two lines for the user: the runner with its flags, and the image of its containers."""
    container = _flag(flags, "sdk_container_image") or "none named (--sdk_container_image)"
    return [f"Runs on: {_flag(flags, 'runner')} with {flags}", f"Container: {container}"]


def _flag(flags: str, name: str) -> str:
    """Returns the value of the flag --`name` in `flags`, "" if the flag is missing."""
    match = re.search(rf"--{name}[= ](\S+)", flags)
    return match[1] if match else ""


def _import_beam():
    """Returns the package apache_beam; raises `UserError` if it is not installed."""
    disabled_level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # Beam warns of Google's clients, which are not used here
    try:
        import apache_beam
    except ImportError:
        raise UserError(f"--beam needs Apache Beam, which is not installed: {install_extra('beam')}.") from None
    finally:
        logging.disable(disabled_level)
    return apache_beam


def run(flags: str, name: str, function: Callable, elements: Sequence, watch: Callable[[], None]) -> None:
    """Calls a function with each element on a cluster, and returns when the job is done.

    Args:
      flags: Beam's, with the runner: "--runner=FlinkRunner --flink_master=localhost:8081".
      name: the step's name on the engine's pages.
      function, elements: picklable; the function raises `UserError`, and its results are dropped.
      watch: called every `POLL` seconds meanwhile; its exception cancels the job.

    Raises `UserError` if the function raised it, or the engine failed.
    """
    beam = _import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions

    try:
        pipeline = beam.Pipeline(options=PipelineOptions(shlex.split(flags)))
        _ = pipeline | "Plan" >> beam.Create(list(elements)) | beam.Reshuffle() | name >> beam.Map(function)
        _wait_for(pipeline.run(), watch)
    except UserError:
        raise
    except Exception as error:  # engines have no common class
        raise UserError(_reason(traceback.format_exc())) from error


def _wait_for(job, watch: Callable[[], None]) -> None:
    """Returns when a job, Beam's `PipelineResult`, is done; raises the error of the job or of `watch`."""
    from apache_beam.runners.runner import PipelineState

    try:
        while not PipelineState.is_terminal(job.state):
            watch()
            time.sleep(POLL)
    except BaseException:  # Ctrl-C, too
        job.cancel()
        raise
    job.wait_until_finish()  # raises the error of a job that failed
    if str(job.state) not in ("DONE", "UPDATED"):
        raise RuntimeError(f"Error: it ended in the state {job.state}: its own pages have the reason")


def _reason(stack_trace: str) -> str:
    """Returns the message for a failed job: its function's `UserError`, given as text, or the engine's last error."""
    user_error = re.search(r"UserError: (.+?)(?: \[while running|\n|$)", stack_trace)
    if user_error:
        return user_error[1]
    lines = [line.strip() for line in stack_trace.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line] or lines
    last_error = errors[-1][:500].rstrip(".")  # a few lines on a screen
    return f"The engine failed: {last_error}. Its own log has more; what is finished is kept."
