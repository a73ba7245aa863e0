"""Lowers a configuration's training step to the program that TPUStrategy hands to the compiler of a TPU.

    lower_step(config, vocabulary_size, images=16, texts=16, replicas=4)  # a serialized HLO module

No TPU is needed: within `SliceReplica` the step sees itself as one replica of a slice, as TPUStrategy has it: the
replica's number is known only when the program runs; `all_reduce` is XLA's own sum over all replicas; `all_gather` is a
one-hot times the value, summed.
"""

from __future__ import annotations

import contextlib

import tensorflow as tf
from ml_collections import ConfigDict
from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # XLA's collectives; TPUStrategy's have no kernel without a TPU
from tensorflow.python.framework import convert_to_constants

from mural_lite.errors import UserError
from mural_lite.skipped import KINDS
from mural_tf.data.streams.epochs import PLACE
from mural_tf.data.streams.pipeline import captions_per_image
from mural_tf.encoders.kernels import for_tpu
from mural_tf.models import complete
from mural_tf.models.build import build_model
from mural_tf.models.frozen import on_features
from mural_tf.training.cost import batch_specs, batch_values
from mural_tf.training.data_progress import DataProgress
from mural_tf.training.fit import compile_model

ADDED_UP = (tf.bfloat16, tf.float16, tf.float32, tf.int32, tf.uint32)  # the types that a TPU sums over replicas
TRACEBACK = ("File ", "Stack trace", "^", "Traceback")  # the beginnings of its lines


class SliceReplica(tf.distribute.ReplicaContext):
    """One replica of a slice that is not there; enter it (`with`) where a function is traced.

    Args:
      replicas: how many replicas the slice has.
    """

    def __init__(self, replicas: int):
        super().__init__(tf.distribute.get_strategy(), replica_id_in_sync_group=0)
        self._replicas = replicas

    @property
    def num_replicas_in_sync(self) -> int:
        return self._replicas

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        """int32 scalar: XLA's own operation, because XLA could take an argument of the step for a constant."""
        return gen_xla_ops.xla_replica_id()

    def all_reduce(self, reduce_op, value, options=None):
        """Returns a nest of tensors summed over the replicas; differentiable.

        Raises `ValueError` for reductions other than sums.
        """
        if reduce_op not in ("sum", tf.distribute.ReduceOp.SUM):
            raise ValueError(f"{reduce_op}: only sums over the replicas of a slice are made here.")
        return tf.nest.map_structure(self._sum, value)

    def all_gather(self, value, axis: int, options=None):
        """Returns a nest of the replicas' tensors, [B, …] each, as [replicas * B, …]; differentiable.

        Raises `ValueError` for another axis than the first.
        """
        if axis != 0:
            raise ValueError(f"axis={axis}: only rows are gathered here.")
        return tf.nest.map_structure(self._gather, value)

    def _sum(self, value) -> tf.Tensor:
        """Returns a tensor summed over the replicas; its gradient is summed, too."""
        value = tf.convert_to_tensor(value)
        if value.dtype not in ADDED_UP:
            raise ValueError(f"A tensor of {value.dtype.name}, which a TPU cannot sum over replicas.")
        groups = tf.constant([list(range(self._replicas))])

        def total(addend):
            return gen_xla_ops.xla_all_reduce(
                input=addend, group_assignment=groups, reduce_op="Add", mode="CrossReplica"
            )

        @tf.custom_gradient
        def summed(value):
            return total(value), total  # the sum, and the function of its gradient

        return summed(value)

    def _gather(self, value) -> tf.Tensor:
        """Returns the replicas' tensors [B, …] as [replicas * B, …]: a sum of tensors that are 0 but for own rows."""
        value = tf.convert_to_tensor(value)
        is_own = tf.one_hot(self.replica_id_in_sync_group, self._replicas, dtype=value.dtype)
        is_own = tf.reshape(is_own, [self._replicas] + [1] * value.shape.rank)
        rows = self._sum(value[tf.newaxis] * is_own)  # [replicas, B, …]
        return tf.reshape(rows, [self._replicas * value.shape[0], *value.shape[1:]])


def trace_step(config: ConfigDict, vocabulary_size: int, images: int, texts: int | None = None, replicas: int = 1):
    """Returns the training step, a `tf.function` of a replica's part of a batch, and an example of such a part.

    Args:
      config: the configuration tree; its batch sizes are not used.
      vocabulary_size: word pieces of the token table.
      images: images of a replica's part, with `captions_per_image` captions each.
      texts: text pairs of a replica; `None`: as many as `images`.
      replicas: how many replicas share a batch.
    """
    if texts is None:
        texts = images
    config = complete(config)
    with for_tpu():
        model = on_features(build_model(config, vocabulary_size))
        compile_model(model, config)
    model.progress = DataProgress(dict.fromkeys(model.streams, 1))
    example = batch_values(batch_specs(model, config, images * captions_per_image(config), texts))
    for stream in model.streams:
        example[f"{stream}_place"] = tf.zeros([1, 1, PLACE], tf.int64)
        example[f"{stream}_tally"] = tf.zeros([1, 1, 1 + len(KINDS), 3], tf.int64)
    return step_of_replica(model, replicas), example


def step_of_replica(model, replicas: int):
    """Returns the training step of a compiled model, a `tf.function` of a replica's part of a batch."""

    def step(batch):
        replica = contextlib.nullcontext()
        if replicas > 1:
            replica = SliceReplica(replicas)
        with for_tpu(), replica:
            return model.train_step(batch)

    return tf.function(step, jit_compile=True, autograph=False)


def lower_step(
    config: ConfigDict, vocabulary_size: int, images: int, texts: int | None = None, replicas: int = 1
) -> bytes:
    """Returns the step's serialized HLO module; arguments as `trace_step`.

    Similarities keep float32 factors, as in a run with `--tpu`. Raises `UserError` with XLA's words where it cannot
    lower an operation.
    """
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        step, example = trace_step(config, vocabulary_size, images, texts, replicas)
        if "hub" in (config.image_tower.name, config.text_tower.name):
            step = without_calls(step, example)
        return step.experimental_get_compiler_ir(example)(stage="hlo_serialized")
    except (ValueError, tf.errors.OpError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"A TPU would refuse this step: {xla_reason(str(error))}") from None
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def without_calls(step, example):
    """Returns a step whose calls of functions are replaced by their operations, as TPUStrategy hands it over.

    XLA takes a variable for a constant where its gradient comes from a function within a function, as a SavedModel's
    does: LaBSE's table of 1.5 GB would be in the program four times.

    Args:
      step: a `tf.function` of a batch.
      example: a batch; the returned step takes batches of its shapes.
    """
    traced = step.get_concrete_function(example)
    # TensorFlow has no public way; control flow stays (False), and all functions are inlined (True).
    graph = convert_to_constants._run_inline_graph_optimization(traced, False, True)
    inlined = convert_to_constants._construct_concrete_function(traced, graph, {})

    def call(batch):
        return inlined._call_flat([*tf.nest.flatten(batch), *traced.captured_inputs], [])

    return tf.function(call, jit_compile=True, autograph=False)


def xla_reason(message: str) -> str:
    """Returns XLA's own words, and the place in our code, out of an error that TensorFlow wraps in its traceback."""
    lines = []
    for line in message.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(TRACEBACK):
            lines.append(stripped)
    return " ".join(lines)[:1000]  # characters of a message
