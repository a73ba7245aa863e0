"""Training's position in its data, and the skipped records: kept next to the model, saved with every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from mural_lite.skipped import KINDS
from mural_tf.data.streams.epochs import start_of
from mural_tf.models.step import bookkeeping, gather

_KEY = "data_progress"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class DataProgress:
    """The places and tallies (`data/streams/pipeline.py`) of the last trained batch; create it in the strategy's scope.

    Args:
      sources: {stream: how many sources it draws from}.
      pipelines: how many input pipelines share the data.

    Attributes:
      places: {stream: int64 variable [pipelines, sources, PLACE]}.
      tallies: {stream: int64 variable [pipelines, sources, 1 + kinds, 3]}, of the batches since the program asked for
        them; not saved.
    """

    def __init__(self, sources: Mapping[str, int], pipelines: int = 1):
        self._pipelines = pipelines
        self.places = {}
        self.tallies = {}
        for name, count in sources.items():
            self.places[name] = bookkeeping(np.tile(start_of(0), [pipelines, count, 1]), f"{name}_place")
        for name, count in sources.items():
            tallies = np.zeros([pipelines, count, 1 + len(KINDS), 3], np.int64)
            self.tallies[name] = bookkeeping(tallies, f"{name}_tally")

    def note(self, batch: Mapping[str, tf.Tensor]) -> None:
        """Takes the place and tally of its input pipeline from a replica's batch; a part of the training step."""
        for stream in self.places:
            entries = {name: batch[f"{stream}_{name}"] for name in ("place", "tally")}  # [1, sources, …]
            entries = gather(entries)  # [replicas, sources, …]
            new_position = self._by_pipeline(entries["place"])
            new_tally = self._by_pipeline(entries["tally"])
            position = self.places[stream]
            tally = self.tallies[stream]
            has_items = new_position[..., 0] >= 0  # [pipelines, sources]: the batch has items of the source
            position.assign(tf.where(has_items[..., None], new_position, position))
            tally.assign(tf.where(has_items[..., None, None], new_tally, tally))

    def _by_pipeline(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns [pipelines, …] of [replicas, …]: one row per pipeline, because its replicas' rows are equal."""
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return tensor[:: replicas // self._pipelines]

    def of_pipeline(self, pipeline: int) -> dict[str, np.ndarray]:
        """Returns the places from which an input pipeline goes on, {stream: int64 [sources, PLACE]}."""
        return {stream: places.numpy()[pipeline] for stream, places in self.places.items()}

    def epochs(self) -> dict[str, list[int]]:
        """Returns {stream: the epoch of each source}, the earliest where pipelines differ."""
        epochs = {}
        for stream, variable in self.places.items():
            epochs[stream] = variable.numpy()[..., 0].min(axis=0).tolist()
        return epochs

    def next_epochs(self) -> None:
        """Goes on with a new epoch of everything: the places belong to other data, or to another division."""
        for stream, places in self.places.items():
            self._begin_after(stream, places.numpy())

    def saved(self) -> tf.train.Checkpoint:
        """Returns the part of a checkpoint under `data_progress`."""
        return tf.train.Checkpoint(**self.places)

    def restore(self, path: str) -> str:
        """Takes the places of the checkpoint at `path`; where they do not fit, the epoch after them.

        Returns why places do not fit, or "".
        """
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        reason = ""
        for stream, places in self.places.items():
            key = f"{_KEY}/{stream}{_VALUE}"
            if key in shapes and shapes[key] == places.shape:
                places.assign(reader.get_tensor(key))
            elif key in shapes:
                self._begin_after(stream, reader.get_tensor(key))
                reason = _difference(shapes[key], places.shape)
        return reason

    def _begin_after(self, stream: str, earlier: np.ndarray) -> None:
        """Sets a stream to the epoch after all of the epochs in earlier places, int64 [..., PLACE]."""
        epoch = int(earlier[..., 0].max()) + 1
        places = self.places[stream]
        places.assign(np.tile(start_of(epoch), [*places.shape[:2], 1]))


def _difference(saved: list[int], now: tf.TensorShape) -> str:
    """Returns in words why saved places, of a shape, do not fit the shape of the present places."""
    for axis, before, after in zip(("input pipelines", "sources"), saved, now):
        if before != after:
            return f"the checkpoint is of {before} {axis}, and these are {after}"
    return "the checkpoint's places are of another form"
