"""The values of a `tf.train.Checkpoint` at one moment, so that a file can be written while training goes on.

TensorFlow's own asynchronous checkpoints (2.15) name a checkpoint in the `checkpoint` file before it is written, and
keep a second copy of all variables for good. Here the values are read as tensors, which never change: on the CPU such
a tensor shares its variable's memory, and the first update of the variable afterwards takes new memory. So a read
costs next to nothing, and one copy exists only while it is being written.

Reading may involve all workers (variables that are averaged when read); writing is one worker's matter.
"""

from __future__ import annotations

import os
import pathlib
import shutil

import tensorflow as tf

PARTIAL = ".saving"  # the folder of files that are not complete yet


class SnapshotReader:
    """Reads what `checkpoint.write` would write, in TensorFlow's own format, keys and object graph included.

    Tracing `checkpoint.write` gives the operation that saves, and with it every key and where its value comes from;
    running the graph up to there reads the values. All variables must exist. Create it in the strategy's scope.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint):
        traced = tf.compat.v1.wrap_function(lambda: checkpoint.write(tf.constant("never written")), [])
        saves = [operation for operation in traced.graph.get_operations() if operation.type == "SaveV2"]
        self._names = [name for save in saves for name in tf.get_static_value(save.inputs[1])]
        # What the graph is given anew at every call: the keys of collectives, where reading takes all workers.
        self._call_time = list(traced.graph.deferred_external_captures)
        values = [value for save in saves for value in save.inputs[3:]]
        self._read = traced.prune(tf.nest.flatten(traced.graph.deferred_internal_captures), values)

    def read(self) -> tuple[list[bytes], list[tf.Tensor]]:
        """Returns the keys and the values they have now."""
        return self._names, self._read(*tf.nest.flatten([value() for value in self._call_time]))


def write_snapshot(snapshot: tuple[list[bytes], list[tf.Tensor]], prefix: pathlib.Path) -> None:
    """Writes `prefix`.data-00000-of-00001 and `prefix`.index; where the index exists, the checkpoint is complete.

    Raises TensorFlow's or Python's error if the disk is full; files that were there before are then as they were.
    """
    names, values = snapshot
    partial = prefix.parent / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with tf.device("CPU:0"):
            path, slices = str(partial / prefix.name), [""] * len(names)
            tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=slices, tensors=values)
        for part in (".data-00000-of-00001", ".index"):  # the index last: see above
            os.replace(partial / (prefix.name + part), f"{prefix}{part}")
    finally:
        shutil.rmtree(partial, ignore_errors=True)
