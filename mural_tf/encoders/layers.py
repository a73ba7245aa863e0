"""Layers that depend on the pass they run in (BatchNorm over a group, Dropout that repeats), pixels, and heads.

Layers that draw (dropout, stochastic depth) or keep statistics (BatchNorm) ask for the running `ForwardPass`. That
makes a pass repeatable: the same seed gives the same draws, so the two passes of a large batch agree, and a run that
was killed goes on with the same draws. It also collects the statistics, which a step applies once or not at all.

BatchNorm's group can be smaller or larger than one replica's batch. How many examples share statistics changes what a
contrastive model learns: reimplementations of ALIGN matched it only with about 16 per group, which is what one TPU core
saw. `group` says so explicitly:

    "local"    one replica's examples (with micro-batches: one chunk's)
    "global"   all replicas' examples
    N          N examples: a part of a replica's, or the examples of N / (examples per replica) neighbouring replicas
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.kernels import LAYER_NORM_EPSILON, on_tpu

_running = threading.local()  # MirroredStrategy traces every replica in a thread of its own


class ForwardPass:
    """Hands out seeds in the order in which layers ask, and collects BatchNorm's moments.

    Args:
      seed: int32 [2].
      repeated: whether it is a chunk that runs twice, in loops: no collective operations and no draws of its own.
    """

    def __init__(self, seed: tf.Tensor, repeated: bool = False):
        self.repeated = repeated
        self.moments: dict[keras.layers.Layer, list[tuple[tf.Tensor, tf.Tensor]]] = {}
        self._seed = seed
        self._draws = 0

    def next_seed(self) -> tf.Tensor:
        """Returns int32 [2], another one at every call."""
        self._draws += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._draws)

    def mean_moments(self) -> dict[keras.layers.Layer, tuple[tf.Tensor, tf.Tensor]]:
        """Returns each layer's (mean [C], variance [C]), averaged over its calls."""
        means = {}
        for layer, calls in self.moments.items():
            means[layer] = tuple(tf.add_n(values) / len(calls) for values in zip(*calls))
        return means


@contextlib.contextmanager
def forward_pass(seed: tf.Tensor, repeated: bool = False) -> Iterator[ForwardPass]:
    """Inside, a new `ForwardPass`, which is yielded, is the running pass."""
    outer_pass = current_pass()
    current = ForwardPass(seed, repeated)
    _running.current = current
    try:
        yield current
    finally:
        _running.current = outer_pass


def current_pass() -> ForwardPass | None:
    """Returns the running pass; `None` where a tower is used as an ordinary Keras model."""
    return getattr(_running, "current", None)


@contextlib.contextmanager
def dense_tables() -> Iterator[None]:
    """Inside, the gradients of tables are as large as the tables: XLA needs their size in a loop and in a branch."""
    before = getattr(_running, "tables_are_dense", False)
    _running.tables_are_dense = True
    try:
        yield
    finally:
        _running.tables_are_dense = before


def rows_of_table(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns the rows of a table, float [V, D], with some ids, int32 [B, T]: [B, T, D].

    The gradient is a list of rows, as `tf.gather` has it, or within `dense_tables` a matrix [V, D].
    """
    if getattr(_running, "tables_are_dense", False):
        return _rows_with_dense_gradient(tf.convert_to_tensor(table), ids)
    return tf.gather(table, ids)


@tf.custom_gradient
def _rows_with_dense_gradient(table: tf.Tensor, ids: tf.Tensor):
    """Returns the rows [B, T, D] of a table [V, D]; the gradient of the table is dense, [V, D]."""
    vocabulary_size, width = table.shape

    def gradient(upstream):
        row_gradients = tf.reshape(upstream, [-1, width])  # [B * T, D]
        table_gradient = tf.math.unsorted_segment_sum(row_gradients, tf.reshape(ids, [-1]), vocabulary_size)
        return table_gradient, None  # ids are integers and have no gradient

    return tf.gather(table, ids), gradient


GROUPS = ("local", "global")


def parse_group(group: str | int) -> str | int:
    """Returns "local", "global" or a number of examples; raises `UserError` for anything else."""
    if group in GROUPS:
        return group
    try:
        size = int(group)
    except ValueError:
        size = 0
    if size < 1:
        raise UserError(
            f"image_tower.batch_norm_group={group!r}: expected {', '.join(GROUPS)} or a number of examples, 1 or more."
        )
    return size


class BatchNormalization(keras.layers.BatchNormalization):
    """Keras' layer for [B, H, W, C], with its variables and numbers, except for the group.

    In a `ForwardPass` the moments go there, and the caller of the pass calls `update_moving`; outside of one the
    layer updates its moving averages itself, as Keras' does.
    """

    def __init__(self, group: str | int = "local", **options):
        super().__init__(**options)
        self.group = parse_group(group)

    def call(self, x, training=None):
        if not training or not self.trainable:
            return super().call(x, training=False)
        y, mean, variance = self._normalize(x)
        current = current_pass()
        if current is None:
            self.update_moving(mean, variance)
        else:
            current.moments.setdefault(self, []).append((mean, variance))
        return y

    def update_moving(self, mean: tf.Tensor, variance: tf.Tensor, apply: tf.Tensor | bool = True) -> None:
        """Moves both averages towards float32 [C] moments by 1 - momentum; leaves them if `apply` is false."""
        for average, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            new_average = average - (average - tf.cast(value, average.dtype)) * (1.0 - self.momentum)
            average.assign(tf.where(apply, new_average, average))

    def _normalize(self, x):
        """Returns y [B, H, W, C], and the mean and the unbiased variance, [C] each, for the moving averages."""
        examples = x.shape[0]
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        is_whole = self.group == "global" and replicas == 1
        if self.group == "local" or self.group == examples or is_whole:
            return tf.compat.v1.nn.fused_batch_norm(x, self.gamma, self.beta, epsilon=self.epsilon, is_training=True)
        if examples is None:
            raise UserError(f"batch_norm_group={self.group} needs a batch of known size.")
        if self.group != "global" and self.group < examples:
            return self._over_parts(x, examples)
        return self._over_replicas(x, examples, replicas)

    def _over_parts(self, x, examples: int):
        """As `_normalize`, with the moments of `group` examples together, a part of the replica's."""
        if examples % self.group:
            raise UserError(
                f"batch_norm_group={self.group} does not divide the {examples} examples normalised at once (the "
                "batch, divided by replicas and micro-batches)."
            )
        parts = tf.reshape(tf.cast(x, tf.float32), [examples // self.group, -1, x.shape[-1]])  # [G, N * H * W, C]
        mean, variance = tf.nn.moments(parts, axes=[1], keepdims=True)
        y = tf.reshape(self._scale(parts, mean, variance), tf.shape(x))
        count = tf.shape(parts)[1]
        return tf.cast(y, x.dtype), tf.reduce_mean(mean, [0, 1]), self._unbiased(variance, count, [0, 1])

    def _replicas_in_group(self, examples: int, replicas: int) -> int:
        """Returns how many replicas share moments; raises `UserError` if a group does not consist of whole replicas."""
        if self.group == "global":
            return replicas
        members = self.group // examples
        if self.group % examples or replicas % members:
            raise UserError(
                f"batch_norm_group={self.group}: expected a multiple of the {examples} examples of a replica that "
                f"divides the {replicas * examples} examples of all {replicas} replicas."
            )
        return members

    def _over_replicas(self, x, examples: int, replicas: int):
        """As `_normalize`, with the moments of several replicas' examples together."""
        members = self._replicas_in_group(examples, replicas)
        current = current_pass()
        if current is not None and current.repeated:
            raise UserError(
                f"batch_norm_group={self.group} spans replicas, which train.micro_batches cannot: take local, or at "
                f"most {examples}."
            )
        context = tf.distribute.get_replica_context()
        values = tf.cast(x, tf.float32)
        own_moments = tf.stack(tf.nn.moments(values, axes=[0, 1, 2]))  # [2, C]
        moments = context.all_gather(own_moments[tf.newaxis], axis=0)  # [R, 2, C]; differentiable
        group_start = context.replica_id_in_sync_group // members * members  # on a TPU known only when the step runs
        moments = tf.slice(moments, [group_start, 0, 0], [members, 2, x.shape[-1]])
        means, variances = tf.unstack(moments, axis=1)  # [members, C] each
        mean = tf.reduce_mean(means, axis=0)
        variance = tf.reduce_mean(variances + tf.square(means - mean), axis=0)  # within and between replicas
        y = self._scale(values, mean, variance)
        count = members * tf.size(x) // x.shape[-1]
        return tf.cast(y, x.dtype), mean, self._unbiased(variance, count, [])

    def _scale(self, x, mean, variance):
        """Returns x less its mean, in units of its deviation, times gamma, plus beta."""
        return (x - mean) * (tf.math.rsqrt(variance + self.epsilon) * self.gamma) + self.beta

    @staticmethod
    def _unbiased(variance, count, axes):
        """Returns the mean variance over `axes`, [C], corrected for moments of `count` numbers."""
        count = tf.cast(count, tf.float32)
        return tf.reduce_mean(variance, axes) * count / tf.maximum(count - 1.0, 1.0)


class Dropout(keras.layers.Layer):
    """Zeroes a share `rate` of the entries and divides the others by 1 - rate, in training only.

    Args:
      rate: 0 <= rate < 1.
      noise_shape: as in `keras.layers.Dropout`; `None` entries take the input's size. (None, 1, 1, 1) drops whole
        examples: stochastic depth.
    """

    def __init__(self, rate: float, noise_shape: tuple | None = None, **options):
        super().__init__(**options)
        self.rate = rate
        self.noise_shape = noise_shape

    def call(self, x, training=None):
        if not training or not self.rate:
            return x
        seed = seed_of_pass()
        shape = tf.shape(x)
        if self.noise_shape is not None:
            shape = [shape[axis] if size is None else size for axis, size in enumerate(self.noise_shape)]
        mask = tf.cast(keep(shape, self.rate, seed), x.dtype)
        return x * (mask * tf.cast(1.0 / (1.0 - self.rate), x.dtype))


def seed_of_pass() -> tf.Tensor:
    """Returns the seed of the running pass, int32 [2]; outside a pass, a new seed at every call."""
    current = current_pass()
    if current is None:
        return tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
    return current.next_seed()


def keep(shape: tf.Tensor | list, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns bool of `shape`: each entry True with probability 1 - rate, the rate rounded to a multiple of 2^-16.

    A float takes twice as many random bits, and drawing them is slow on a CPU. A TPU draws in hardware, but is slow at
    taking words apart.
    """
    least = round(rate * 2**16)
    if on_tpu():
        draws = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.uint32)
        return draws >= tf.constant(least << 16, tf.uint32)
    count = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform([(count + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
    draws = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count]
    return tf.reshape(draws, shape) >= tf.constant(least, tf.uint16)


def unit_range(images: tf.Tensor) -> tf.Tensor:
    """Returns uint8 images as float32 in [0, 1], and float images unchanged."""
    if images.dtype == tf.uint8:
        return tf.cast(images, tf.float32) / 255.0
    return images


# Heads.

IMAGE_HEAD = "image_head"  # the layer of an image tower that is trained where the rest is frozen


class MlpHead(keras.layers.Layer):
    """[Globetrotter]'s head, Dense, GELU, layer normalisation, Dense: float [B, hidden] -> float32 [B, size].

    The output is not normalised.

    Args:
      hidden_size: width of the layer between.
      size: width of the embedding.
      columns: (first, last + 1) of the input's columns that the head sees; `None`: all.
    """

    def __init__(self, hidden_size: int, size: int, columns: tuple[int, int] | None = None, **options):
        super().__init__(**{"dtype": "float32", **options})
        self.columns = columns
        self.dense = keras.layers.Dense(hidden_size, name="dense")
        self.norm = keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON, name="layer_norm")
        self.output_dense = keras.layers.Dense(size, name="output")

    def call(self, x):
        if self.columns is not None:
            begin, end = self.columns
            x = x[:, begin:end]
        x = tf.nn.gelu(self.dense(x), approximate=False)
        return self.output_dense(self.norm(x))


class ClozeHead(keras.layers.Layer):
    """BERT's head for masked tokens: float [..., hidden] -> float32 logits [..., V].

    Dense(size), GELU, layer normalisation, times the token table [V, size], plus a bias for each piece. The table is
    given with every call: it is the text tower's own.
    """

    def __init__(self, vocabulary_size: int, token_size: int, **options):
        super().__init__(**{"dtype": "float32", **options})
        self.vocabulary_size = vocabulary_size
        self.dense = keras.layers.Dense(token_size, name="dense")
        self.norm = keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON, name="layer_norm")

    def build(self, shape):
        self.bias = self.add_weight("bias", shape=(self.vocabulary_size,), initializer="zeros")

    def call(self, states, table):
        x = self.norm(tf.nn.gelu(self.dense(states), approximate=False))
        return tf.tensordot(x, tf.cast(table, x.dtype), axes=[[-1], [1]]) + self.bias
