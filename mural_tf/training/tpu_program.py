"""Facts of a program, read from the text of a TPU's compiler: cycles, collectives, precisions, refused features.

The compiler writes a forecast, `estimated_cycles`, to most operations. A loop's operations count as often as it turns
(`known_trip_count`), and of a condition's branches the most expensive one counts. The forecast knows nothing of
transfers between chips: bytes of collectives are listed apart.

No TensorFlow and no jax: text in, numbers out.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
HOST_TRANSFERS = ("infeed", "outfeed", "send", "recv")
# Bytes of a number, by its type; numbers of all other types have 4.
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^ *(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+)\[([\d,<=]*)\]")
_OPERANDS = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One operation of a computation; `shape` and `rest`, its operands and attributes, are the compiler's text."""

    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def cycles(self) -> int:
        """The forecast of one turn; 0 where the compiler says nothing."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
        return int(match[1]) if match else 0

    @property
    def place(self) -> str:
        """The layer or operation of our step that it comes from, as TensorFlow names it; "" where it is not known."""
        match = re.search(r'op_name="([^"]*)"', self.rest)
        return match[1] if match else ""

    @property
    def bytes(self) -> int:
        """The size of its output."""
        return sum(_array_bytes(dtype, sizes) for dtype, sizes in _ARRAY.findall(self.shape))

    def called(self, attribute: str) -> list[str]:
        """Returns the names of the computations in an attribute: one name, or several in braces."""
        match = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%[\w.\-]+)", self.rest)
        return _OPERANDS.findall(match[1]) if match else []


class Program:
    """A compiled program.

    Args:
      text: as `HloModule.to_string()` of an optimised module.

    Attributes:
      computations: {name: its operations in order}.
      entry: the name of the computation that runs first.
    """

    def __init__(self, text: str):
        self.computations = {}
        self.entry = ""
        current = []
        for line in text.splitlines():
            start = _COMPUTATION.match(line)
            instruction = _INSTRUCTION.match(line)
            if start:
                is_entry, name = start.groups()
                current = self.computations.setdefault(name, [])
                if is_entry:
                    self.entry = name
            elif instruction:
                current.append(Instruction(*instruction.groups()))

    def scheduled(self) -> Iterator[tuple[Instruction, int]]:
        """Yields each operation that runs by itself, and how often it runs in a step."""
        yield from self._scheduled(self.entry, 1)

    def _scheduled(self, computation: str, turns: int) -> Iterator[tuple[Instruction, int]]:
        """Yields (operation, how often it runs) of a computation that itself runs `turns` times."""
        for instruction in self.computations.get(computation, ()):
            yield instruction, turns
            callees = []
            turns_of_callees = turns
            if instruction.opcode == "while":
                callees = instruction.called("body") + instruction.called("condition")
                turns_of_callees = turns * trip_count(instruction)
            elif instruction.opcode == "conditional":
                callees = [max(_branches(instruction), key=self._cycles_of)]
            elif instruction.opcode == "call":
                callees = instruction.called("to_apply")
            for callee in callees:
                yield from self._scheduled(callee, turns_of_callees)

    def _cycles_of(self, computation: str) -> int:
        """Returns the forecast of one run of a computation."""
        return sum(instruction.cycles * turns for instruction, turns in self._scheduled(computation, 1))

    @property
    def cycles(self) -> int:
        """The forecast of a step."""
        return self._cycles_of(self.entry)

    def unknown_loops(self) -> int:
        """Returns how many loops' turns the compiler does not know: they count once, so the forecast is too low."""
        loops = [operation for operation, _ in self.scheduled() if operation.opcode == "while"]
        return sum(_known_trips(loop) is None for loop in loops)

    def most_expensive(self, count: int) -> list[dict]:
        """Returns the `count` operations with the most cycles of all turns together, the most first.

        Each is {"name", "place", "shape", "cycles"}.
        """
        rows = []
        for operation, turns in self.scheduled():
            shape = _without_layout(operation.shape)
            cycles = operation.cycles * turns
            rows.append(dict(name=operation.name, place=operation.place, shape=shape, cycles=cycles))
        return sorted(rows, key=lambda row: -row["cycles"])[:count]

    def cycles_by(self, key) -> collections.Counter[str]:
        """Returns {key(operation): cycles of all turns}, where `key` returns an operation's group, such as its part."""
        counts = collections.Counter()
        for instruction, turns in self.scheduled():
            counts[key(instruction)] += instruction.cycles * turns
        return counts

    def collectives(self) -> dict[str, dict[str, int]]:
        """Returns {one of `COLLECTIVES`: {"count": per step, "bytes": per step and replica}}."""
        transfers = {}
        for instruction, turns in self.scheduled():
            opcode = instruction.opcode.removesuffix("-start")
            if opcode in COLLECTIVES:
                total = transfers.setdefault(opcode, {"count": 0, "bytes": 0})
                total["count"] += turns
                total["bytes"] += turns * instruction.bytes
        return transfers

    def refused_features(self) -> list[str]:
        """Returns features that a training step must not have: transfers to the host, sizes known late, float64."""
        transfers = []
        dynamic_sizes = []
        doubles = []
        for instruction in itertools.chain.from_iterable(self.computations.values()):
            if instruction.opcode.removesuffix("-done") in HOST_TRANSFERS:
                transfers.append(f"{instruction.opcode} {instruction.name}")
            if "<=" in instruction.shape:
                dynamic_sizes.append(f"dynamic size: {instruction.name}")
            if "f64[" in instruction.shape:
                doubles.append(f"float64: {instruction.name}")
        return transfers + dynamic_sizes + doubles


def _branches(condition: Instruction) -> list[str]:
    """Returns the names of the computations among which a `conditional` chooses, by a number or by a boolean."""
    numbered = condition.called("branch_computations")
    return numbered or condition.called("true_computation") + condition.called("false_computation")


def trip_count(loop: Instruction) -> int:
    """Returns how often a `while` turns; 1 where the compiler does not know."""
    return _known_trips(loop) or 1


def _known_trips(loop: Instruction) -> int | None:
    """Returns how often a `while` turns, `None` if the compiler does not know."""
    match = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest)
    return int(match[1]) if match else None


def _array_bytes(dtype: str, sizes: str) -> int:
    """Returns the bytes of an array, whose `sizes` are text such as "8,<=16", or "" for a scalar."""
    count = 1
    if sizes:
        count = math.prod(int(size.removeprefix("<=")) for size in sizes.split(","))
    return count * BYTES.get(dtype, 4)


def _without_layout(shape: str) -> str:
    """Returns a shape without its layout in braces: "f32[8,4]{1,0}" becomes "f32[8,4]"."""
    return re.sub(r"\{[^}]*\}", "", shape)


def facts(text: str) -> dict:
    """Returns the facts of a program that `training/tpu_forecast.py` prints, as JSON holds them."""
    program = Program(text)
    by_part = program.cycles_by(lambda instruction: part_of_step(instruction.place))
    return {
        "cycles": program.cycles,
        "unknown_loops": program.unknown_loops(),
        "operations": sum(instruction.cycles > 0 for instruction, _ in program.scheduled()),
        "cycles_by_part": dict(by_part.most_common()),
        "most_expensive": program.most_expensive(10),
        "collectives": program.collectives(),
        "refused_features": program.refused_features(),
    }


def part_of_step(layer: str) -> str:
    """Returns the part of a step that a layer or operation belongs to, such as "losses, backward", or "the rest".

    Args:
      layer: TensorFlow's name of it, which holds a part's name from `models/step.py`.
    """
    for part in ("image_encoder", "text_encoder", "losses", "gradient_norms", "optimizer"):
        if part not in layer:
            continue
        if "gradient_tape" in layer:
            return f"{part}, backward"
        return part
    return "the rest"
