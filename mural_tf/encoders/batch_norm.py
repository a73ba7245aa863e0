"""BatchNorm over a group of examples that can be smaller or larger than one replica's batch.

How many examples share statistics changes what a contrastive model learns: reimplementations of ALIGN matched it only
with about 16 per group, which is what one TPU core saw. `group` says so explicitly:

    "local"    one replica's examples (with micro-batches: one chunk's)
    "global"   all replicas' examples
    N          N examples: a part of a replica's, or those of N / (examples per replica) neighbouring replicas
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.config import ConfigurationError
from mural_tf.encoders.forward_pass import current_pass

GROUPS = ("local", "global")


def parse_group(group: str | int) -> str | int:
    """Returns "local", "global" or a number of examples; raises `ConfigurationError` for anything else."""
    if group in GROUPS:
        return group
    try:
        size = int(group)
    except ValueError:
        size = 0
    if size < 1:
        raise ConfigurationError(
            f"image_tower.batch_norm_group={group!r}: expected {', '.join(GROUPS)} or a number of examples, 1 or more."
        )
    return size


class BatchNormalization(tf.keras.layers.BatchNormalization):
    """Keras' layer for [B, H, W, C], with its variables and numbers, but for the group.

    In a `ForwardPass` the moments go there, and whoever runs the pass calls `update_moving`; outside of one the
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
            moved = average - (average - tf.cast(value, average.dtype)) * (1.0 - self.momentum)
            average.assign(tf.where(apply, moved, average))

    def _normalize(self, x):
        """Returns y, and the mean and the unbiased variance [C] for the moving averages."""
        examples = x.shape[0]
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        if self.group == "local" or (self.group == "global" and replicas == 1) or self.group == examples:
            return tf.compat.v1.nn.fused_batch_norm(x, self.gamma, self.beta, epsilon=self.epsilon, is_training=True)
        if examples is None:
            raise ConfigurationError(f"batch_norm_group={self.group} needs a batch of known size.")
        if self.group != "global" and self.group < examples:
            return self._over_parts(x, examples)
        return self._over_replicas(x, examples, replicas)

    def _over_parts(self, x, examples: int):
        if examples % self.group:
            raise ConfigurationError(
                f"batch_norm_group={self.group} does not divide the {examples} examples normalised at once (the "
                "batch, divided by replicas and micro-batches)."
            )
        parts = tf.reshape(tf.cast(x, tf.float32), [examples // self.group, -1, x.shape[-1]])  # [G, N * H * W, C]
        mean, variance = tf.nn.moments(parts, axes=[1], keepdims=True)
        y = tf.reshape(self._scale(parts, mean, variance), tf.shape(x))
        return tf.cast(y, x.dtype), tf.reduce_mean(mean, [0, 1]), self._unbiased(variance, tf.shape(parts)[1], [0, 1])

    def _over_replicas(self, x, examples: int, replicas: int):
        members = replicas if self.group == "global" else self.group // examples
        if self.group != "global" and (self.group % examples or replicas % members):
            raise ConfigurationError(
                f"batch_norm_group={self.group} is no multiple of the {examples} examples of a replica that also "
                f"divides the {replicas * examples} of all {replicas}."
            )
        current = current_pass()
        if current is not None and current.repeated:
            raise ConfigurationError(
                f"batch_norm_group={self.group} spans replicas, which train.micro_batches cannot: take local, or at "
                f"most {examples}."
            )
        context = tf.distribute.get_replica_context()
        values = tf.cast(x, tf.float32)
        moments = tf.stack(tf.nn.moments(values, axes=[0, 1, 2]))  # [2, C]
        moments = context.all_gather(moments[tf.newaxis], axis=0)  # [R, 2, C]; differentiable
        first = context.replica_id_in_sync_group // members * members
        means, variances = tf.unstack(moments[first : first + members], axis=1)  # [members, C] each
        mean = tf.reduce_mean(means, axis=0)
        variance = tf.reduce_mean(variances + tf.square(means - mean), axis=0)  # within and between replicas
        count = members * tf.size(x) // x.shape[-1]
        return tf.cast(self._scale(values, mean, variance), x.dtype), mean, self._unbiased(variance, count, [])

    def _scale(self, x, mean, variance):
        return (x - mean) * (tf.math.rsqrt(variance + self.epsilon) * self.gamma) + self.beta

    @staticmethod
    def _unbiased(variance, count, axes):
        count = tf.cast(count, tf.float32)
        return tf.reduce_mean(variance, axes) * count / tf.maximum(count - 1.0, 1.0)
