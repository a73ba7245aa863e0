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
    """Returns lines that say where work would run."""
    container = _flag(flags, "sdk_container_image") or "none named (--sdk_container_image)"
    return [f"Runs on: {_flag(flags, 'runner')} with {flags}", f"Container: {container}"]


def _flag(flags: str, name: str) -> str:
    """Returns the value of a flag, "" without it."""
    match = re.search(rf"--{name}[= ](\S+)", flags)
    return match[1] if match else ""


def _import_beam():
    """Returns the package; raises `UserError` if it is not installed."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # Beam warns of Google's clients, which are not used here
    try:
        import apache_beam
    except ImportError:
        raise UserError(f"--beam needs Apache Beam, which is not installed: {install_extra('beam')}.") from None
    finally:
        logging.disable(level)
    return apache_beam


def run(flags: str, name: str, function: Callable, elements: Sequence, watch: Callable[[], None]) -> None:
    """Calls the function with all elements; calls `watch` meanwhile; an exception from `watch` cancels the job.

    Raises `UserError`: the function raised it, or the engine failed.
    """
    beam = _import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineState

    try:
        pipeline = beam.Pipeline(options=PipelineOptions(shlex.split(flags)))
        _ = pipeline | "Plan" >> beam.Create(list(elements)) | beam.Reshuffle() | name >> beam.Map(function)
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
    except Exception as error:  # engines have no common class
        raise UserError(_reason(traceback.format_exc())) from error


def _reason(log: str) -> str:
    """Returns the message of a step's `UserError`, which comes as text, or the last error of an engine that failed."""
    step_error = re.search(r"UserError: (.+?)(?: \[while running|\n|$)", log)
    if step_error:
        return step_error[1]
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    last_error = next((line for line in reversed(lines) if "Error" in line), lines[-1])
    return f"The engine failed: {last_error[:500].rstrip('.')}. Its own log has more; what is finished is kept."
