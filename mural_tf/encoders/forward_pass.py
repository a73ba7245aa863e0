"""One pass over examples in training: where its random draws come from, and what it leaves to be saved.

Layers that draw (dropout, stochastic depth) or keep statistics (BatchNorm) ask for the pass they run in. That makes
a pass repeatable: the same seed gives the same draws, so the two passes of a large batch agree, and a run that was
killed goes on with the draws it would have had. And it leaves the statistics in one place, so that a step can apply
them once, or not at all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

_running = threading.local()  # MirroredStrategy traces every replica in a thread of its own


class ForwardPass:
    """Hands out seeds in the order in which layers ask, and collects BatchNorm's moments.

    Args:
      seed: int32 [2].
      repeated: whether it is a chunk that runs twice, in loops: no collective operations and no draws of its own.
    """

    def __init__(self, seed: tf.Tensor, repeated: bool = False):
        self.repeated = repeated
        self.moments: dict[tf.keras.layers.Layer, list[tuple[tf.Tensor, tf.Tensor]]] = {}
        self._seed, self._draws = seed, 0

    def next_seed(self) -> tf.Tensor:
        """Returns int32 [2], another one at every call."""
        self._draws += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._draws)

    def mean_moments(self) -> dict[tf.keras.layers.Layer, tuple[tf.Tensor, tf.Tensor]]:
        """Returns each layer's (mean [C], variance [C]), averaged over its calls."""
        return {
            layer: tuple(tf.add_n(list(values)) / len(values) for values in zip(*calls))
            for layer, calls in self.moments.items()
        }


@contextlib.contextmanager
def forward_pass(seed: tf.Tensor, repeated: bool = False) -> Iterator[ForwardPass]:
    """Makes a new `ForwardPass` the running one."""
    before, current = current_pass(), ForwardPass(seed, repeated)
    _running.current = current
    try:
        yield current
    finally:
        _running.current = before


def current_pass() -> ForwardPass | None:
    """Returns the running pass; `None` where a tower is used as an ordinary Keras model."""
    return getattr(_running, "current", None)
