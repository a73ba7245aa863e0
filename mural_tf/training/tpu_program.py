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
import json
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
    """One operation of a computation; shape and rest are the compiler's text."""

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
    """

    def __init__(self, text: str):
        self.header = text.split("\n", 1)[0]
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current: list[Instruction] = []
        for line in text.splitlines():
            start = _COMPUTATION.match(line)
            if start:
                current = self.computations.setdefault(start[2], [])
                self.entry = start[2] if start[1] else self.entry
                continue
            match = _INSTRUCTION.match(line)
            if match:
                current.append(Instruction(*match.groups()))

    def scheduled(self) -> Iterator[tuple[Instruction, int]]:
        """Yields each operation that runs by itself, and how often it runs in a step."""
        yield from self._scheduled(self.entry, 1)

    def _scheduled(self, computation: str, turns: int) -> Iterator[tuple[Instruction, int]]:
        """Yields (operation, how often it runs) of a computation that itself runs `turns` times."""
        for instruction in self.computations.get(computation, ()):
            yield instruction, turns
            if instruction.opcode == "while":
                for body in instruction.called("body") + instruction.called("condition"):
                    yield from self._scheduled(body, turns * trip_count(instruction))
            elif instruction.opcode == "conditional":
                branches = instruction.called("branch_computations")
                branches = branches or instruction.called("true_computation") + instruction.called("false_computation")
                yield from self._scheduled(max(branches, key=self._cycles_of), turns)
            elif instruction.opcode == "call":
                for callee in instruction.called("to_apply"):
                    yield from self._scheduled(callee, turns)

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
        """Returns the operations with the most cycles, {"name", "place", "shape", "cycles": of all turns} each."""
        rows = []
        for operation, turns in self.scheduled():
            shape = _without_layout(operation.shape)
            cycles = operation.cycles * turns
            rows.append(dict(name=operation.name, place=operation.place, shape=shape, cycles=cycles))
        return sorted(rows, key=lambda row: -row["cycles"])[:count]

    def cycles_by(self, key) -> collections.Counter[str]:
        """Returns {key(operation): cycles of all turns}."""
        counts: collections.Counter[str] = collections.Counter()
        for instruction, turns in self.scheduled():
            counts[key(instruction)] += instruction.cycles * turns
        return counts

    def collectives(self) -> dict[str, dict[str, int]]:
        """Returns {kind: {"count": per step, "bytes": per step and replica}}."""
        transfers: dict[str, dict[str, int]] = {}
        for instruction, turns in self.scheduled():
            opcode = instruction.opcode.removesuffix("-start")
            if opcode in COLLECTIVES:
                total = transfers.setdefault(opcode, {"count": 0, "bytes": 0})
                total["count"] += turns
                total["bytes"] += turns * instruction.bytes
        return transfers

    def refused_features(self) -> list[str]:
        """Returns features that a training step must not have: transfers to the host, sizes known late, float64."""
        instructions = list(itertools.chain(*self.computations.values()))
        refused = [f"{i.opcode} {i.name}" for i in instructions if i.opcode.removesuffix("-done") in HOST_TRANSFERS]
        refused += [f"dynamic size: {i.name}" for i in instructions if "<=" in i.shape]
        return refused + [f"float64: {i.name}" for i in instructions if "f64[" in i.shape]

    def products(self) -> list[tuple[str, str, str]]:
        """Returns (place, type of the factors, precision) of each product and convolution, also of fused products."""
        products = []
        for computation in self.computations.values():
            types = {i.name: _ARRAY.search(i.shape) for i in computation}
            for instruction in computation:
                if instruction.opcode not in ("dot", "convolution"):
                    continue
                operands = instruction.rest.partition(")")[0]
                factors = [types.get(name) for name in _OPERANDS.findall(operands)]
                factor_types = [factor[1] for factor in factors if factor]
                match = re.search(r"operand_precision=\{(\w+)", instruction.rest)
                precision = match[1] if match else "default"
                products.append((instruction.place, "x".join(factor_types), precision))
        return products

    def donated(self) -> set[int]:
        """Returns the numbers of the arguments whose memory an output takes over."""
        aliases = self.header.partition("input_output_alias={ ")[2]
        return {int(number) for number in re.findall(r"\{\d*\}: \((\d+), ", aliases)}


def trip_count(loop: Instruction) -> int:
    """Returns how often a `while` turns; 1 where the compiler does not know."""
    return _known_trips(loop) or 1


def _known_trips(loop: Instruction) -> int | None:
    """Returns how often a `while` turns, `None` if the compiler does not know."""
    match = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest)
    return int(match[1]) if match else None


def _array_bytes(dtype: str, sizes: str) -> int:
    """Returns the size of an array, whose `sizes` are text such as "8,<=16"."""
    count = 1
    for size in filter(None, sizes.replace("<=", "").split(",")):
        count *= int(size)
    return count * BYTES.get(dtype, 4)


def _without_layout(shape: str) -> str:
    return re.sub(r"\{[^}]*\}", "", shape)


def facts(text: str) -> dict:
    """Returns the facts of a program that `training/tpu_forecast.py` prints, as JSON holds them."""
    program = Program(text)
    by_part = program.cycles_by(lambda instruction: part_of_step(instruction.place))
    return json.loads(json.dumps({
        "cycles": program.cycles,
        "unknown_loops": program.unknown_loops(),
        "operations": sum(instruction.cycles > 0 for instruction, _ in program.scheduled()),
        "cycles_by_part": dict(by_part.most_common()),
        "most_expensive": program.most_expensive(10),
        "collectives": program.collectives(),
        "refused_features": program.refused_features(),
    }))  # fmt: skip


def part_of_step(layer: str) -> str:
    """Returns the part of a step that a layer or operation belongs to, as `models/step.py` names it; or the rest."""
    for part in ("image_encoder", "text_encoder", "losses", "gradient_norms", "optimizer"):
        if part in layer:
            return f"{part}, backward" if "gradient_tape" in layer else part
    return "the rest"
