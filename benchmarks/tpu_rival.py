"""MURAL-base's training step and the same model as a plain Keras 3 program on JAX, compiled for the same TPU.

    python -m benchmarks.tpu_rival --tpu=v4-8 --pairs=16 --parts      # with the extra [tpu_compiler]; no TPU is needed

Each step takes one replica's part of a batch: `--pairs` images, as many captions and as many text pairs. Ours is
configs/mural_base.py as a run with `--tpu` has it; `benchmarks/keras_rival.py` is the other program, and says what our
step does besides. Both are lowered to HLO, the rival in a process of its own, and compiled by the TPU's own compiler
with the same options (`mural_tf/training/tpu_forecast.py`). Cycles are the compiler's forecast: no device ran them.

A fusion has one kind and one part, though it may do more: JAX' random numbers are drawn within the fusions that use
them, and LAMB's norms are often computed in the product that gives a gradient, which counts for its tower.
A compilation of the full model takes ten minutes and up to 20 GB of memory; figures are cached. With `--parts` cycles
are also listed by kind of operation and by part of the step. They are read in the optimised programs, which `--texts`
keeps in a folder, so that a program that is there is not compiled again. `--small` tries everything on EfficientNet-B0
at 64 pixels, two layers of BERT and 1,000 pieces.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from mural_lite.errors import UserError
from mural_tf.training.tpu_forecast import ENVIRONMENT, CompiledStep, compile_step, has_compiler, missing_compiler
from mural_tf.training.tpu_program import Instruction, Program
from mural_tf.training.tpu_slices import Slice, find_slice

SIDES = ("ours", "rival")
FIGURES = {
    "cycles": lambda step: step.cycles,
    "temporary, MB": lambda step: step.temporary / 1e6,
    "arguments, MB": lambda step: step.arguments / 1e6,
    "program, MB": lambda step: step.program / 1e6,
    "GFLOP": lambda step: step.flops / 1e9,
    "operations": lambda step: step.operations,
}
# Names of operations in TensorFlow's and in JAX' random numbers.
DRAWS = re.compile("stateless_random|random_bits|threefry|random_uniform|bernoulli|shuffle")
PARTS = {"image_encoder": "image tower", "text_encoder": "text tower", "LAMB/": "optimiser", "optimizer/": "optimiser"}
PASSIVE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element"}  # opcodes that move and compute nothing
LAYOUT = {"copy", "copy-start", "copy-done", "transpose", "reshape"}
PRODUCTS = {"convolution", "dot"}
KINDS = (  # the first kind of which a fusion has an operation
    ("gathers and scatters", {"gather", "scatter"}),
    ("reductions", {"reduce", "reduce-window", "all-reduce"}),
    ("slices, pads and joins", {"slice", "dynamic-slice", "dynamic-update-slice", "pad", "concatenate"}),
)


def check_packages() -> None:
    """Raises `UserError` where the compiler or Keras 3 is missing."""
    if not has_compiler():
        raise UserError(missing_compiler())
    if importlib.util.find_spec("keras") is None or importlib.metadata.version("keras").startswith("2."):
        raise UserError("The rival is a Keras 3 program on JAX, and Keras 3 is not here: pip install 'keras>=3'.")


def lower_ours(pairs: int, small: bool) -> bytes:
    """Returns the serialized HLO module of our step on `pairs` images and as many text pairs.

    `small` is whether a small model takes the place of MURAL-base.
    """
    from mural_tf.configs.mural_base import get_config  # TensorFlow: seconds that `--help` need not wait for
    from mural_tf.training.tpu_forecast import as_on_tpu
    from mural_tf.training.tpu_lowering import lower_step

    config = get_config()
    if small:
        config.image_tower.update(dict(width=1.0, depth=1.0, image_size=64))
        config.text_tower.layers = 2
        config.vocabulary.size = 1_000
        config.embedding_size = 320
    return lower_step(as_on_tpu(config), config.vocabulary.size, pairs)


def lower_rival(pairs: int, small: bool) -> bytes:
    """Returns the serialized HLO module of the rival's step, which a process without TensorFlow lowers.

    For the arguments see `lower_ours`. Raises `UserError` if that process fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        module = pathlib.Path(folder, "rival.hlo")
        size = "small" if small else "base"
        arguments = [str(module), f"--pairs={pairs}", f"--size={size}"]
        command = [sys.executable, "-m", "benchmarks.keras_rival", *arguments]
        finished = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, stderr=subprocess.PIPE, text=True)
        if finished.returncode:
            last_line = finished.stderr.strip().rpartition("\n")[2]
            raise UserError(f"The rival ended with exit code {finished.returncode}: {last_line}")
        return module.read_bytes()


def compile_side(
    module: bytes, slice_: Slice, texts: pathlib.Path, side: str, needs_text: bool
) -> tuple[CompiledStep, Program | None]:
    """Returns (the compiler's figures, the optimised program); the program is `None` unless `needs_text`.

    Args:
      module: the serialized HLO module of a side's step.
      slice_: the slice to compile for.
      texts: the folder that keeps optimised programs; a program that is there is read, and not written again.
      side: one of SIDES, for the file's name.
      needs_text: whether the optimised program is returned, too.
    """
    if not needs_text:
        return compile_step(module, slice_), None
    version = importlib.metadata.version("libtpu")
    digest = hashlib.sha256(module).hexdigest()[:12]
    text = texts / f"{side}-{slice_.topology.replace(':', '-')}-libtpu{version}-{digest}.txt"
    text_file = "" if text.exists() else str(text)  # "": none is written
    step = compile_step(module, slice_, text_file)
    return step, Program(text.read_text(encoding="utf-8"))


def part(instruction: Instruction) -> str:
    """Returns the part of the step that an operation belongs to, a name in `PARTS` or "rest"."""
    for mark, name in PARTS.items():
        if mark in instruction.place:
            return name
    return "rest"


def opcodes_within(instruction: Instruction, program: Program) -> set[str]:
    """Returns the opcode of an operation, or all opcodes within a fusion, except `PASSIVE` opcodes."""
    callees = [callee for name in instruction.called("calls") for callee in program.computations[name]]
    if not callees:
        return {instruction.opcode} - PASSIVE
    opcodes = set()
    for callee in callees:
        opcodes |= opcodes_within(callee, program)
    return opcodes


def kind(instruction: Instruction, program: Program) -> str:
    """Returns the kind of an operation that runs by itself, "products" or "copies that change a layout" say.

    A fusion has the kind of the most telling operation within it.
    """
    opcodes = opcodes_within(instruction, program)
    is_drawn = "xor" in opcodes  # by which Philox and Threefry draw random bits
    if opcodes & PRODUCTS:
        return "products with random numbers" if is_drawn else "products"
    # In both programs only random bits are unsigned, so a copy of such an array is a part of drawing.
    if is_drawn or DRAWS.search(instruction.place) or instruction.shape.startswith("u32["):
        return "random numbers"
    if opcodes <= LAYOUT:
        return "copies that change a layout"
    if opcodes <= {"broadcast", "iota", *LAYOUT}:
        return "broadcasts"
    if opcodes <= {"convert", *LAYOUT}:
        return "conversions of type"
    for name, members in KINDS:
        if opcodes & members:
            return name
    return "element by element"


def table(title: str, rows: dict[str, dict[str, float]], sides: list[str]) -> str:
    """Returns a table as text: a line for each row, with a column for each side and, if there are two, for their ratio.

    Args:
      title: the title of the first column.
      rows: {name of a row: {side: number}}; a side that is missing has 0.
      sides: the sides, in the order of their columns.
    """
    width = max(len(name) for name in [title, *rows])
    lines = [f"{title:<{width}}" + "".join(f"{side:>15}" for side in sides)]
    if len(sides) == 2:
        lines[0] += f"{' / '.join(sides):>15}"
    for name, values in rows.items():
        numbers = [values.get(side, 0) for side in sides]
        line = f"{name:<{width}}" + "".join(f"{number:>15,.0f}" for number in numbers)
        if len(sides) == 2:
            ratio = f"{numbers[0] / numbers[1]:.2f}" if numbers[1] else "-"
            line += f"{ratio:>15}"
        lines.append(line)
    return "\n".join(lines)


def figures(steps: dict[str, CompiledStep]) -> dict[str, dict[str, float]]:
    """Returns {name in `FIGURES`: {side: number}} of the sides' compiled steps."""
    rows = {}
    for name, read_figure in FIGURES.items():
        rows[name] = {side: read_figure(step) for side, step in steps.items()}
    return rows


def cycles_by(programs: dict[str, Program], key) -> dict[str, dict[str, float]]:
    """Returns {name of a kind or part: {side: cycles}}, the largest cycles first.

    Args:
      programs: {side: its optimised program}.
      key: a function (operation, its program) -> name of the kind or part to which the operation's cycles count.
    """

    def cycles_of(program: Program) -> dict[str, int]:
        """Returns {name: cycles} of a program."""
        return program.cycles_by(lambda operation: key(operation, program))

    rows: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for side, program in programs.items():
        for name, cycles in cycles_of(program).items():
            rows[name][side] = cycles
    names = sorted(rows, key=lambda name: -max(rows[name].values()))
    return {name: rows[name] for name in names}


def compare(arguments: argparse.Namespace, texts: pathlib.Path) -> None:
    """Lowers and compiles the sides that the command line names, and prints the tables.

    `texts`: the folder that keeps optimised programs. Raises `UserError` for a wrong argument or a failure.
    """
    slice_ = dataclasses.replace(find_slice(arguments.tpu), replicas=1)  # each step is of one replica
    sides = [side for side in SIDES if side in arguments.sides.split(",")]
    if not sides or arguments.pairs < 2:
        raise UserError("--sides takes ours, rival or both with a comma, and --pairs is 2 or more.")
    steps = {}
    programs = {}
    for side in sides:
        lower = {"ours": lower_ours, "rival": lower_rival}[side]
        module = lower(arguments.pairs, arguments.small)
        steps[side], programs[side] = compile_side(module, slice_, texts, side, arguments.parts)
    size = "a small trial" if arguments.small else "MURAL-base"
    print(f"{size}, one replica of {slice_.topology}, {arguments.pairs} images and {arguments.pairs} text pairs\n")
    print(table("", figures(steps), sides))
    if arguments.parts:
        print()
        print(table("cycles by kind", cycles_by(programs, kind), sides))
        print()
        print(table("cycles by part", cycles_by(programs, lambda operation, program: part(operation)), sides))


def main() -> None:
    """Compares the sides; a `UserError` ends the process with its message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tpu", default="v4-8", help="a slice as Google Cloud names it; one replica of it")
    parser.add_argument("--pairs", type=int, default=16, help="images with captions, and text pairs")
    parser.add_argument("--sides", default="ours,rival")
    parser.add_argument("--parts", action="store_true", help="also cycles by kind of operation and by part")
    parser.add_argument("--texts", type=pathlib.Path, help="folder that keeps the optimised programs of --parts")
    parser.add_argument("--small", action="store_true", help="a trial with a small model")
    arguments = parser.parse_args()
    try:
        check_packages()
        if arguments.texts:
            arguments.texts.mkdir(parents=True, exist_ok=True)
            compare(arguments, arguments.texts)
        else:
            with tempfile.TemporaryDirectory() as folder:
                compare(arguments, pathlib.Path(folder))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
