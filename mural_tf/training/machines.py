"""Machines to train on, by name: their replicas, memory, peaks and hosts, for forecasts.

Numbers are of one replica, which TensorFlow calls a core: a TensorCore of a v3, a chip of all later TPUs (v4 and v5p
join two TensorCores to one logical core), a GPU. They are published ones, none was measured:

    TPUs   cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e: peak, memory and its bandwidth; the exchange is the pod's
           all-reduce bandwidth divided by its chips, of v5p the bandwidth between chips. Processors: of one TPU VM
    GPUs   NVIDIA's data sheets: dense bfloat16 on tensor cores (none before A100), float32 without TensorFloat-32,
           NVLink or PCIe in both directions. Processors: of Google Cloud's machines with this card
"""

from __future__ import annotations

import dataclasses
import math
import os
import re

import tensorflow as tf

from mural_tf.errors import UserError
from mural_tf.training.workdir import threads

TERA, GIGA = 1e12, 1e9
FLOAT32_PASSES = 6  # bfloat16 products that a TPU makes of one in float32
SLICES = (1, 4, 8, 16, 32, 64, 128, 256)  # chips of a v5litepod or v6e


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a run may use. Sizes are of one replica, in bytes, and bytes or operations a second.

    name: as it is asked for.
    replicas: over all hosts.
    hosts, processors: hosts, and the processors of each.
    memory: bytes; infinite where it is not known, of GPUs in this machine.
    peak: {dtype of products: operations a second}; empty where it is to be measured.
    bandwidth: of its memory.
    exchange: with other replicas.
    is_tpu: whether XLA compiles whole steps.
    """

    name: str
    replicas: int
    hosts: int
    processors: int
    memory: float
    peak: dict[str, float]
    bandwidth: float = 0.0
    exchange: float = 0.0
    is_tpu: bool = False


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Of one replica; the last three: replicas and processors of a host, and replicas for each unit in the name."""

    bfloat16: float
    float32: float
    memory: float
    bandwidth: float
    exchange: float
    per_host: int
    processors: int
    per_unit: float = 1.0


def _tpu(peak: float, *others) -> _Kind:
    return _Kind(peak, peak / FLOAT32_PASSES, *others)


TPUS = {
    "v3": _tpu(61.5 * TERA, 16 * 2**30, 450 * GIGA, 166 * GIGA, 8, 96),
    "v4": _tpu(275 * TERA, 32 * 2**30, 1200 * GIGA, 268 * GIGA, 4, 240, 0.5),
    "v5litepod": _tpu(197 * TERA, 16 * GIGA, 819 * GIGA, 200 * GIGA, 4, 112),
    "v5p": _tpu(459 * TERA, 95 * GIGA, 2765 * GIGA, 600 * GIGA, 4, 208, 0.5),
    "v6e": _tpu(918 * TERA, 32 * GIGA, 1638 * GIGA, 400 * GIGA, 4, 180),
}
GPUS = {
    "t4": _Kind(8.1 * TERA, 8.1 * TERA, 16 * GIGA, 320 * GIGA, 32 * GIGA, 4, 96),
    "v100": _Kind(15.7 * TERA, 15.7 * TERA, 16 * GIGA, 900 * GIGA, 300 * GIGA, 8, 96),
    "l4": _Kind(121 * TERA, 30.3 * TERA, 24 * GIGA, 300 * GIGA, 64 * GIGA, 8, 96),
    "a100": _Kind(312 * TERA, 19.5 * TERA, 40 * GIGA, 1555 * GIGA, 600 * GIGA, 8, 96),
    "a100-80": _Kind(312 * TERA, 19.5 * TERA, 80 * GIGA, 2039 * GIGA, 600 * GIGA, 8, 96),
    "h100": _Kind(989 * TERA, 67 * TERA, 80 * GIGA, 3350 * GIGA, 900 * GIGA, 8, 208),
}
ONE_HOST = {"v5litepod": {1: 24, 4: 112, 8: 224}, "v6e": {1: 44, 4: 180, 8: 180}}  # processors of VMs of so many chips
HERE = "here"
BEFORE_BFLOAT16 = ("t4", "v100")


def find_machine(name: str) -> Machine:
    """Returns the machine of a name: "v4-32", "v5litepod-64", "gpu:a100x8", "here"; raises `UserError` for others."""
    if name == HERE:
        return _this_one()
    tpu = re.fullmatch(r"([a-z0-9]+)-(\d+)", name)
    if tpu and tpu[1] in TPUS and _is_slice(tpu[1], int(tpu[2])):
        kind = TPUS[tpu[1]]
        machine = _machine(name, kind, int(int(tpu[2]) * kind.per_unit), is_tpu=True)
        alone = ONE_HOST.get(tpu[1], {}).get(machine.replicas)
        return dataclasses.replace(machine, hosts=1, processors=alone) if alone else machine
    gpu = re.fullmatch(r"gpu:([a-z0-9-]+?)(?:x(\d+))?", name)
    if gpu and gpu[1] in GPUS and int(gpu[2] or 1) > 0:
        return _machine(name, GPUS[gpu[1]], int(gpu[2] or 1))
    raise UserError(
        f"Unknown --tpu_type={name}: expected {HERE}; a TPU's type and size as Google Cloud names it, of "
        f"{', '.join(TPUS)}, such as v4-32 or v5litepod-64 (v3, v4, v5p: multiples of 8; v5litepod, v6e: "
        f"{', '.join(map(str, SLICES))}); or gpu:NAMExNUMBER of {', '.join(GPUS)}, such as gpu:a100x8."
    )


def _is_slice(kind: str, size: int) -> bool:
    return size in SLICES if kind in ("v5litepod", "v6e") else size > 0 and size % 8 == 0


def _machine(name: str, kind: _Kind, replicas: int, is_tpu: bool = False) -> Machine:
    hosts = -(-replicas // kind.per_host)
    peak = {"bfloat16": kind.bfloat16, "float32": kind.float32}
    return Machine(name, replicas, hosts, kind.processors, kind.memory, peak, kind.bandwidth, kind.exchange, is_tpu)


def _this_one() -> Machine:
    cards = len(tf.config.list_logical_devices("GPU"))
    memory = math.inf if cards else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(HERE, max(cards, 1), 1, threads(), memory, {})
