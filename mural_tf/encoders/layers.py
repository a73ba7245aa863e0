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
    """Hands out seeds in the order in which layers ask, and collects BatchNorm's moments, {layer: [(mean, variance)]}.

    Args:
      seed: int32 [2].
      repeated: whether the pass runs in a loop, twice for a chunk: layers then use no other replicas, and draw only
        by `next_seed`.
    """

    def __init__(self, seed: tf.Tensor, repeated: bool = False):
        self.repeated = repeated
        self.moments: dict[keras.layers.Layer, list[tuple[tf.Tensor, tf.Tensor]]] = {}
        self._seed = seed
        self._draws = 0

    def next_seed(self) -> tf.Tensor:
        """Returns a seed, int32 [2], that differs at every call."""
        self._draws += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._draws)

    def mean_moments(self) -> dict[keras.layers.Layer, tuple[tf.Tensor, tf.Tensor]]:
        """Returns each layer's (mean [C], variance [C]), averaged over its calls."""
        means = {}
        for layer, calls in self.moments.items():
            means[layer] = tuple(tf.add_n(moments) / len(calls) for moments in zip(*calls))
        return means


@contextlib.contextmanager
def forward_pass(seed: tf.Tensor, repeated: bool = False) -> Iterator[ForwardPass]:
    """Makes a new `ForwardPass(seed, repeated)` this thread's running pass within the context, and yields it."""
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
    """Within this context, `rows_of_table` has dense gradients, whose size XLA knows, as loops and branches need."""
    before = getattr(_running, "tables_are_dense", False)
    _running.tables_are_dense = True
    try:
        yield
    finally:
        _running.tables_are_dense = before


def rows_of_table(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns the rows of a table, float [V, D], at ids, int32 [B, T]: float [B, T, D].

    The table's gradient is `tf.IndexedSlices`, as `tf.gather` has it, or within `dense_tables` a matrix [V, D].
    """
    if getattr(_running, "tables_are_dense", False):
        return _rows_with_dense_gradient(tf.convert_to_tensor(table), ids)
    return tf.gather(table, ids)


@tf.custom_gradient
def _rows_with_dense_gradient(table: tf.Tensor, ids: tf.Tensor):
    """Returns `rows_of_table` and the function that computes the table's gradient as a matrix, [V, D]."""
    vocabulary_size, width = table.shape

    def gradient(upstream):
        row_gradients = tf.reshape(upstream, [-1, width])  # [B * T, D]
        table_gradient = tf.math.unsorted_segment_sum(row_gradients, tf.reshape(ids, [-1]), vocabulary_size)
        return table_gradient, None  # ids are integers and have no gradient

    return tf.gather(table, ids), gradient


GROUPS = ("local", "global")


def parse_group(group: str | int) -> str | int:
    """Returns "local", "global" or an int of at least 1, for the same or its decimal text; `UserError` for others."""
    if group in GROUPS:
        return group
    try:
        size = int(group)
    except ValueError:
        size = 0  # which is refused
    if size < 1:
        raise UserError(
            f"image_tower.batch_norm_group={group!r}: expected {', '.join(GROUPS)} or a number of examples, 1 or more."
        )
    return size


class BatchNormalization(keras.layers.BatchNormalization):
    """Keras' BatchNormalization of [B, H, W, C], whose moments are of a `group` of examples, see the top of the file.

    Within a `ForwardPass` the layer gives the moments to the pass, whose owner calls `update_moving`; otherwise the
    layer updates its moving averages itself, as Keras' layer does.
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
        """Moves both moving averages towards a batch's mean and variance, float32 [C], unless `apply` is false."""
        for average, moment in ((self.moving_mean, mean), (self.moving_variance, variance)):
            new_average = average - (average - tf.cast(moment, average.dtype)) * (1.0 - self.momentum)
            average.assign(tf.where(apply, new_average, average))

    def _normalize(self, x):
        """Returns normalised x, and its mean and unbiased variance, [C] each; `UserError` if `group` does not fit."""
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
        """Returns as `_normalize`, with moments of parts of `group` examples; `UserError` if they do not fit."""
        if examples % self.group:
            raise UserError(
                f"batch_norm_group={self.group} does not divide the {examples} examples normalised at once (the "
                "batch, divided by replicas and micro-batches)."
            )
        parts = tf.reshape(tf.cast(x, tf.float32), [examples // self.group, -1, x.shape[-1]])  # [G, N * H * W, C]
        mean, variance = tf.nn.moments(parts, axes=[1], keepdims=True)
        y = tf.reshape(self._scale(parts, mean, variance), tf.shape(x))
        mean_variance = tf.reduce_mean(variance, [0, 1])
        return tf.cast(y, x.dtype), tf.reduce_mean(mean, [0, 1]), _unbiased(mean_variance, tf.shape(parts)[1])

    def _replicas_in_group(self, examples: int, replicas: int) -> int:
        """Returns how many replicas of `examples` each share moments; `UserError` if a group is not whole replicas."""
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
        """Returns as `_normalize`, with moments over neighbouring replicas; `UserError` in a repeated pass."""
        members = self._replicas_in_group(examples, replicas)
        current = current_pass()
        if current is not None and current.repeated:
            raise UserError(
                f"batch_norm_group={self.group} spans replicas, which train.micro_batches cannot: take local, or at "
                f"most {examples}."
            )
        context = tf.distribute.get_replica_context()
        values = tf.cast(x, tf.float32)
        replica_moments = tf.stack(tf.nn.moments(values, axes=[0, 1, 2]))  # [2, C]
        moments = context.all_gather(replica_moments[tf.newaxis], axis=0)  # [R, 2, C]; differentiable
        group_start = context.replica_id_in_sync_group // members * members  # on a TPU known only when the step runs
        moments = tf.slice(moments, [group_start, 0, 0], [members, 2, x.shape[-1]])
        means, variances = tf.unstack(moments, axis=1)  # [members, C] each
        mean = tf.reduce_mean(means, axis=0)
        variance = tf.reduce_mean(variances + tf.square(means - mean), axis=0)  # within and between replicas
        y = self._scale(values, mean, variance)
        count = members * tf.size(x) // x.shape[-1]
        return tf.cast(y, x.dtype), mean, _unbiased(variance, count)

    def _scale(self, x, mean, variance):
        """Returns (x - mean) / deviation * gamma + beta, in the shape of x."""
        return (x - mean) * (tf.math.rsqrt(variance + self.epsilon) * self.gamma) + self.beta


def _unbiased(variance, count):
    """Returns the unbiased variance, [C], for a variance, [C], of `count` numbers: times count / (count - 1)."""
    count = tf.cast(count, tf.float32)
    return variance * count / tf.maximum(count - 1.0, 1.0)


class Dropout(keras.layers.Layer):
    """Zeroes a share `rate` of the entries and divides the others by 1 - rate, in training only.

    Args:
      rate: 0 <= rate < 1.
      noise_shape: the shape of the draws, where `None` entries take the input's size; they are broadcast to the input.
        (None, 1, 1, 1) drops whole examples: stochastic depth.
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
        mask = tf.cast(keep_mask(shape, self.rate, seed), x.dtype)
        return x * (mask * tf.cast(1.0 / (1.0 - self.rate), x.dtype))


def seed_of_pass() -> tf.Tensor:
    """Returns the seed of the running pass, int32 [2]; outside a pass, a new seed at every call."""
    current = current_pass()
    if current is None:
        return tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
    return current.next_seed()


def keep_mask(shape: tf.Tensor | list, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns bool of `shape`: each entry True with probability 1 - rate, the rate rounded to a multiple of 2^-16.

    `seed` is int32 [2]. An entry takes 16 random bits, because drawing bits is slow on a CPU: `words` of 32 bits hold
    two entries each. A TPU draws in hardware, but is slow at taking words apart, so there an entry takes a word.
    """
    least = round(rate * 2**16)  # the smallest draw of 16 bits whose entry is kept
    if on_tpu():
        draws = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.uint32)
        return draws >= tf.constant(least << 16, tf.uint32)  # compares the upper 16 bits
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
      hidden_size: width of the first Dense layer.
      size: width of the embedding.
      columns: (begin, end) of the input's columns that the head sees, `end` excluded; `None`: all.
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
    """BERT's head for masked tokens: states, float [..., hidden], and table, [V, size] -> float32 logits [..., V].

    Dense(size), GELU, layer normalisation, times the token table, plus a bias for each piece. The table is an argument
    of every call, because it is a variable of the text tower.
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
