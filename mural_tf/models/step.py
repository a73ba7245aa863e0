"""Gradients of a contrastive loss over the global batch, in one pass or in two.

One pass keeps the activations of the whole batch. Two passes keep those of one chunk: encode chunk by chunk without
them; take the loss and its gradient with respect to the embeddings; encode every chunk again, now with a tape, and
send that gradient back through it. By the chain rule this is the gradient of the full batch, all negatives included
(cached gradients, Gao et al., 2021), where accumulating the gradients of chunk losses would lose the negatives.
Both passes see the same draws and the same BatchNorm groups.

Not exact: the dropout of a TF-Hub text tower draws for itself, so it is off in two passes.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from mural_tf.encoders.layers import forward_pass
from mural_tf.errors import UserError


@dataclasses.dataclass
class Gradients:
    """What one step computes before anything is applied; this replica's part, to be summed over replicas.

    logs: {name: scalar}, losses by task, their weighted sum and in-batch recalls.
    by_optimizer: {optimiser: gradients, a dense tensor or `None` for each of `model.trainable_variables`}.
    moments: {BatchNorm layer: (mean [C], variance [C])}.
    """

    logs: dict[str, tf.Tensor]
    by_optimizer: dict[str, list[tf.Tensor | None]]
    moments: dict


def compute_gradients(model, batch: dict, seed: tf.Tensor, chunks: int) -> Gradients:
    """Returns the gradients of the global batch's loss; call it in a replica's context, outside of any loop.

    Args:
      model: the `ContrastiveModel`.
      batch: this replica's part of the batch.
      seed: int32 [2], of this step's and replica's draws.
      chunks: 1 for one pass; above, the number of equal chunks of two passes.
    """
    return _one_pass(model, batch, seed) if chunks == 1 else _two_passes(model, batch, seed, chunks)


def chunk_seed(seed: tf.Tensor, chunk: tf.Tensor | int) -> tf.Tensor:
    """Returns the seed of one chunk's draws; chunk 0 is the whole batch where there is one pass."""
    return tf.random.experimental.stateless_fold_in(seed, chunk)


def _one_pass(model, batch, seed) -> Gradients:
    variables = model.trainable_variables
    with tf.GradientTape(persistent=len(model.optimizers) > 1) as tape:
        with forward_pass(chunk_seed(seed, 0)) as current:
            embeddings = model.encode(batch, training=True)
        totals, logs = model.totals(embeddings, batch)
    by_optimizer = {name: _dense(tape.gradient(total, variables), variables) for name, total in totals.items()}
    return Gradients(logs, by_optimizer, current.mean_moments())


def _two_passes(model, batch, seed, chunks: int) -> Gradients:
    _check_divisible(model, batch, chunks)
    examples = _split({name: batch[name] for name in model.example_names}, chunks)
    embeddings, moments = _encode_chunks(model, examples, seed, chunks)
    variables = model.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(embeddings)
        totals, logs = model.totals(embeddings, batch)
    upstream = {name: _present(tape.gradient(total, embeddings)) for name, total in totals.items()}
    direct = {name: tape.gradient(total, variables) for name, total in totals.items()}  # of the temperature
    del tape
    through = _backpropagate_chunks(model, examples, seed, chunks, upstream)
    by_optimizer = {name: [_add(d, t) for d, t in zip(direct[name], through[name])] for name in totals}
    return Gradients(logs, by_optimizer, moments)


def _encode_chunks(model, examples, seed, chunks: int):
    """First pass: returns the batch's embeddings {name: [B, D]} and BatchNorm's moments, averaged over chunks."""
    layers = model.normalization_layers()

    def encode(index):
        with forward_pass(chunk_seed(seed, index), repeated=True) as current:
            embeddings = model.encode(_chunk(examples, index), training=True)
        moments = current.mean_moments()
        return {name: embeddings[name] for name in shapes}, [moments[layer] for layer in layers]

    shapes = {
        name: (tf.nest.flatten(examples[part])[0].shape[1], width)
        for name, (part, width) in model.embedding_shapes.items()
    }
    signature = (
        {name: tf.TensorSpec(shape) for name, shape in shapes.items()},
        [(tf.TensorSpec(layer.moving_mean.shape), tf.TensorSpec(layer.moving_mean.shape)) for layer in layers],
    )
    embeddings, moments = tf.map_fn(encode, tf.range(chunks), fn_output_signature=signature, parallel_iterations=1)
    embeddings = {name: tf.reshape(value, [-1, shapes[name][1]]) for name, value in embeddings.items()}
    means = tf.nest.map_structure(lambda values: tf.reduce_mean(values, axis=0), moments)
    return embeddings, dict(zip(layers, means))


def _backpropagate_chunks(model, examples, seed, chunks: int, upstream) -> dict[str, list[tf.Tensor | None]]:
    """Second pass: returns, for each optimiser, the gradients that `upstream` {name: [B, D]} sends to the variables."""
    variables = model.trainable_variables
    upstream = _split(upstream, chunks)
    reached: dict[str, list[bool]] = {}

    def add_chunk(index, sums):
        with tf.GradientTape(persistent=len(upstream) > 1) as tape:
            with forward_pass(chunk_seed(seed, index), repeated=True):
                embeddings = model.encode(_chunk(examples, index), training=True)
        added = {}
        for name, wanted in upstream.items():
            gradients = tape.gradient(
                [embeddings[key] for key in wanted], variables, output_gradients=list(_chunk(wanted, index).values())
            )
            reached[name] = [gradient is not None for gradient in gradients]
            added[name] = [_accumulate(total, gradient) for total, gradient in zip(sums[name], gradients)]
        return index + 1, added

    zeros = {name: [tf.zeros(variable.shape, variable.dtype) for variable in variables] for name in upstream}
    _, sums = tf.while_loop(
        lambda index, sums: index < chunks, add_chunk, (0, zeros), parallel_iterations=1, maximum_iterations=chunks
    )
    return {name: [value if known else None for value, known in zip(sums[name], reached[name])] for name in upstream}


def _check_divisible(model, batch, chunks: int) -> None:
    for name in model.example_names:
        count = tf.nest.flatten(batch[name])[0].shape[0]
        if count is None or count % chunks:
            raise UserError(
                f"train.micro_batches={chunks} does not divide the {count} examples of {name!r} on one replica: choose "
                "batch sizes that are multiples of replicas x micro_batches."
            )


def _split(values, chunks: int):
    """[B, ...] -> [chunks, B / chunks, ...] for every tensor of a nest; static sizes stay static."""

    def split(value):
        sizes = [tf.shape(value)[axis] if size is None else size for axis, size in enumerate(value.shape)]
        return tf.reshape(value, [chunks, sizes[0] // chunks, *sizes[1:]])

    return tf.nest.map_structure(split, values)


def _chunk(values, index):
    """Entry `index` of every tensor that `_split` made."""
    return tf.nest.map_structure(lambda value: value[index], values)


def _present(gradients: dict) -> dict:
    """Without the embeddings that a task does not use."""
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def _accumulate(total, gradient):
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):  # of a token table: touches the rows of this chunk only
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, tf.newaxis], gradient.values)
    return total + gradient


def _add(one, other):
    if one is None or other is None:
        return one if other is None else other
    return one + other


def _dense(gradients: list, variables: list) -> list:
    """Dense tensors: the norm of `IndexedSlices` with repeated rows would be wrong, and every optimiser here decays
    the moments of all rows at each step anyway."""
    return [
        tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
        if isinstance(gradient, tf.IndexedSlices)
        else gradient
        for gradient, variable in zip(gradients, variables)
    ]


# Steps whose loss or gradient is not finite: left out, counted, and after too many in a row the end of the run.


class StepGuard(tf.Module):
    """Decides for each step whether it is applied, and remembers the last one that was not.

    Args:
      limit: steps in a row that may be left out; one more and `raise_if_stuck` raises.
    """

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit
        self._names: tuple[str, ...] = ()
        self.total = self._counter("skipped_steps")
        self._in_row = self._counter("skipped_steps_in_row")
        self._longest = self._counter("skipped_steps_longest_row")  # since it was last asked for
        self._last_step = self._counter("skipped_step_last")

    def build(self, names: list[str]) -> None:
        """Takes the names of the numbers by which a skipped step is described."""
        self._names = tuple(names)
        self._last_values = tf.Variable(
            tf.zeros([len(names)]),
            trainable=False,
            name="skipped_step_values",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def check(self, step: tf.Tensor, logs: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns a bool scalar, whether all numbers of `build`'s names are finite; the same on every replica."""
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
        """Raises `UserError` if more than `limit` steps in a row were left out since the last call."""
        longest = int(self._longest.numpy())
        self._longest.assign(0)
        if longest > self.limit:
            values = zip(self._names, self._last_values.numpy())
            raise UserError(
                f"{longest} steps in a row had a loss or gradient that is not finite and were left out; the last was "
                f"step {int(self._last_step.numpy())}: {', '.join(f'{name} {value:.4g}' for name, value in values)}. "
                "The weights are those before them. Lower optimizer.learning_rate, set optimizer.clip_norm, or find "
                "the operation with --debug_nans."
            )

    @staticmethod
    def _counter(name: str) -> tf.Variable:
        return tf.Variable(
            tf.zeros([], tf.int64),
            trainable=False,
            name=name,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
