"""Checks that a configuration's whole training step is one that XLA compiles, as a TPU demands.

    python -m mural_tf xla_check --config=configs/mural_base.py --batch=2 --compile

Traces the step with static shapes, lists every operation of its graph, and names those that no XLA backend compiles,
that handle strings or Python, or whose output sizes depend on data. XLA's list is TensorFlow's own, read through its
C API: an operation counts as compilable if it is registered for XLA on CPU and on GPU alike, which is how those
that every backend has, TPUs included, are registered. `--compile` then compiles and runs one step on this CPU.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import pathlib
import time

from ml_collections import ConfigDict

from mural_tf.errors import UserError
from mural_tf.text.word_pieces import TOKENS

BACKENDS = {"XLA_CPU_JIT", "XLA_GPU_JIT"}
# XLA compiles these with an upper bound of their size only; a step with static shapes has none.
SIZE_DEPENDS_ON_DATA = {"Where", "Unique", "UniqueV2", "DynamicPartition"}
# Of a graph's frame: they carry no computation.
FRAME = {"Placeholder", "NoOp"}


def trace_step(config: ConfigDict, vocabulary_size: int, batch: int):
    """Returns the compiled-to-be training step, a `tf.function` of one batch, and a batch of zeros.

    Args:
      config: the configuration tree; its batch sizes are not used.
      vocabulary_size: word pieces of the token table.
      batch: images, captions and text pairs, each.
    """
    import tensorflow as tf

    from mural_tf.encoders.kernels import set_fusion
    from mural_tf.models import build_model, complete
    from mural_tf.training.data_progress import DataProgress
    from mural_tf.training.fit import compile_model

    set_fusion("off")  # compiled functions within the compiled step; on a TPU there are none either
    config = complete(config)
    model = build_model(config, vocabulary_size)
    compile_model(model, config)
    model.progress = DataProgress(dict.fromkeys(model.streams, 1))
    example = example_batch(model, config, batch)
    return tf.function(model.train_step, jit_compile=True, autograph=False), example


def example_batch(model, config: ConfigDict, batch: int) -> dict:
    """Returns a batch of zeros of a model: `batch` images, captions and text pairs, of the pipeline's static shapes."""
    import tensorflow as tf

    from mural_tf.data.images import prepared_spec
    from mural_tf.data.skipped import KINDS
    from mural_tf.data.streams.epochs import PLACE

    pixels, length = prepared_spec(config.image_tower), config.text_tower.max_length
    tokens = {name: tf.ones([batch, length], tf.int32) for name in TOKENS}
    tokens["input_type_ids"] = tf.zeros_like(tokens["input_type_ids"])
    ids = tf.range(batch, dtype=tf.int64)
    example = {"image": tf.zeros([batch, *pixels.shape], pixels.dtype), "image_id": ids, "caption_id": ids}
    example["text_group_id"] = ids
    for stream in model.streams:
        example[f"{stream}_place"] = tf.zeros([1, 1, PLACE], tf.int64)
        example[f"{stream}_tally"] = tf.zeros([1, 1, 1 + len(KINDS), 3], tf.int64)
    masked = {"places": tf.ones([batch, 1], tf.int32), "targets": tf.ones([batch, 1], tf.int32)}
    masked["weights"] = tf.ones([batch, 1])
    for name in model.parts:
        if name in model.image_parts:
            example[name] = example["image"]
        elif name in model.vector_parts:
            example[name] = tf.zeros([batch, model.embedding_size])
        else:
            example.update({name: {**tokens, **(masked if name == "cloze" else {})}, f"{name}_id": ids})
            example[f"{name}_language_id"] = tokens["input_type_ids"][:, 0]
    if "captions_per_image" in config.method:
        for name in ("caption", "caption_id", "caption_language_id"):
            several = functools.partial(tf.repeat, repeats=config.method.captions_per_image, axis=0)
            example[name] = tf.nest.map_structure(several, example.get(name, ids))
    return example


def operations(graph_def) -> collections.Counter:
    """Counts the operation types of a GraphDef, those of its functions included."""
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    return collections.Counter(node.op for node in nodes)


def find_problems(graph_def) -> list[str]:
    """Returns one line for each operation type that a TPU would refuse."""
    from tensorflow.core.framework import types_pb2

    functions = {function.signature.name for function in graph_def.library.function}
    problems = []
    for name, count in sorted(operations(graph_def).items()):
        if name in functions or name in FRAME:
            continue
        if name in SIZE_DEPENDS_ON_DATA:
            problems.append(f"{name} ({count}): the size of its output depends on data")
        elif not BACKENDS <= kernels(name):
            problems.append(f"{name} ({count}): XLA does not compile it")
    strings = {
        node.op
        for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function))
        for node in nodes
        for value in node.attr.values()
        if value.type == types_pb2.DT_STRING
    }
    return problems + [f"{name}: handles strings" for name in sorted(strings)]


@functools.cache
def kernels(operation: str) -> frozenset[str]:
    """Returns the device types for which an operation is registered, such as "CPU" and "XLA_CPU_JIT"."""
    from tensorflow.core.framework import kernel_def_pb2

    library, status = _c_library()
    buffer = library.TF_GetRegisteredKernelsForOp(operation.encode(), status)
    found = kernel_def_pb2.KernelList()
    found.ParseFromString(ctypes.string_at(buffer.contents.data, buffer.contents.length))
    return frozenset(kernel.device_type for kernel in found.kernel)


class _Buffer(ctypes.Structure):
    """TF_Buffer of TensorFlow's C API."""

    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("deallocator", ctypes.c_void_p)]


@functools.cache
def _c_library():
    import tensorflow as tf

    tf.function(lambda x: x + 1.0, jit_compile=True)(tf.constant(1.0))  # XLA registers its kernels at first use
    library = ctypes.CDLL(str(next(pathlib.Path(tf.sysconfig.get_lib()).glob("libtensorflow_cc.so*"))))
    library.TF_NewStatus.restype = ctypes.c_void_p
    library.TF_GetRegisteredKernelsForOp.restype = ctypes.POINTER(_Buffer)
    library.TF_GetRegisteredKernelsForOp.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    return library, library.TF_NewStatus()


def _as_compiled(config: ConfigDict) -> ConfigDict:
    """Returns what a run with `--tpu` makes of a configuration."""
    import tensorflow as tf

    from mural_tf.training.strategy import as_compiled

    config = config.copy_and_resolve_references()
    config.train.jit = True
    return as_compiled(config, tf.distribute.get_strategy())


def check(config: ConfigDict, vocabulary_size: int, batch: int, compile_step: bool) -> None:
    """Prints the operations and problems of a configuration's step; raises `UserError` if there are any."""
    step, example = trace_step(_as_compiled(config), vocabulary_size, batch)
    begun = time.monotonic()
    graph_def = step.get_concrete_function(example).graph.as_graph_def()
    counts = operations(graph_def)
    print(f"{sum(counts.values()):,} operations of {len(counts)} types, traced in {time.monotonic() - begun:.0f} s:")
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))
    problems = find_problems(graph_def)
    if problems:
        raise UserError("A TPU would refuse this step: " + "; ".join(problems))
    print("XLA compiles each of them.")
    if compile_step:
        begun = time.monotonic()
        logs = step(example)
        print(f"Compiled and run in {time.monotonic() - begun:.0f} s: loss {float(logs['loss']):.4f}.")
