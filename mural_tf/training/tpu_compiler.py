"""A program of its own: compiles an HLO module for a slice of TPUs by their own compiler, without any TPU.

    python -m mural_tf.training.tpu_compiler STEP.hlo RESULT.json v4:2x2x4 16

`libtpu`, which holds the compiler, and jax, which calls it, stay out of the process that trains: the extra
`[tpu_compiler]`. It ends when its standard input does, so that it never outlives the process that started it.
`training/tpu_forecast.py` starts it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import pathlib
import resource
import shutil
import sys
import threading
import time

import jax.experimental.topologies
import numpy as np
from jax._src import compiler  # options and devices by number: jax has no public way to compile a given module
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from mural_tf.training.tpu_program import facts

# The two cores of a chip as one device, as TPUStrategy has them.
CHIPS = {"v4": {"chip_config_name": "megacore"}}


def read_module(path: pathlib.Path, draws_as_on_tpu: bool = True):
    """Returns the StableHLO module of a serialized HLO module, as the compiler of TPUs takes it.

    Args:
      path: the file of the serialized module.
      draws_as_on_tpu: replace the random numbers' generator by the TPU's own; False keeps a CPU's numbers.
    """
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(path.read_bytes()))
        for copy in _operations(module, "mhlo.copy"):  # of results, by TensorFlow; the compiler does not know it
            copy.results[0].replace_all_uses_with(copy.operands[0])
            copy.erase()
        if draws_as_on_tpu:
            for draw in _operations(module, "stablehlo.rng_bit_generator"):
                _draw_as_on_tpu(draw)
    return module


def _operations(module, name: str) -> list:
    """Returns the operations of a module that have a name, as a list: replacing them then disturbs no walk."""
    operations = []

    def visit(operation):
        if operation.name == name:
            operations.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return operations


def _draw_as_on_tpu(draw) -> None:
    """Replaces the random numbers' generator that TensorFlow chose for this CPU, Philox, by a TPU's own.

    TensorFlow does so, too, where it lowers for a TPU. The TPU's state is a key and one counter, Philox's has two.
    """
    philox_state = draw.operands[0]
    number_type = ir.RankedTensorType(philox_state.type).element_type
    with ir.InsertionPoint(draw):
        replacement = stablehlo.RngBitGeneratorOp(
            ir.RankedTensorType.get([2], number_type),
            draw.results[1].type,
            ir.Attribute.parse("#stablehlo<rng_algorithm DEFAULT>"),
            _slice(philox_state, 0, 2),
        )
        new_state, values = replacement.results
        second_counter = _slice(philox_state, 2, 3)
        state = stablehlo.ConcatenateOp([new_state, second_counter], 0).result
    draw.results[0].replace_all_uses_with(state)
    draw.results[1].replace_all_uses_with(values)
    draw.erase()


def _slice(values, start: int, limit: int):
    """Returns the operation that takes values [start, limit) of a vector."""
    start, limit, step = (ir.DenseI64ArrayAttr.get([number]) for number in (start, limit, 1))
    return stablehlo.SliceOp(values, start, limit, step).result


def compile_module(module, topology: str, replicas: int):
    """Returns jax's executable of a module for the first `replicas` devices of a topology, such as "v5e:2x2"."""
    chip = CHIPS.get(topology.partition(":")[0], {})
    description = jax.experimental.topologies.get_topology_desc(platform="tpu", topology_name=topology, **chip)
    devices = description.devices[:replicas]
    device_ids = np.array([[device.id] for device in devices])  # [replicas, partitions]
    options = compiler.get_compile_options(num_replicas=replicas, num_partitions=1, device_assignment=device_ids)
    return devices[0].client.compile(module, xla_client.DeviceList(tuple(devices)), options)


def describe(executable) -> dict:
    """Returns the compiler's figures of an executable: {name: bytes}, "flops", and `tpu_program.facts` of its text."""
    memory = executable.get_compiled_memory_stats()
    text = executable.hlo_modules()[0].to_string()
    return {
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
        "flops": executable.cost_analysis()["flops"],
        **facts(text),
    }


def _end_with_standard_input() -> None:
    """Ends this process when the process that started it closes its input, or ends."""
    sys.stdin.read()
    os._exit(1)


def compile_for(module, topology: str, replicas: int, text_path: pathlib.Path | None) -> dict:
    """Compiles a module and returns its figures, time and memory included, or {"refused": the compiler's own words}.

    Args:
      module: a StableHLO module.
      topology: the slice's shape, such as "v5e:2x2".
      replicas: how many of the slice's devices run the module.
      text_path: where the optimised program's text is written; `None`: nowhere.
    """
    begun = time.monotonic()
    try:
        executable = compile_module(module, topology, replicas)
    except (RuntimeError, ValueError) as error:
        return {"refused": str(error)}
    if text_path is not None:
        text_path.write_text(executable.hlo_modules()[0].to_string(), encoding="utf-8")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    return {**describe(executable), "seconds": time.monotonic() - begun, "peak_bytes": peak}


def cache_file(module, topology: str, replicas: int) -> pathlib.Path:
    """Returns the path of the kept answer for a module, by a hash of its text, the versions and this code.

    The hash is of the text because the bytes of equal modules differ between processes.
    """
    versions = [importlib.metadata.version(name) for name in ("jax", "libtpu")]
    folder = pathlib.Path(__file__).parent
    sources = [(folder / name).read_text() for name in ("tpu_program.py", "tpu_compiler.py")]
    parts = [str(module), topology, str(replicas), *versions, *sources]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "mural_tf" / "tpu_compiler" / f"{digest[:32]}.json"


def main(arguments: list[str]) -> None:
    """Writes the compiler's answer, which may be cached, to the file of results, and ends the process.

    Args:
      arguments: module file, result file, topology, replicas and, if the program's text is wanted, a file for it.
    """
    module_path, result_path, topology, replicas = arguments[:4]
    text_path = None
    if len(arguments) > 4:
        text_path = pathlib.Path(arguments[4])
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    module = read_module(pathlib.Path(module_path))
    cached = cache_file(module, topology, int(replicas))
    if text_path is not None or not cached.exists():  # the program's text is not cached
        answer = compile_for(module, topology, int(replicas), text_path)
        cached.parent.mkdir(parents=True, exist_ok=True)
        partial = cached.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(answer), encoding="utf-8")
        partial.replace(cached)
    shutil.copyfile(cached, result_path)
    os._exit(0)  # taking libtpu down takes seconds


if __name__ == "__main__":
    main(sys.argv[1:])
