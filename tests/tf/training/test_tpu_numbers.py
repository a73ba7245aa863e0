"""The step that is compiled for a slice is the step that is trained: its program for four replicas, run on a CPU.

The same HLO module that a TPU's compiler gets is compiled for four devices of a CPU, with XLA's collectives, and takes
one step. Weights and logs afterwards are compared with a step of one device on the whole batch.
"""

import gc
import importlib.util
import os
import subprocess
import sys

import contract
import forked
import numpy as np
import pytest
import tensorflow as tf

from mural_tf.models import step as step_module
from mural_tf.training import tpu_forecast
from mural_tf.training.tpu_lowering import step_of_replica

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax, of the extra tpu_compiler"),
]
REPLICAS = 4
RUN = """
import pathlib, re, sys
import jax, numpy as np
from jax._src import compiler
from jax._src.lib import xla_client
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mural_tf.training.tpu_compiler import read_module

folder, replicas = pathlib.Path(sys.argv[1]), int(sys.argv[2])
devices = jax.devices("cpu")
assert len(devices) == replicas
options = compiler.get_compile_options(
    num_replicas=replicas, num_partitions=1, device_assignment=np.array([[device.id] for device in devices])
)
module = read_module(folder / "step.hlo", draws_as_on_tpu=False)
program = devices[0].client.compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)
everywhere = NamedSharding(Mesh(np.array(devices), "replica"), PartitionSpec())  # each device has an array of its own
jax.config.update("jax_enable_x64", True)
arguments = []
with np.load(folder / "arguments.npz") as values:
    for number in range(len(values.files) // replicas):
        parts = [jax.device_put(values[f"{number}_{r}"], device) for r, device in enumerate(devices)]
        arguments.append(jax.make_array_from_single_device_arrays(parts[0].shape, everywhere, parts))
results = program.execute_sharded(arguments).disassemble_into_single_device_arrays()
found = {f"{number}_{r}": np.asarray(part) for number, parts in enumerate(results) for r, part in enumerate(parts)}
header = program.hlo_modules()[0].to_string().split("\\n", 1)[0]
found["overwritten"] = np.array(re.findall(r"\\{(\\d+)\\}: \\((\\d+), ", header), int)  # [outputs, (output, argument)]
np.savez(folder / "results.npz", **found)
"""


def step_on_replicas(model, batch, folder) -> tuple[dict, dict]:
    """{log: its value on each replica}, and {variable that the step changes: its new value on each replica}."""
    parts = [tf.nest.map_structure(lambda value: tf.split(value, REPLICAS)[r], batch) for r in range(REPLICAS)]  # noqa: B023
    step = step_of_replica(model, REPLICAS)
    concrete = step.get_concrete_function(parts[0])
    (folder / "step.hlo").write_bytes(step.experimental_get_compiler_ir(parts[0])(stage="hlo_serialized"))
    known = [value for value in gc.get_objects() if issubclass(type(value), tf.Variable)]  # counters' too
    by_handle = {id(variable.handle): variable for variable in known}
    captured = [by_handle.get(id(value), value) for value in concrete.captured_inputs]  # variables, and constants
    given = len(concrete.inputs) - len(captured)
    arguments = {}
    for r, part in enumerate(parts):
        values = [value.numpy() for value in tf.nest.flatten(part)] + [value.numpy() for value in captured]
        arguments.update({f"{number}_{r}": value for number, value in enumerate(values)})
    np.savez(folder / "arguments.npz", **arguments)
    environment = {**os.environ, **tpu_forecast.ENVIRONMENT, "PYTHONPATH": str(forked.ROOT)}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={REPLICAS}"
    subprocess.run([sys.executable, "-c", RUN, str(folder), str(REPLICAS)], env=environment, check=True, timeout=600)
    with np.load(folder / "results.npz") as values:
        logs = [[values[f"{number}_{r}"] for r in range(REPLICAS)] for number in range(len(concrete.outputs))]
        weights = {
            captured[argument - given].ref(): [values[f"{output}_{r}"] for r in range(REPLICAS)]
            for output, argument in values["overwritten"]
        }
    return dict(zip(sorted(concrete.structured_outputs), logs)), weights


def _apart(expected, value) -> float:
    """The largest difference, relative for numbers above 1."""
    return np.max(np.abs(expected - value), initial=0) / max(1.0, np.max(np.abs(expected), initial=0))


def differences(config, folder) -> dict[str, float]:
    """The largest difference of a step on four replicas from the same step on one device: of logs, and of variables."""
    model = contract.build(config)
    batch = contract.batch_of(model, config, 16)
    logs, weights = step_on_replicas(model, batch, folder)
    before = {variable: variable.deref().numpy() for variable in weights}
    expected = tf.function(model.train_step)(batch)
    found = {name: max(_apart(float(expected[name]), value) for value in logs[name]) for name in expected}
    moved = 0
    for variable, values in weights.items():
        now = variable.deref().numpy()
        moved += not np.array_equal(now, before[variable])
        found[variable.deref().name] = max(_apart(now, value) for value in values)
    assert moved > len(model.trainable_variables)  # weights, their slots, counters
    return found


CASES = ("mural", "mule", "siglip", "mural on an EfficientNet with BatchNorm over all replicas")


def config_of(case):
    method = case.split()[0]
    config = contract.toy_config(method, text_tower__dropout=0.0, optimizer__name="adam", optimizer__epsilon=1e-3)
    if "BatchNorm" in case:
        config.image_tower.update(dict(name="efficientnet", width=0.25, depth=0.25, image_size=32, resize=32))
        config.image_tower.update(dict(drop_connect_rate=0.0, projection=0, branch_size=0))
        config.embedding_size = 80
    config.image_tower.batch_norm_group = "global"
    return config


@pytest.mark.parametrize("case", CASES)
def test_four_replicas_are_one_device(case, tmp_path):
    found = differences(config_of(case), tmp_path)
    assert max(found.values()) < 1e-5, sorted(found.items(), key=lambda item: -item[1])[:5]


def test_gradients_that_are_summed_twice_are_noticed(monkeypatch, tmp_path):
    once = step_module._sum_over_replicas
    monkeypatch.setattr(
        step_module, "_sum_over_replicas", lambda gradients, context: once(once(gradients, context), context)
    )
    found = differences(config_of("siglip"), tmp_path)
    assert found["gradient_norm"] > 1e-2
