"""`ContrastiveModel`: two towers and the one training step that every method shares.

A method says how examples become embeddings (`encode`, one example at a time) and what they should be
(`losses`, over the whole global batch). Everything between the two lives here: gathering over replicas,
gradients, clipping and the optimisers.

Global negatives: every replica gathers all embeddings and sums the loss over its own rows only. The gradient of
`all_gather` sums what all replicas want of an embedding, so the gradients added over replicas are those of one
device with the whole batch.
"""

from __future__ import annotations

import math

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.encoders.by_length import encode_by_length
from mural_tf.losses.contrastive import Rows

TOKENS = ("input_word_ids", "input_mask", "input_type_ids")


class ContrastiveModel(tf.keras.Model):
    """Base of all methods; see `Align` for the smallest one.

    Args:
      image_encoder: float32 [B, S, S, 3] in [0, 1] → float32 [B, D].
      text_encoder: {"input_word_ids", "input_mask", "input_type_ids"}, int32 [B, T] → float32 [B, H].
      config: the whole configuration tree.
    """

    def __init__(self, image_encoder: tf.keras.Model, text_encoder: tf.keras.Model, config: ConfigDict, **kwargs):
        super().__init__(**kwargs)
        if image_encoder.output_shape[-1] != config.embedding_size:
            raise ConfigurationError(
                f"The image tower gives {image_encoder.output_shape[-1]} numbers and embedding_size is "
                f"{config.embedding_size}: set --config.embedding_size={image_encoder.output_shape[-1]}, or let "
                f"--config.image_tower.projection={config.embedding_size} project the image."
            )
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.loss_config = config.loss
        self.embedding_size = config.embedding_size
        self.length_groups = config.text_tower.length_groups
        self.clip_norm = config.optimizer.clip_norm
        self.image_size = config.image_tower.image_size
        low, high = (math.log(bound) for bound in config.loss.temperature_range)
        self.log_temperature = self.add_weight(  # log τ keeps τ positive; the constraint keeps it in its range
            name="log_temperature",
            shape=(),
            initializer=tf.keras.initializers.Constant(math.log(config.loss.temperature)),
            constraint=lambda value: tf.clip_by_value(value, low, high),
            trainable=True,
        )
        # Where the last trained batch ended in each data stream, as (epoch, offset); saved with the weights.
        self.data_position = self.add_weight(
            name="data_position",
            shape=(2, 2),
            dtype=tf.int64,
            initializer=tf.keras.initializers.Constant(-1),
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self.optimizers: dict[str, tf.keras.optimizers.Optimizer] = {}
        self.meters: dict[str, tf.keras.metrics.Metric] = {}

    # What a method defines.

    def encode(self, batch: dict, training: bool) -> dict[str, tf.Tensor]:
        """Returns L2-normalised float32 embeddings {name: [B, D]}, each row from one example alone."""
        raise NotImplementedError

    def losses(self, embeddings: dict, batch: dict, rows: dict[str, Rows]) -> dict[str, tf.Tensor]:
        """Returns {task: scalar} of the global batch, summed over the queries in `rows[task]` only."""
        raise NotImplementedError

    def loss_weights(self) -> dict[str, float]:
        """Returns {task: weight} of Eq. 1."""
        raise NotImplementedError

    def variable_groups(self) -> dict[str, list[tf.Variable]]:
        """Returns the variables whose learning rate can be set apart, by group."""
        return {
            "image_tower": self.image_encoder.trainable_variables,
            "text_tower": self.text_encoder.trainable_variables,
        }

    def weights_by_part(self) -> dict[str, tf.Module | tf.Variable]:
        """Returns what a trained model consists of, by name: towers, heads, temperature. Checkpoints hold these."""
        heads = {f"{name}_head": self.text_head(name) for name in self.head_names}
        towers = {"image_encoder": self.image_encoder, "text_encoder": self.text_encoder}
        return {**towers, **heads, "log_temperature": self.log_temperature}

    # What evaluation and export use.

    @property
    def temperature(self) -> tf.Tensor:
        """The learned image-text temperature, a scalar within `loss.temperature_range`."""
        return tf.exp(self.log_temperature)

    def embed_images(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps images, uint8 or float in [0, 1] [B, S, S, 3], to L2-normalised float32 [B, D]."""
        if images.dtype == tf.uint8:
            images = tf.cast(images, tf.float32) / 255.0
        return tf.math.l2_normalize(tf.cast(self.image_encoder(images, training=training), tf.float32), axis=-1)

    def embed_texts(self, tokens: dict, head: str = "image_text", training: bool = False) -> tf.Tensor:
        """Maps tokens, int32 [B, T], through the text tower and one head to L2-normalised float32 [B, D]."""
        return self.project_texts(self.text_states([tokens], training)[0], head)

    def text_states(self, batches: list[dict], training: bool) -> list[tf.Tensor]:
        """Runs batches of tokens, int32 [B_i, T_i], through the text tower in one pass: a list of float32 [B_i, H]."""
        tokens = {name: _stack([batch[name] for batch in batches]) for name in TOKENS}
        states = encode_by_length(self.text_encoder, tokens, self.length_groups if training else 1, training)
        return tf.split(states, [tf.shape(batch[TOKENS[0]])[0] for batch in batches])

    def project_texts(self, states: tf.Tensor, head: str) -> tf.Tensor:
        """Maps states of the text tower through one head to L2-normalised float32 [B, D]."""
        return tf.math.l2_normalize(tf.cast(self.text_head(head)(states), tf.float32), axis=-1)

    def text_head(self, name: str) -> tf.keras.layers.Layer:
        """Returns a projection head of the text tower by its name; raises `ValueError` if there is none."""
        head = getattr(self, f"{name}_head", None)
        if head is None:
            raise ValueError(f"{type(self).__name__} has no {name!r} head.")
        return head

    def build_variables(self) -> None:
        """Creates every variable by running one example through each tower and head."""
        tokens = {name: tf.ones([1, 4], tf.int32) for name in TOKENS}
        self.embed_images(tf.zeros([1, self.image_size, self.image_size, 3]))
        for name in self.head_names:
            self.embed_texts(tokens, name)
        self.built = True

    # The training step.

    def compile(self, optimizers: dict[str, tf.keras.optimizers.Optimizer], **kwargs):
        """Takes one optimiser for all tasks, {"joint": …}, or one a task; see `optimizers.build_optimizers`."""
        super().compile(optimizer=next(iter(optimizers.values())), **kwargs)
        self.optimizers = dict(optimizers)
        names = [f"loss_{task}" for task in self.loss_weights()] + ["loss", "temperature", "data_wait_seconds"]
        names += [_norm_name(name) for name in self.optimizers]
        self.meters = {name: tf.keras.metrics.Mean(name) for name in names}
        trainable = self.trainable_variables
        for optimizer in self.optimizers.values():
            optimizer._create_all_weights(trainable)  # so that a checkpoint can be restored before the first step

    def train_step(self, batch: dict) -> dict[str, tf.Tensor]:
        """One step on one replica's part of the global batch; returns the logs."""
        context = tf.distribute.get_replica_context()
        with tf.GradientTape(persistent=len(self.optimizers) > 1) as tape:
            embeddings = self.encode(batch, training=True)
            rows = self._rows(embeddings, context)
            losses = self.losses(_gather(embeddings, context), _gather(self.match_ids(batch), context), rows)
            weighted = {task: self.loss_weights()[task] * loss for task, loss in losses.items()}
            totals = {"joint": tf.add_n(list(weighted.values()))} if "joint" in self.optimizers else weighted
        logs = {}
        for name, optimizer in self.optimizers.items():
            norm = self._apply(optimizer, tape.gradient(totals[name], self.trainable_variables), context)
            logs[_norm_name(name)] = norm
        self._remember_position(batch, context)
        losses = {f"loss_{task}": loss for task, loss in losses.items()}
        losses["loss"] = tf.add_n(list(weighted.values()))
        logs.update(context.all_reduce(tf.distribute.ReduceOp.SUM, losses))
        logs["temperature"] = self.temperature
        if "data_wait_seconds" in batch:
            logs["data_wait_seconds"] = tf.reduce_sum(batch["data_wait_seconds"])
        for name, value in logs.items():
            self.meters[name].update_state(value)
        return {name: self.meters[name].result() for name in logs}

    @property
    def metrics(self) -> list[tf.keras.metrics.Metric]:
        """Means since the last log line; `fit` resets them."""
        return list(self.meters.values())

    def match_ids(self, batch: dict) -> dict[str, tf.Tensor]:
        """Returns the [B] integer ids by which duplicates are known."""
        return {name: ids for name, ids in batch.items() if name.endswith("_id")}

    def _apply(self, optimizer, gradients, context) -> tf.Tensor:
        pairs = [(g, v) for g, v in zip(gradients, self.trainable_variables) if g is not None]
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, [g for g, _ in pairs])
        norm = tf.linalg.global_norm(summed)
        if self.clip_norm:
            summed, _ = tf.clip_by_global_norm(summed, self.clip_norm, use_norm=norm)
        optimizer.apply_gradients(zip(summed, [v for _, v in pairs]), experimental_aggregate_gradients=False)
        return norm

    def _rows(self, embeddings: dict, context) -> dict[str, Rows]:
        """Which rows of the gathered embeddings this replica answers for."""
        replica = context.replica_id_in_sync_group
        counts = {name: tf.shape(value)[0] for name, value in embeddings.items()}
        return {name: (replica * count, count) for name, count in counts.items()}

    def _remember_position(self, batch: dict, context) -> None:
        streams = [batch[name] for name in ("image_text_position", "text_text_position") if name in batch]
        if streams:
            last = [_gather({"_": stream}, context)["_"][-1] for stream in streams]
            self.data_position.assign(tf.stack((last * 2)[:2]))


def _stack(ids: list[tf.Tensor]) -> tf.Tensor:
    """Concatenates [B_i, T_i] along the batch, padding with 0 to the largest T; a static shape where all are."""
    widths = [value.shape[1] for value in ids]
    width = tf.reduce_max([tf.shape(value)[1] for value in ids]) if None in widths else max(widths)
    return tf.concat([tf.pad(value, [[0, 0], [0, width - tf.shape(value)[1]]]) for value in ids], axis=0)


def _norm_name(optimizer: str) -> str:
    return "gradient_norm" if optimizer == "joint" else f"gradient_norm_{optimizer}"


def _gather(values: dict[str, tf.Tensor], context) -> dict[str, tf.Tensor]:
    """Concatenates each replica's rows, in replica order; differentiable."""
    if context.num_replicas_in_sync == 1:
        return values
    return {name: context.all_gather(tf.identity(value), axis=0) for name, value in values.items()}
