"""Cloud TPU slices by the names that Google Cloud gives them: v3-128, v4-32, v5litepod-64, v5p-8, v6e-8.

Shapes of slices, and a chip's memory and peak, are Google Cloud's published figures. A replica is a core of a v3, and
a chip of all later generations: the two cores of a v4's or v5p's chip work as one device. A core's clock follows from
the peak: a v4's chip multiplies on eight units of 128 x 128 at 1.05 GHz, which is 275 TFLOP/s.
"""

from __future__ import annotations

import dataclasses
import re

from mural_lite.errors import UserError

GIB = 1024**3


@dataclasses.dataclass(frozen=True)
class Generation:
    """The figures of one replica.

    Attributes:
      topology: the compiler's name of the generation.
      cores_in_name: how many units of Google Cloud's number make a replica: v4-32 has 32 cores, two per replica.
      peak: published operations per second in bfloat16.
      memory: bytes of its memory.
      clock: cycles per second.
      shapes: {chips of a slice: its shape}.
    """

    topology: str
    cores_in_name: int
    peak: float
    memory: float
    clock: float
    shapes: dict[int, str]

    @property
    def chips_per_replica(self) -> float:
        """How many chips a replica has: half a chip where each of its two cores is a replica."""
        return 0.5 if self.topology == "v3" else 1.0


CUBES = {
    4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8",
    1024: "8x8x16", 2048: "8x16x16",
}  # fmt: skip
SQUARES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
SQUARES_V3 = {4: "2x2", 16: "4x4", 64: "8x8", 128: "8x16", 256: "16x16", 512: "16x32", 1024: "32x32"}
GENERATIONS = {
    "v3": Generation("v3", 1, 61.5e12, 16 * GIB, 0.94e9, SQUARES_V3),
    "v4": Generation("v4", 2, 275e12, 32 * GIB, 1.05e9, CUBES),
    "v5litepod": Generation("v5e", 1, 197e12, 16 * GIB, 1.5e9, SQUARES),
    "v5p": Generation("v5p", 2, 459e12, 95 * GIB, 1.75e9, CUBES),
    "v6e": Generation("v6e", 1, 918e12, 32 * GIB, 1.75e9, SQUARES),
}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A slice of TPUs: its name, how many replicas train on it, the compiler's name of its shape, its generation."""

    name: str
    replicas: int
    topology: str
    generation: Generation


def find_slice(name: str) -> Slice:
    """Returns the slice that Google Cloud calls `name`; raises `UserError` for a name or a size that it does not have.

    The smallest slices of v3, v4 and v5p are hosts of four chips: v3-8, v4-8 and v5p-8.
    """
    match = re.fullmatch(r"([a-z0-9]+)-([1-9]\d*)", name)
    generation = GENERATIONS.get(match[1]) if match else None
    if generation is None:
        raise UserError(
            f"Unknown --tpu={name} of a dry run: expected a TPU's type and size as Google Cloud names it, such as "
            f"v4-32, of {', '.join(GENERATIONS)}."
        )
    size = int(match[2])
    size_per_chip = generation.cores_in_name / generation.chips_per_replica  # in Google Cloud's units
    shapes = {round(chips * size_per_chip): shape for chips, shape in generation.shapes.items()}
    if size not in shapes:
        names = ", ".join(f"{match[1]}-{known_size}" for known_size in shapes)
        raise UserError(f"Unknown --tpu={name} of a dry run: the slices of a {match[1]} are {names}.")
    replicas = size // generation.cores_in_name
    return Slice(name, replicas, f"{generation.topology}:{shapes[size]}", generation)
