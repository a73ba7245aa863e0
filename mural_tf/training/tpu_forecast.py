"""A training step judged by the TPU's own compiler, without a TPU: accepted or refused, memory, cycles, transfers.

The step is lowered here (`tpu_lowering.py`), compiled in a process of its own (`tpu_compiler.py`, the extra
`[tpu_compiler]`), and its text read there (`tpu_program.py`). The compiler takes minutes; its answer is kept under a
hash of the module. Cycles and seconds are the compiler's forecast: no device has run the step.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from mural_lite.errors import UserError, install_extra
from mural_lite.progress import announce
from mural_tf.training.tpu_slices import Slice

PACKAGES = ("jax", "libtpu")
EVERY = 20.0  # seconds between two lines while the compiler works
ENVIRONMENT = {  # of libtpu where there is no TPU: it looks for none, and waits for no other process
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
LARGEST_BUFFERS = 5  # which a message names


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """The compiler's answer; bytes, operations and cycles are of one replica and one step.

    Attributes:
      slice: the slice that it is compiled for.
      arguments: bytes of weights, slots of optimisers, counters and a batch.
      outputs: bytes of results.
      aliased: bytes of results that take over the memory of arguments.
      temporary, program: further bytes.
      flops: floating-point operations.
      cycles: the compiler's forecast, loops with all their turns.
      unknown_loops: how many loops count once because the compiler does not know their turns.
      operations: how many operations have cycles.
      cycles_by_part, most_expensive, collectives: as `tpu_program` has them.
      refused_features: transfers to the host, sizes known late, float64.
    """

    slice: Slice
    arguments: int
    outputs: int
    aliased: int
    temporary: int
    program: int
    flops: float
    cycles: int
    unknown_loops: int
    operations: int
    cycles_by_part: dict[str, int]
    most_expensive: list[dict]
    collectives: dict[str, dict[str, int]]
    refused_features: list[str]

    @property
    def memory(self) -> int:
        """All bytes that a replica needs."""
        return self.arguments + self.outputs - self.aliased + self.temporary + self.program

    @property
    def seconds(self) -> float:
        """The time of a step at the chip's clock, without transfers between chips."""
        return self.cycles / self.slice.generation.clock

    @property
    def utilisation(self) -> float:
        """The forecast's operations per second as a share of the chip's published peak, 0..1."""
        return self.flops / (self.seconds * self.slice.generation.peak)


class RefusedStep(UserError):
    """The error for a step that the compiler refuses.

    Args:
      slice_: the slice that it is compiled for.
      reason: the compiler's own words.
    """

    def __init__(self, slice_: Slice, reason: str):
        super().__init__(f"The compiler of {slice_.name} refuses the step: {_brief_reason(reason)}")
        self.reason = reason

    @property
    def is_out_of_memory(self) -> bool:
        return OUT_OF_MEMORY in self.reason


def has_compiler() -> bool:
    """Whether the TPU's compiler is installed here."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


def missing_compiler() -> str:
    """Returns how to install the compiler, in one line."""
    return (
        f"The TPU's own compiler is not here, so memory and time are not known: {install_extra('tpu_compiler')} "
        "(Python 3.12 or 3.13; libtpu is under Google Cloud's terms)."
    )


def compile_step(module: bytes, slice_: Slice, text_file: str = "") -> CompiledStep:
    """Returns the compiler's answer for a serialized HLO module: in minutes, or in seconds if it was asked before.

    Args:
      module: as `tpu_lowering.lower_step` gives it, for as many replicas as the slice has.
      slice_: the slice.
      text_file: where the optimised program's text is written, which is not cached; "": nowhere.

    Raises:
      RefusedStep: the compiler refuses the program.
      UserError: there is no compiler, or it was killed.
    """
    if not has_compiler():
        raise UserError(missing_compiler())
    answer = _run_compiler(module, slice_, text_file)
    if "refused" in answer:
        raise RefusedStep(slice_, answer["refused"])
    fields = {field.name for field in dataclasses.fields(CompiledStep)}
    return CompiledStep(slice=slice_, **{name: value for name, value in answer.items() if name in fields})


def _run_compiler(module: bytes, slice_: Slice, text_file: str) -> dict:
    """Returns the result that `tpu_compiler.py` writes: the figures, or {"refused": the compiler's words}."""
    announce(f"The compiler of {slice_.name} begins; a large model takes ten minutes and up to 20 GB of memory …")
    with tempfile.TemporaryDirectory() as folder:
        module_file = pathlib.Path(folder, "step.hlo")
        result_file = pathlib.Path(folder, "result.json")
        error_file = pathlib.Path(folder, "errors.txt")
        module_file.write_bytes(module)
        arguments = [str(module_file), str(result_file), slice_.topology, str(slice_.replicas)]
        if text_file:
            arguments.append(text_file)
        exit_code = _run_program(arguments, error_file)
        if not result_file.exists():
            errors = error_file.read_text(encoding="utf-8", errors="replace")
            raise UserError(_end_of_compiler(exit_code, errors))
        return json.loads(result_file.read_text(encoding="utf-8"))


def _run_program(arguments: list[str], error_file: pathlib.Path) -> int:
    """Runs `tpu_compiler.py` and returns its exit code; its standard error goes to a file."""
    with error_file.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "mural_tf.training.tpu_compiler", *arguments],
            stdin=subprocess.PIPE,  # closed when this process ends, also if killed: then the compiler ends, too
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=_environment_of_compiler(),
        )
    try:
        _wait(process)
    finally:
        process.kill()
        process.wait()
    return process.returncode


def _environment_of_compiler() -> dict[str, str]:
    """Returns environment variables with which a process finds this package, and libtpu looks for no TPU."""
    paths = [str(pathlib.Path(__file__).parents[2])]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}


def _wait(process: subprocess.Popen) -> None:
    """Waits for the compiler, and says from time to time that it works."""
    begun = time.monotonic()
    while True:
        try:
            process.wait(timeout=EVERY)
            return
        except subprocess.TimeoutExpired:
            announce(f"The compiler works … {time.monotonic() - begun:.0f} s")


def _end_of_compiler(exit_code: int, errors: str) -> str:
    """Returns in words how the compiler ended without a result."""
    if exit_code == -9:  # SIGKILL
        return "The TPU's compiler was killed, as happens where memory runs out: a large model needs up to 20 GB."
    lines = [line for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    return f"The TPU's compiler ended with exit code {exit_code}: {last}"


def _brief_reason(reason: str) -> str:
    """Returns the compiler's first line and, where memory is short, its `LARGEST_BUFFERS` with three lines each."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    buffer_lines = [line for line in lines if line.startswith(("Size:", "Operator:", "Shape:"))]
    shown = lines[:1] + buffer_lines[: 3 * LARGEST_BUFFERS]
    return " ".join(shown)[:1500]  # characters of a message


def fewest_chunks(fits: Callable[[int], bool], candidates: Sequence[int]) -> int | None:
    """Returns the smallest number of chunks with which a step fits, by bisection; `None` if no number does.

    Args:
      fits: compiles the step with a number of chunks, which takes minutes, and returns whether its memory suffices.
      candidates: numbers of chunks, increasing; more chunks never need more memory.
    """
    low = 0
    high = len(candidates)
    while low < high:
        middle = (low + high) // 2
        if fits(candidates[middle]):
            high = middle
        else:
            low = middle + 1
    if low == len(candidates):
        return None
    return candidates[low]


def as_on_tpu(config: ConfigDict) -> ConfigDict:
    """Returns the configuration with the choices of a run with `--tpu`: compiled steps and towers in bfloat16.

    A TF-Hub module keeps the precision that it was exported with.
    """
    config = config.copy_and_resolve_references()
    config.train.jit = True
    for tower in (config.image_tower, config.text_tower):
        if tower.precision == "auto" and tower.name != "hub":
            tower.precision = "mixed_bfloat16"
    return config
