"""`ContrastiveModel`: two towers and the one training step that every method shares.

A method says how examples become embeddings (`encode`, one example at a time) and what they should be
(`losses`, over the whole global batch). Everything between the two lives here and in `gradients.py`: gathering over
replicas, micro-batches, clipping, the optimisers, and leaving out steps that are not finite.

Global negatives: every replica gathers all embeddings and sums the loss over its own rows only. The gradient of
`all_gather` sums what all replicas want of an embedding, so the gradients added over replicas are those of one
device with the whole batch.
"""

from __future__ import annotations

import math

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.encoders.layers import BatchNormalization
from mural_tf.encoders.packing import encode_by_length, stack_ids
from mural_tf.errors import UserError
from mural_tf.losses.contrastive import Matches, Rows, in_batch_recall
from mural_tf.models.step import StepGuard, compute_gradients

TOKENS = ("input_word_ids", "input_mask", "input_type_ids")


class ContrastiveModel(tf.keras.Model):
    """Base of all methods; see `Align` for the smallest one.

    Args:
      image_encoder: float32 [B, S, S, 3] in [0, 1], or features [B, F] → float32 [B, D].
      text_encoder: {"input_word_ids", "input_mask", "input_type_ids"}, int32 [B, T] → float32 [B, H].
      config: the whole configuration tree.
    """

    def __init__(self, image_encoder: tf.keras.Model, text_encoder: tf.keras.Model, config: ConfigDict, **kwargs):
        super().__init__(**kwargs)
        if image_encoder.output_shape[-1] != config.embedding_size:
            raise UserError(
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
        self.micro_batches = config.train.micro_batches
        if self.micro_batches < 1:
            raise UserError(f"train.micro_batches={self.micro_batches} must be at least 1, the whole batch.")
        self.seed = config.seed
        side = config.image_tower.image_size
        self.image_shape = (side, side, 3) if image_encoder.input_shape[1] is None else image_encoder.input_shape[1:]
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
        self._batch_spec = None
        self.guard = StepGuard(config.train.max_skipped_steps)
        self.optimizers: dict[str, tf.keras.optimizers.Optimizer] = {}
        self.meters: dict[str, tf.keras.metrics.Metric] = {}

    # What a method defines: `streams`, the data that its batches come from (data/streams/pipeline.py); `example_names`,
    # the parts of a batch that `encode` takes; `pairs`, {task: (query, candidate)}; `head_names`,
    # the first of which compares texts with images; and the following.

    starts_from: tuple[str, ...] = ()  # methods whose trained weights this one's stage begins with
    image_parts: tuple[str, ...] = ("image",)  # which of `example_names` are images
    log_names: tuple[str, ...] = ()  # of `measures`

    def encode(self, batch: dict, training: bool) -> dict[str, tf.Tensor]:
        """Returns L2-normalised float32 embeddings {name: [B, D]}, each row from one example alone."""
        raise NotImplementedError

    def losses(self, embeddings: dict, batch: dict, rows: dict[str, Rows]) -> dict[str, tf.Tensor]:
        """Returns {task: scalar} of the global batch, summed over the queries in `rows[task]` only."""
        raise NotImplementedError

    @property
    def embedding_shapes(self) -> dict[str, tuple[str, int]]:
        """{embedding: (the part of the batch that it comes from, its width)}; by default one for each example name."""
        return {name: (name, self.embedding_size) for name in self.example_names}

    def measures(self, embeddings: dict, batch: dict, rows: dict[str, Rows]) -> dict[str, tf.Tensor]:
        """Returns {name of `log_names`: scalar} to log; arguments and summing as of `losses`."""
        return {}

    def begin(self, tokenizer, restored: bool) -> None:
        """Called once, before a run's first step; `restored`: its weights come from another run or an export."""

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
        """Maps images, uint8 or float in [0, 1] [B, S, S, 3], or features to L2-normalised float32 [B, D]."""
        return image_embeddings(self.image_encoder, images, training)

    def embed_texts(self, tokens: dict, head: str = "", training: bool = False) -> tf.Tensor:
        """Maps tokens, int32 [B, T], through the text tower and a head, by default the first, to float32 [B, D]."""
        return self.project_texts(self.text_states([tokens], training)[0], head or self.head_names[0])

    def text_states(self, batches: list[dict], training: bool) -> list[tf.Tensor]:
        """Runs batches of tokens, int32 [B_i, T_i], through the text tower in one pass: a list of float32 [B_i, H]."""
        tokens = {name: stack_ids([batch[name] for batch in batches]) for name in TOKENS}
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
        self.embed_images(tf.zeros([1, *self.image_shape]))
        for name in self.head_names:
            self.embed_texts(tokens, name)
        self.built = True

    # The training step.

    def compile(self, optimizers: dict[str, tf.keras.optimizers.Optimizer], **kwargs):
        """Takes one optimiser for all tasks, {"joint": …}, or one a task; see `optimizers.build_optimizers`."""
        super().compile(optimizer=next(iter(optimizers.values())), **kwargs)
        self.optimizers = dict(optimizers)
        tasks = self.loss_weights()
        names = [*(f"loss_{task}" for task in tasks), "loss", "temperature"]
        names += [f"recall@1_{task}" for task in tasks if task in self.pairs]
        names += [*self.log_names, *(name for optimizer in self.optimizers for name in self._norm_names(optimizer))]
        self.meters = {name: tf.keras.metrics.Mean(name) for name in [*names, "data_wait_seconds"]}
        self.guard.build(names)
        trainable = self.trainable_variables
        for optimizer in self.optimizers.values():
            optimizer._create_all_weights(trainable)  # so that a checkpoint can be restored before the first step

    def fit(self, x, **kwargs):
        """Keras' `fit`, which forgets the shapes of the batches that `x` announces, with these shapes."""
        self._batch_spec = tf.nest.map_structure(
            lambda spec: tf.nest.flatten(spec, expand_composites=True)[0],  # one replica's, of a distributed data set
            x.element_spec,
        )
        return super().fit(x, **kwargs)

    @property
    def steps_taken(self) -> tf.Variable:
        """int64 scalar: steps of training so far, those left out included."""
        return next(iter(self.optimizers.values())).iterations

    @tf.autograph.experimental.do_not_convert  # nothing in a step needs it, and converting takes seconds
    def train_step(self, batch: dict) -> dict[str, tf.Tensor]:
        """One step on one replica's part of the global batch; returns the means of the logs since the last reset."""
        if self._batch_spec is not None:
            batch = tf.nest.map_structure(lambda v, spec: tf.ensure_shape(v, spec.shape), batch, self._batch_spec)
        context = tf.distribute.get_replica_context()
        step = tf.identity(self.steps_taken)
        gradients = compute_gradients(self, batch, self._step_seed(step, context), self.micro_batches)
        logs = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients.logs)
        logs["temperature"] = self.temperature
        summed = {name: self._sum(values, context) for name, values in gradients.by_optimizer.items()}
        for name, values in summed.items():
            logs.update(self._norms(name, values))
        apply = self.guard.check(step, logs)
        for name, values in summed.items():
            self._apply(name, values, logs, apply)
        for layer, moments in gradients.moments.items():
            layer.update_moving(*moments, apply=apply)
        self._remember_position(batch, context)
        return self._log(logs, batch, apply)

    def totals(self, embeddings: dict, batch: dict) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the weighted losses {optimiser: scalar} and the logs {name: scalar}, of this replica's queries."""
        context = tf.distribute.get_replica_context()
        rows = self._rows(embeddings, context)
        gathered = _gather(embeddings, context)
        ids = _gather(self.match_ids(batch), context)
        losses = self.losses(gathered, ids, rows)
        weighted = {task: self.loss_weights()[task] * loss for task, loss in losses.items()}
        total = tf.add_n(list(weighted.values()))
        logs = {**{f"loss_{task}": loss for task, loss in losses.items()}, "loss": total}
        for task, (query, candidate) in self.pairs.items():
            if task in losses:
                logs[f"recall@1_{task}"] = in_batch_recall(gathered[query], gathered[candidate], rows[query])
        logs.update(self.measures(gathered, ids, rows))
        return ({"joint": total} if "joint" in self.optimizers else weighted), logs

    @property
    def metrics(self) -> list[tf.keras.metrics.Metric]:
        """Means since the last log line; `fit` resets them."""
        return list(self.meters.values())

    def match_ids(self, batch: dict) -> dict[str, tf.Tensor]:
        """Returns the [B] integer ids by which duplicates are known."""
        return {name: ids for name, ids in batch.items() if name.endswith("_id")}

    def normalization_layers(self) -> list[BatchNormalization]:
        """The layers that compute statistics in training."""
        layers = self.image_encoder._flatten_layers(include_self=False)
        return [layer for layer in layers if isinstance(layer, BatchNormalization) and layer.trainable]

    def _step_seed(self, step: tf.Tensor, context) -> tf.Tensor:
        """int32 [2], another one for every step and replica of one run: a resumed run draws what it would have."""
        seed = tf.random.experimental.stateless_fold_in([self.seed, 0], step)
        return tf.random.experimental.stateless_fold_in(seed, context.replica_id_in_sync_group)

    def _sum(self, gradients: list, context) -> list:
        """Adds up gradients over replicas; `None` stays."""
        present = [gradient for gradient in gradients if gradient is not None]
        summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
        return [None if gradient is None else next(summed) for gradient in gradients]

    def _norm_names(self, optimizer: str) -> list[str]:
        whole = "gradient_norm" if optimizer == "joint" else f"gradient_norm_{optimizer}"
        return [whole, *(f"{whole}/{group}" for group in ("image_tower", "text_tower", "heads"))]

    def _norms(self, optimizer: str, gradients: list) -> dict[str, tf.Tensor]:
        """Returns the global norm and its parts: both towers, and everything else as "heads"."""
        towers = {"image_tower": self.image_encoder, "text_tower": self.text_encoder}
        group = {variable.ref(): name for name, tower in towers.items() for variable in tower.trainable_variables}
        squares = {"image_tower": [], "text_tower": [], "heads": []}
        for gradient, variable in zip(gradients, self.trainable_variables):
            if gradient is not None:
                squares[group.get(variable.ref(), "heads")].append(2.0 * tf.nn.l2_loss(gradient))
        sums = [tf.add_n(values) if values else tf.zeros([]) for values in squares.values()]
        return dict(zip(self._norm_names(optimizer), map(tf.sqrt, [tf.add_n(sums), *sums])))

    def _apply(self, name: str, gradients: list, logs: dict, apply: tf.Tensor) -> None:
        pairs = [(g, v) for g, v in zip(gradients, self.trainable_variables) if g is not None]
        values = [gradient for gradient, _ in pairs]
        if self.clip_norm:
            values, _ = tf.clip_by_global_norm(values, self.clip_norm, use_norm=logs[self._norm_names(name)[0]])
        values = tf.cond(apply, lambda: values, lambda: [tf.zeros_like(value) for value in values])
        optimizer = self.optimizers[name]
        optimizer.apply_if = apply
        optimizer.apply_gradients(zip(values, [v for _, v in pairs]), experimental_aggregate_gradients=False)

    def _log(self, logs: dict, batch: dict, apply: tf.Tensor) -> dict[str, tf.Tensor]:
        weight = tf.cast(apply, tf.float32)  # steps that were left out would make every mean NaN
        for name, value in logs.items():
            self.meters[name].update_state(tf.where(apply, value, 0.0), sample_weight=weight)
        results = {name: self.meters[name].result() for name in logs}
        if "data_wait_seconds" in batch:
            self.meters["data_wait_seconds"].update_state(tf.reduce_sum(batch["data_wait_seconds"]))
            results["data_wait_seconds"] = self.meters["data_wait_seconds"].result()
        return results

    def _rows(self, embeddings: dict, context) -> dict[str, Rows]:
        """Which rows of the gathered embeddings this replica answers for."""
        replica = context.replica_id_in_sync_group
        counts = {name: tf.shape(value)[0] for name, value in embeddings.items()}
        return {name: (replica * count, count) for name, count in counts.items()}

    def _remember_position(self, batch: dict, context) -> None:
        positions = [batch[f"{name}_position"] for name in self.streams if f"{name}_position" in batch]
        if positions:
            last = [_gather({"_": position}, context)["_"][-1] for position in positions]
            self.data_position.assign(tf.stack((last * 2)[:2]))


def image_embeddings(tower: tf.keras.Model, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Maps images, uint8 or float in [0, 1] [B, S, S, 3], or features to L2-normalised float32 [B, D] by a tower."""
    return tf.math.l2_normalize(tf.cast(tower(unit_range(images), training=training), tf.float32), axis=-1)


def unit_range(images: tf.Tensor) -> tf.Tensor:
    """Returns uint8 images as float32 in [0, 1]; what is float already as it is."""
    return tf.cast(images, tf.float32) / 255.0 if images.dtype == tf.uint8 else images


def text_matches(batch: dict[str, tf.Tensor]) -> Matches:
    """Returns the ids, of a batch of text pairs, by which texts are known that are no negatives.

    Those of pairs that all say the same ("text_group_id": co-captions of one image, translations of one sentence), and
    those of equal texts, on one side or across.
    """
    a, b = batch["text_a_id"], batch["text_b_id"]
    return batch["text_group_id"], a, b, (a, b)


def _gather(values: dict[str, tf.Tensor], context) -> dict[str, tf.Tensor]:
    """Concatenates each replica's rows, in replica order; differentiable."""
    if context.num_replicas_in_sync == 1:
        return values
    return {name: context.all_gather(tf.identity(value), axis=0) for name, value in values.items()}
