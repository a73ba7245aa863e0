"""Training's position in its data, and the skipped records: kept next to the model, saved with every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from mural_lite.skipped import KINDS
from mural_tf.data.streams.epochs import start_of
from mural_tf.models.step import bookkeeping, gather

_KEY = "data_progress"  # under which `training_checkpoints` saves the places
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # the end of a variable's key in a checkpoint of TensorFlow


class DataProgress:
    """The places and tallies (`data/streams/pipeline.py`) of the last trained batch; create it in the strategy's scope.

    Args:
      sources: {stream: how many sources it draws from}.
      pipelines: how many input pipelines share the data.

    Attributes:
      places: {stream: int64 variable [pipelines, sources, PLACE]}.
      tallies: {stream: int64 variable [pipelines, sources, 1 + kinds, 3]}, as `data/skipped_records.py` describes them,
        of the batches since the program asked for them; not saved.
    """

    def __init__(self, sources: Mapping[str, int], pipelines: int = 1):
        self._pipelines = pipelines
        self.places = {}
        self.tallies = {}
        for stream, count in sources.items():
            start = np.tile(start_of(0), [pipelines, count, 1])
            tallies = np.zeros([pipelines, count, 1 + len(KINDS), 3], np.int64)
            self.places[stream] = bookkeeping(start, f"{stream}_place")
            self.tallies[stream] = bookkeeping(tallies, f"{stream}_tally")

    def note(self, batch: Mapping[str, tf.Tensor]) -> None:
        """Assigns the places and tallies of all input pipelines from their batches; a part of the training step.

        Args:
          batch: a replica's batch, with "<stream>_place" and "<stream>_tally" of its own pipeline, [1, sources, …].
        """
        for stream, position in self.places.items():
            tallies = self.tallies[stream]
            gathered = gather({name: batch[f"{stream}_{name}"] for name in ("place", "tally")})
            new_position = self._by_pipeline(gathered["place"])
            new_tallies = self._by_pipeline(gathered["tally"])
            has_items = new_position[..., 0] >= 0  # [pipelines, sources]: the batch has items of the source
            position.assign(tf.where(has_items[..., None], new_position, position))
            tallies.assign(tf.where(has_items[..., None, None], new_tallies, tallies))

    def _by_pipeline(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first replica's row per pipeline, [pipelines, …], of a tensor [replicas, …].

        A pipeline's replicas come one after the other, and have equal rows.
        """
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        replicas_per_pipeline = replicas // self._pipelines
        return tensor[::replicas_per_pipeline]

    def of_pipeline(self, pipeline: int) -> dict[str, np.ndarray]:
        """Returns {stream: int64 [sources, PLACE]}, the places from which an input pipeline goes on."""
        return {stream: places.numpy()[pipeline] for stream, places in self.places.items()}

    def epochs(self) -> dict[str, list[int]]:
        """Returns {stream: the epoch of each source}, the earliest where pipelines differ."""
        epochs = {}
        for stream, variable in self.places.items():
            epochs[stream] = variable.numpy()[..., 0].min(axis=0).tolist()
        return epochs

    def next_epochs(self) -> None:
        """Begins a new epoch of all streams, for data that changed."""
        for stream, places in self.places.items():
            self._begin_after(stream, places.numpy())

    def saved(self) -> tf.train.Checkpoint:
        """Returns the part of a checkpoint under `data_progress`."""
        return tf.train.Checkpoint(**self.places)

    def restore(self, path: str) -> str:
        """Restores the places of the checkpoint at `path`; a stream whose places do not fit begins a new epoch.

        Returns why places do not fit, in words, or "" if all do. A stream that the checkpoint lacks stays as it is.
        """
        reader = tf.train.load_checkpoint(path)
        saved_shapes = reader.get_variable_to_shape_map()
        reason = ""
        for stream, places in self.places.items():
            key = f"{_KEY}/{stream}{_VALUE}"
            if key not in saved_shapes:
                continue
            saved_places = reader.get_tensor(key)
            if saved_shapes[key] == places.shape:
                places.assign(saved_places)
            else:
                self._begin_after(stream, saved_places)
                reason = _difference(saved_shapes[key], places.shape)
        return reason

    def _begin_after(self, stream: str, earlier: np.ndarray) -> None:
        """Sets all places of a stream to the epoch after the last one in `earlier`, int64 [..., PLACE]."""
        epoch = int(earlier[..., 0].max()) + 1
        places = self.places[stream]
        pipelines, sources, _ = places.shape
        places.assign(np.tile(start_of(epoch), [pipelines, sources, 1]))


def _difference(saved: list[int], now: tf.TensorShape) -> str:
    """Returns in words how the shapes of saved and present places, [pipelines, sources, PLACE], differ."""
    for axis, name in enumerate(("input pipelines", "sources")):
        if saved[axis] != now[axis]:
            return f"the checkpoint is of {saved[axis]} {name}, and these are {now[axis]}"
    return "the checkpoint's places are of another form"
