"""The check of a training step that needs no compiler of TPUs: whether XLA has a kernel for each operation.

`tpu_forecast.py` has the compiler's own answer, with the extra `[tpu_compiler]`; without the extra a dry run for a TPU
traces the step with static shapes, and names the operations that no XLA backend compiles, that handle strings or
Python, or whose output sizes depend on data. XLA's list is TensorFlow's own, read through its C API, since Python has
no public one: an operation counts as compilable if it is registered for XLA on CPU and on GPU alike, as operations of
every backend, TPUs included, are registered. `--config.train.jit` compiles and runs the steps of a run on this CPU.
"""

from __future__ import annotations

import collections
import ctypes
import pathlib
from collections.abc import Iterable

import tensorflow as tf
from ml_collections import ConfigDict
from tensorflow.core.framework import kernel_def_pb2

from mural_lite.errors import UserError
from mural_tf.training.strategy import as_compiled
from mural_tf.training.tpu_lowering import trace_step

BACKENDS = {"XLA_CPU_JIT", "XLA_GPU_JIT"}
# XLA compiles these only with an upper bound of their size; a step with static shapes has no such operation.
SIZE_DEPENDS_ON_DATA = {"Where", "Unique", "UniqueV2", "DynamicPartition"}
FRAME = {"Placeholder", "NoOp"}  # of a graph: they carry no computation


def operations(graph_def) -> collections.Counter:
    """Returns {operation type: how often it occurs in a GraphDef and its functions}, such as {"MatMul": 12}."""
    return collections.Counter(node.op for node in _nodes(graph_def))


def _nodes(graph_def) -> list:
    """Returns the nodes of a GraphDef and of its functions."""
    nodes = list(graph_def.node)
    for function in graph_def.library.function:
        nodes += function.node_def
    return nodes


def _handles_strings(node) -> bool:
    """Whether a node's attributes name the type of strings."""
    return any(attribute.type == tf.string.as_datatype_enum for attribute in node.attr.values())


def find_problems(graph_def) -> list[str]:
    """Returns a line per operation type of a GraphDef that a TPU would refuse, such as "Where (2): …", with its count.

    Operations that handle strings come last.
    """
    functions = {function.signature.name for function in graph_def.library.function}
    counts = operations(graph_def)
    names = sorted(counts.keys() - FRAME - functions)
    devices = kernels(names)
    problems = []
    for name in names:
        if name in SIZE_DEPENDS_ON_DATA:
            problems.append(f"{name} ({counts[name]}): the size of its output depends on data")
        elif not BACKENDS <= devices[name]:
            problems.append(f"{name} ({counts[name]}): XLA does not compile it")
    with_strings = {node.op for node in _nodes(graph_def) if _handles_strings(node)}
    problems += [f"{name}: handles strings" for name in sorted(with_strings)]
    return problems


def kernels(names: Iterable[str]) -> dict[str, set[str]]:
    """Returns {operation: device types for which it is registered, such as "CPU" and "XLA_CPU_JIT"}."""
    tf.function(lambda x: x + 1.0, jit_compile=True)(tf.constant(1.0))  # XLA registers its kernels at first use
    library_path = next(pathlib.Path(tf.sysconfig.get_lib()).glob("libtensorflow_cc.so*"))
    library = ctypes.CDLL(str(library_path))
    library.TF_NewStatus.restype = ctypes.c_void_p
    library.TF_GetRegisteredKernelsForOp.restype = ctypes.POINTER(_Buffer)
    library.TF_GetRegisteredKernelsForOp.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    status = library.TF_NewStatus()
    devices = {}
    for name in names:
        buffer = library.TF_GetRegisteredKernelsForOp(name.encode(), status).contents
        serialized = ctypes.string_at(buffer.data, buffer.length)
        kernel_list = kernel_def_pb2.KernelList.FromString(serialized)
        devices[name] = {kernel.device_type for kernel in kernel_list.kernel}
    return devices


class _Buffer(ctypes.Structure):
    """TF_Buffer of TensorFlow's C API."""

    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("deallocator", ctypes.c_void_p)]


def check_step(config: ConfigDict, vocabulary_size: int, batch: int) -> str:
    """Returns a sentence with the number of operations in a training step; raises `UserError` if a TPU refuses any.

    Args:
      config: the run's configuration; its batch sizes are not used.
      vocabulary_size: word pieces.
      batch: images, and text pairs, per replica.
    """
    config = config.copy_and_resolve_references()
    config.train.jit = True  # as a run with --tpu
    config = as_compiled(config, tf.distribute.get_strategy())
    step, example = trace_step(config, vocabulary_size, images=batch)
    graph_def = step.get_concrete_function(example).graph.as_graph_def()
    problems = find_problems(graph_def)
    if problems:
        raise UserError("A TPU would refuse this step: " + "; ".join(problems))
    counts = operations(graph_def)
    return f"XLA has kernels for each of the step's {sum(counts.values()):,} operations of {len(counts)} types."
