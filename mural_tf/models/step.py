"""The training step that all methods share: from one replica's part of a global batch to applied gradients.

A method gives it two functions: `encode(batch, training)`, examples to embeddings, one by one; and
`objective(embeddings, ids, rows)`, the weighted losses of the whole global batch. Everything between the two is here.

**Global negatives.** Every replica gathers all embeddings and sums the loss over its own rows only. The gradient of
`all_gather` sums all replicas' gradients of an embedding, so the gradients added over replicas equal the gradients of
one device with the whole batch.

**One pass or two.** One pass keeps the activations of the whole batch. Two passes keep the activations of one chunk:
encode chunk by chunk without them; take the loss and its gradient with respect to the embeddings; encode every chunk
again, now with a tape, and send that gradient back through it. By the chain rule this is the gradient of the full
batch, all negatives included (cached gradients, Gao et al., 2021); accumulating the gradients of chunk losses would
lose negatives. Both passes see the same draws and the same BatchNorm groups. One exception: the dropout of a TF-Hub
text tower has its own draws, so it is off in two passes.

**The guard.** A step whose loss or gradient is not finite changes nothing and is counted; too many in a row end the
run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.kernels import on_tpu
from mural_tf.encoders.layers import forward_pass
from mural_tf.losses.pairs import count_rows
from mural_tf.optimizers import conditional, log_suffix, losses_by_optimizer

TOWERS = ("image_tower", "text_tower")  # groups of variables; all others are heads
HEADS = "heads"


class TrainingStep:
    """One step on one replica's part of the global batch; call it in a replica's context, outside of any loop.

    Args:
      method: the trained model, of which the step uses `encode` and `objective`; `parts`, the names of the batch's
        entries that `encode` takes, and `embedding_shapes`, {embedding: (part that it comes from, width)}, for chunks;
        `trainable_variables`, `variable_groups()` and `normalization_layers()`.
      optimizers: {"joint": optimiser}, or {task: optimiser}.
      guard: decides whether a step is applied.
      clip_norm: global gradient norm to clip at; 0: off.
      micro_batches: 1 for one pass; above, the number of equal chunks of two passes.
      seed: the run's seed.
      average: takes the weights after every step that is applied; `None`: nothing does.

    Attributes:
      trained_parameters: numbers in the variables that the losses reach; `None` before the first step is traced.
    """

    def __init__(
        self,
        method,
        optimizers: Mapping[str, keras.optimizers.Optimizer],
        guard: StepGuard,
        clip_norm: float = 0.0,
        micro_batches: int = 1,
        seed: int = 0,
        average: WeightAverage | None = None,
    ):
        self._method = method
        self._optimizers = optimizers
        self.guard = guard
        self._clip_norm = clip_norm
        self._chunks = micro_batches
        self._seed = seed
        self.average = average
        self.trained_parameters: int | None = None

    @property
    def log_names(self) -> list[str]:
        """The names of the gradient norms that a step logs."""
        names = []
        for optimizer in self._optimizers:
            names += _norm_names(optimizer)
        return names

    def __call__(self, batch: dict, step: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Trains on a batch; returns its logs {name: scalar}, and whether the step was applied, a bool scalar.

        Weights, BatchNorm's statistics and the average stay as they are if the guard refuses the step.

        Args:
          batch: this replica's part, {name: tensor [B, …]}.
          step: an int64 scalar, from which all draws follow.
        """
        context = tf.distribute.get_replica_context()
        # A seed is two numbers. It depends on the step, so that a run that goes on draws as if it had not stopped.
        seed = tf.random.experimental.stateless_fold_in([self._seed, 0], step)
        seed = tf.random.experimental.stateless_fold_in(seed, context.replica_id_in_sync_group)
        gradients = compute_gradients(self._method, batch, seed, self._chunks, self._optimizers)
        logs = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients.logs)
        logs.update(self._method.state_logs())
        summed = {}  # {name of an optimiser: its gradients}
        for optimizer, replica_gradients in gradients.by_optimizer.items():
            summed[optimizer] = _sum_over_replicas(replica_gradients, context)
        self.trained_parameters = self._count_reached(summed)
        with tf.name_scope("gradient_norms"):
            for optimizer, global_gradients in summed.items():
                logs.update(self._norms(optimizer, global_gradients))
        apply = self.guard.check(step, logs)
        with tf.name_scope("optimizer"):
            for optimizer, global_gradients in summed.items():
                self._apply(optimizer, global_gradients, logs, apply)
        for layer, moments in gradients.moments.items():
            layer.update_moving(*moments, apply=apply)
        if self.average is not None:
            self.average.update(apply)
        return logs, apply

    def _norms(self, optimizer: str, gradients: list) -> dict[str, tf.Tensor]:
        """Returns {name: scalar}: the global norm of gradients, and the norms of both towers' and of the heads'."""
        groups = self._method.variable_groups()
        tower_of = {}  # {a variable's reference: its tower}
        for tower in TOWERS:
            for variable in groups.get(tower, ()):
                tower_of[variable.ref()] = tower
        squares = {part: [] for part in (*TOWERS, HEADS)}
        for gradient, variable in self._with_variables(gradients):
            part = tower_of.get(variable.ref(), HEADS)
            squares[part].append(2.0 * tf.nn.l2_loss(gradient))  # `l2_loss` is half of the sum of squares
        sums = []
        for part_squares in squares.values():
            sums.append(tf.add_n(part_squares) if part_squares else tf.zeros([]))
        norms = map(tf.sqrt, [tf.add_n(sums), *sums])
        return dict(zip(_norm_names(optimizer), norms))

    def _with_variables(self, gradients: list) -> list[tuple[tf.Tensor, tf.Variable]]:
        """Returns [(gradient, variable)] of the variables that have a gradient."""
        pairs = zip(gradients, self._method.trainable_variables)
        return [(gradient, variable) for gradient, variable in pairs if gradient is not None]

    def _apply(self, name: str, gradients: list, logs: dict, apply: tf.Tensor) -> None:
        """Clips and applies the gradients of the optimiser `name`, or zeros in their place if `apply` is false.

        `logs` has their global norm.
        """
        present, variables = zip(*self._with_variables(gradients))
        if self._clip_norm:
            global_norm, *_ = _norm_names(name)
            present, _ = tf.clip_by_global_norm(present, self._clip_norm, use_norm=logs[global_norm])
        optimizer = self._optimizers[name]
        conditional_gradients = conditional(optimizer, self._zero_unless(apply, present), apply)
        optimizer.apply_gradients(zip(conditional_gradients, variables), experimental_aggregate_gradients=False)

    @staticmethod
    def _zero_unless(apply: tf.Tensor, gradients: list) -> list:
        """Returns the gradients, or zeros in their place where `apply`, a bool scalar, is false."""
        if on_tpu():  # it selects while it reads them; a condition would write all of them first
            return [tf.where(apply, gradient, tf.zeros_like(gradient)) for gradient in gradients]
        return tf.cond(apply, lambda: list(gradients), lambda: list(map(tf.zeros_like, gradients)))

    def _count_reached(self, by_optimizer: dict[str, list]) -> int:
        """Returns how many numbers are in the variables that have a gradient, by any optimiser."""
        reached = {}
        for gradients in by_optimizer.values():
            reached.update({variable.ref(): variable for _, variable in self._with_variables(gradients)})
        return sum(variable.shape.num_elements() for variable in reached.values())


def _norm_names(optimizer: str) -> list[str]:
    """Returns the log names of an optimiser's global gradient norm and, after it, of its parts' norms."""
    name = f"gradient_norm{log_suffix(optimizer)}"
    return [name, *(f"{name}/{group}" for group in (*TOWERS, HEADS))]


def gather(values: dict[str, tf.Tensor], context=None) -> dict[str, tf.Tensor]:
    """Returns {name: rows of all replicas, in their order} of {name: this replica's rows [B, …]}; differentiable."""
    context = context or tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return {name: _gather_rows(tf.identity(value), context) for name, value in values.items()}


def _gather_rows(value: tf.Tensor, context) -> tf.Tensor:
    """Returns the rows of all replicas' tensors, in the replicas' order."""
    if value.dtype != tf.int64:
        return context.all_gather(value, axis=0)
    halves = tf.bitcast(value, tf.int32)  # [..., 2]: a TPU adds up 32 bits at most, and gathers by adding up
    return tf.bitcast(context.all_gather(halves, axis=0), tf.int64)


def _sum_over_replicas(gradients: list, context) -> list:
    """Returns the gradients added up over replicas, in their order; `None` stays."""
    present = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, present)
    return [summed.get(index) for index in range(len(gradients))]


# Gradients, in one pass or in two.


@dataclasses.dataclass
class Gradients:
    """The results of one step before anything is applied; this replica's part, to be summed over replicas.

    logs: {name: scalar}, losses by task, their weighted sum and in-batch recalls.
    by_optimizer: {optimiser: gradients, a dense tensor or `None` for each of the method's trainable variables}.
    moments: {BatchNorm layer: (mean [C], variance [C])}.
    """

    logs: dict[str, tf.Tensor]
    by_optimizer: dict[str, list[tf.Tensor | None]]
    moments: dict


@tf.autograph.experimental.do_not_convert  # as for the step: nothing here needs it, and converting takes seconds
def compute_gradients(method, batch: dict, seed: tf.Tensor, chunks: int, optimizers=("joint",)) -> Gradients:
    """Returns the gradients of the global batch's losses, for each optimiser of the loss that it minimises.

    Args:
      method: as in `TrainingStep`.
      batch: this replica's part of the batch, {name: tensor [B, …]}.
      seed: int32 [2], for the draws of this step on this replica.
      chunks: 1 for one pass; above, the number of equal chunks of two passes.
      optimizers: names of optimisers, as in `losses_by_optimizer`.
    """
    if chunks == 1:
        return _one_pass(method, batch, seed, optimizers)
    return _two_passes(method, batch, seed, chunks, optimizers)


def chunk_seed(seed: tf.Tensor, chunk: tf.Tensor | int) -> tf.Tensor:
    """Returns the seed of one chunk's draws; chunk 0 is the whole batch where there is one pass."""
    return tf.random.experimental.stateless_fold_in(seed, chunk)


def global_losses(
    method, embeddings: dict, batch: dict, optimizers
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the losses {optimiser: scalar} and the logs {name: scalar} of this replica's rows of the global batch.

    `embeddings` {name: [B, D]} and `batch`, which has the ids, are this replica's; `optimizers` are names.
    """
    context = tf.distribute.get_replica_context()
    replica = context.replica_id_in_sync_group
    counts = {name: count_rows(value) for name, value in embeddings.items()}
    rows = {name: (replica * count, count) for name, count in counts.items()}
    gathered = gather(embeddings, context)
    ids = gather({name: value for name, value in batch.items() if name.endswith("_id")}, context)
    with tf.name_scope("losses"):
        losses, logs = method.objective(gathered, ids, rows)
    return losses_by_optimizer(losses, optimizers), logs


def _one_pass(method, batch, seed, optimizers) -> Gradients:
    """Returns the gradients of the loss of a batch that is encoded as a whole."""
    variables = method.trainable_variables
    with tf.GradientTape(persistent=len(optimizers) > 1) as tape:
        with forward_pass(chunk_seed(seed, 0)) as current:
            embeddings = method.encode(batch, training=True)
        losses, logs = global_losses(method, embeddings, batch, optimizers)
    by_optimizer = {}
    for name, loss in losses.items():
        by_optimizer[name] = list(map(_dense, tape.gradient(loss, variables), variables))
    return Gradients(logs, by_optimizer, current.mean_moments())


def _two_passes(method, batch, seed, chunks: int, optimizers) -> Gradients:
    """Returns the gradients of the loss, with the activations of only one chunk in memory at a time.

    The first pass encodes the chunks for the loss, whose gradients reach the embeddings. The second pass encodes each
    chunk again, and takes these gradients on to the variables.
    """
    examples = _split({name: batch[name] for name in method.parts}, chunks)
    embeddings, moments = _encode_chunks(method, examples, seed, chunks)
    variables = method.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(embeddings)
        losses, logs = global_losses(method, embeddings, batch, optimizers)
    embedding_gradients = {}
    loss_gradients = {}  # of variables that the objective itself reads, such as the temperature
    for name, loss in losses.items():
        embedding_gradients[name] = _present(tape.gradient(loss, embeddings))
        loss_gradients[name] = tape.gradient(loss, variables)
    del tape
    by_optimizer = {}
    for name in losses:  # `per_task` encodes once more for each task: simple, and rarely wanted
        tower_gradients = _backpropagate_chunks(method, examples, seed, chunks, embedding_gradients[name])
        by_optimizer[name] = list(map(_add, loss_gradients[name], tower_gradients))
    return Gradients(logs, by_optimizer, moments)


def _encode_chunks(method, examples, seed, chunks: int):
    """First pass: returns the batch's embeddings {name: [B, D]}, and {BatchNorm layer: (mean [C], variance [C])}."""
    layers = method.normalization_layers()

    def encode(index):
        with forward_pass(chunk_seed(seed, index), repeated=True) as current:
            embeddings = method.encode(_chunk(examples, index), training=True)
        moments = current.mean_moments()
        return embeddings, [moments[layer] for layer in layers]

    specs = {}
    for name, (part, width) in method.embedding_shapes.items():
        rows = tf.nest.flatten(examples[part])[0].shape[1]  # of a tensor [chunks, rows of a chunk, …]
        specs[name] = tf.TensorSpec([rows, width])
    moment_specs = [(tf.TensorSpec(layer.moving_mean.shape),) * 2 for layer in layers]  # mean and variance
    signature = (specs, moment_specs)
    embeddings, moments = tf.map_fn(encode, tf.range(chunks), fn_output_signature=signature, parallel_iterations=1)
    embeddings = {name: tf.reshape(value, [-1, value.shape[-1]]) for name, value in embeddings.items()}
    means = tf.nest.map_structure(lambda values: tf.reduce_mean(values, axis=0), moments)
    return embeddings, dict(zip(layers, means))


def _backpropagate_chunks(method, examples, seed, chunks: int, upstream) -> list[tf.Tensor | None]:
    """Second pass: returns the gradients of the trainable variables, `None` for variables that the loss does not reach.

    `upstream` is {name: the loss's gradient with respect to these embeddings, [B, D]}.
    """
    variables = method.trainable_variables
    upstream = _split(upstream, chunks)
    has_gradient: list[bool] = []  # per variable; set while the loop's body is traced, and the same in every chunk

    def add_chunk(index, sums):
        with tf.GradientTape() as tape:
            with forward_pass(chunk_seed(seed, index), repeated=True):
                embeddings = method.encode(_chunk(examples, index), training=True)
        targets = [embeddings[name] for name in upstream]
        output_gradients = list(_chunk(upstream, index).values())
        gradients = tape.gradient(targets, variables, output_gradients=output_gradients)
        has_gradient[:] = [gradient is not None for gradient in gradients]
        return index + 1, list(map(_accumulate, sums, gradients))

    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]

    def is_left(index, _):
        return index < chunks

    state = (0, zeros)
    _, sums = tf.while_loop(is_left, add_chunk, state, parallel_iterations=1, maximum_iterations=chunks)
    return [total if exists else None for total, exists in zip(sums, has_gradient)]


def _split(values, chunks: int):
    """Reshapes every tensor of a nest, [B, ...] -> [chunks, B / chunks, ...]; static sizes stay static."""

    def split(value):
        dynamic = tf.shape(value)
        sizes = [dynamic[axis] if size is None else size for axis, size in enumerate(value.shape)]
        return tf.reshape(value, [chunks, sizes[0] // chunks, *sizes[1:]])

    return tf.nest.map_structure(split, values)


def _chunk(values, index):
    """Returns the chunk at `index` of every tensor in a nest that `_split` returned."""
    return tf.nest.map_structure(lambda value: value[index], values)


def _present(gradients: dict) -> dict:
    """Returns {name: gradient} without the embeddings that a task does not use, whose gradient is `None`."""
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def _accumulate(total, gradient):
    """Returns `total` plus a gradient, which may be `None` or sparse."""
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):  # of a token table: touches the rows of this chunk only
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, tf.newaxis], gradient.values)
    return total + gradient


def _add(first, second):
    """Returns the sum of two gradients, each of which may be `None`."""
    if first is None:
        return second
    if second is None:
        return first
    return first + second


def _dense(gradient, variable: tf.Variable):
    """Returns a variable's gradient as a dense tensor; `None` stays.

    The norm of `IndexedSlices` with repeated rows would be wrong, and every optimiser here decays the moments of all
    rows at each step anyway.
    """
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    return gradient


def bookkeeping(value, name: str) -> tf.Variable:
    """Returns a variable that is not a weight, and the same on every replica."""
    return tf.Variable(value, trainable=False, name=name, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


class WeightAverage(tf.Module):
    """The exponential average of weights over steps: a <- d a + (1 - d) w after every step that is applied.

    After Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging" (1992), with the decay that
    TensorFlow's moving averages take: d = min(decay, (1 + t) / (10 + t)) after t steps, so that the first weights are
    soon forgotten. BatchNorm's statistics are averages already and stay as they are.

    Args:
      weights: variables; the average begins with their present values.
      decay: in (0, 1); another number raises `UserError`.

    Attributes:
      values: the averages, in the order of `weights`.
    """

    def __init__(self, weights: Sequence[tf.Variable], decay: float):
        super().__init__()
        if not 0.0 < decay < 1.0:
            raise UserError(f"train.average_decay={decay}: expected a number from 0 (no average) to below 1.")
        self._weights = list(weights)
        self._decay = decay
        self.steps = bookkeeping(tf.zeros([], tf.int64), "average_steps")
        values = []
        for number, weight in enumerate(self._weights):
            values.append(bookkeeping(weight.read_value(), f"average_{number}"))
        self.values = values

    def update(self, apply: tf.Tensor) -> None:
        """Moves the average towards the present weights, if `apply`, a bool scalar, is true."""
        steps = tf.cast(self.steps, tf.float32)
        rate = 1.0 - tf.minimum(self._decay, (1.0 + steps) / (10.0 + steps))
        for value, weight in zip(self.values, self._weights):
            value.assign_add(tf.where(apply, rate * (weight - value), 0.0))
        self.steps.assign_add(tf.cast(apply, tf.int64))


class Meters:
    """Means of logs since Keras' last reset; no `tf.Module`, so that Keras does not count them as a model's weights."""

    def __init__(self, names: Sequence[str]):
        self._by_name = {name: keras.metrics.Mean(name) for name in names}

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return list(self._by_name.values())

    def update(self, logs: Mapping[str, tf.Tensor], weight: tf.Tensor | float = 1.0) -> dict[str, tf.Tensor]:
        """Adds `logs` {name: scalar} to the means with a weight, and returns {name: mean since the last reset}."""
        for name, value in logs.items():
            self._by_name[name].update_state(value, sample_weight=weight)
        return {name: self._by_name[name].result() for name in logs}


class StepGuard(tf.Module):
    """Decides for each step whether it is applied, and remembers the last one that was not.

    Args:
      limit: steps in a row that may be left out; one more and `raise_if_stuck` raises.
    """

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit
        self._names: tuple[str, ...] = ()
        zero = tf.zeros([], tf.int64)
        self.total = bookkeeping(zero, "skipped_steps")
        self._in_row = bookkeeping(zero, "skipped_steps_in_row")
        self._longest = bookkeeping(zero, "skipped_steps_longest_row")  # since `raise_if_stuck` was last called
        self._last_step = bookkeeping(zero, "skipped_step_last")

    def build(self, names: list[str]) -> None:
        """Takes the names of the logs that describe a skipped step, and makes the variable that keeps them."""
        self._names = tuple(names)
        self._last_values = bookkeeping(tf.zeros([len(names)]), "skipped_step_values")

    def check(self, step: tf.Tensor, logs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Counts a step, and returns whether all its logs of `build`'s names are finite: a bool scalar.

        It is the same on every replica. `step` is the step's number, int64; a refused step's logs are kept.
        """
        values = tf.stack([tf.cast(logs[name], tf.float32) for name in self._names])
        finite = tf.reduce_all(tf.math.is_finite(values))
        skipped = tf.cast(tf.logical_not(finite), tf.int64)
        in_row = (self._in_row + 1) * skipped
        self.total.assign_add(skipped)
        self._in_row.assign(in_row)
        self._longest.assign(tf.maximum(self._longest, in_row))
        self._last_step.assign(tf.where(finite, self._last_step, step))
        self._last_values.assign(tf.where(finite, self._last_values, values))
        return finite

    def raise_if_stuck(self) -> None:
        """Raises `UserError` if more than `limit` steps in a row were left out since the last call; counts anew."""
        longest = int(self._longest.numpy())
        self._longest.assign(0)
        if longest > self.limit:
            values = [f"{name} {value:.4g}" for name, value in zip(self._names, self._last_values.numpy())]
            raise UserError(
                f"{longest} steps in a row had a loss or gradient that is not finite and were left out; the last was "
                f"step {int(self._last_step.numpy())}: {', '.join(values)}. "
                "The weights are those before them. Lower optimizer.learning_rate, set optimizer.clip_norm, or find "
                "the operation with --debug_nans."
            )
