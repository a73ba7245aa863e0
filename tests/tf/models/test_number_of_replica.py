"""On a TPU a replica's number is known only when the step runs: every method's loss and BatchNorm's groups with it.

Here the number is that of a turn of a compiled loop, which XLA does not know either. All sizes are known, and the parts
of four replicas add up to the loss and the gradients of one device.
"""

import contract
import numpy as np
import pytest
import tensorflow as tf

from mural_tf.encoders.layers import BatchNormalization
from mural_tf.losses.pairs import Rows

REPLICAS = 4


def of_replicas(part):
    """The results of part(number), a list of tensors, for every replica, stacked; compiled, the number unknown."""

    def of_one(number):
        results = part(number)
        sizes_unknown = [
            output.name
            for operation in tf.compat.v1.get_default_graph().get_operations()
            for output in operation.outputs
            if output.dtype not in (tf.resource, tf.variant) and not output.shape.is_fully_defined()
        ]
        assert not sizes_unknown, sizes_unknown
        return results

    def of_all():
        first = part(0)  # for the types
        signature = [tf.TensorSpec(value.shape, value.dtype) for value in first]
        return tf.map_fn(of_one, tf.range(REPLICAS), fn_output_signature=signature, parallel_iterations=1)

    return tf.function(of_all, jit_compile=True, autograph=False)()


def objective_and_gradients(model, embeddings, batch, rows):
    """[logs …, gradients to the embeddings and to the variables of the losses, such as the temperature …]."""
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        _, logs = model.objective(embeddings, batch, rows)
    gradients = tape.gradient(logs["loss"], [*embeddings.values(), *model.trainable_variables])
    return [*logs.values(), *(tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None)]


QUICK = ("mule", "siglip", "globetrotter")  # with the losses of all methods but the classes of words


@pytest.mark.parametrize("method", [
    pytest.param(method, marks=[pytest.mark.slow] * (method not in QUICK)) for method in contract.METHODS
])  # fmt: skip
def test_the_parts_of_replicas_add_up(method):
    config = contract.toy_config(method, text_tower__dropout=0.0)
    model = contract.build(config)
    batch = contract.batch_of(model, config)
    embeddings = model.encode(batch, training=False)
    ids = {name: value for name, value in batch.items() if name.endswith("_id")}
    counts = {name: len(value) // REPLICAS for name, value in embeddings.items()}

    def part(number):
        rows = {name: (number * count, count) for name, count in counts.items()}
        return objective_and_gradients(model, embeddings, ids, rows)

    whole = objective_and_gradients(model, embeddings, ids, contract.rows_of(embeddings))
    for found, expected in zip(of_replicas(part), whole, strict=True):
        difference = np.max(np.abs(np.sum(found, axis=0) - expected))
        assert difference <= 1e-5 * max(1.0, np.max(np.abs(expected)))
    assert max(np.max(np.abs(value)) for value in whole[-len(embeddings) :]) > 1e-3


def range_of_first_and_last(self, columns):
    return tf.equal(tf.range(self.first, self.first + self.count)[:, None], columns[None, :])


def brackets(self, others):
    return others[self.first : self.first + self.count]


@pytest.mark.slow
@pytest.mark.parametrize("name,old,error", [
    ("is_own_row", range_of_first_and_last, (AssertionError, tf.errors.InvalidArgumentError)),
    ("own_of", brackets, AssertionError),
])  # fmt: skip
def test_sizes_made_of_the_number_would_be_noticed(name, old, error, monkeypatch):
    monkeypatch.setattr(Rows, name, old)
    with pytest.raises(error, match="range|strided_slice"):
        test_the_parts_of_replicas_add_up("align")


# BatchNorm over replicas.


class Together(tf.distribute.ReplicaContext):
    """A replica whose `all_gather` of BatchNorm's moments takes the others' from the images of all, [R, B, H, W, C]."""

    def __init__(self, images, number):
        super().__init__(tf.distribute.get_strategy(), replica_id_in_sync_group=0)
        self._images, self._number = images, number

    num_replicas_in_sync = REPLICAS

    @property
    def replica_id_in_sync_group(self):
        return self._number

    def all_gather(self, value, axis, options=None):
        assert axis == 0
        moments = tf.stack(tf.nn.moments(self._images, axes=[1, 2, 3]), axis=1)  # [R, 2, C]
        return tf.tensor_scatter_nd_update(moments, [[self._number]], value)


def normalised(layer, images, weights):
    """[loss, gradient to the images, moments]."""
    with tf.GradientTape() as tape:
        tape.watch(images)
        y, mean, variance = layer._normalize(images)
        loss = tf.reduce_sum(y * weights)
    return [loss, tape.gradient(loss, images), mean, variance]


@pytest.mark.parametrize("group,members", [("global", 4), (4, 2)])
def test_batch_norm_over_replicas(group, members):
    """Two images per replica; a group's replicas together are one device with a "local" group."""
    layer = BatchNormalization(group, axis=-1)
    layer.build([2, 3, 3, 5])
    scale = np.arange(1.0, 1.0 + REPLICAS, dtype="f")[:, None, None, None, None]  # other moments on each replica
    images = tf.constant(np.random.default_rng(0).normal(scale, scale, size=[REPLICAS, 2, 3, 3, 5]).astype("f"))
    weights = tf.random.stateless_normal(images.shape, [1, 2])

    def part(number):
        with tf.GradientTape() as tape:
            tape.watch(images)
            with Together(images, number):
                y, mean, variance = layer._normalize(tf.gather(images, number))
            loss = tf.reduce_sum(y * tf.gather(weights, number))
        return [loss, tape.gradient(loss, images), mean, variance]

    loss, gradient, means, variances = of_replicas(part)
    local = BatchNormalization("local", axis=-1)
    local.build([2, 3, 3, 5])
    for first in range(0, REPLICAS, members):
        own = slice(first, first + members)
        together, share = (tf.reshape(values[own], [-1, 3, 3, 5]) for values in (images, weights))
        expected = normalised(local, together, share)
        assert abs(np.sum(loss[own]) - expected[0]) < 1e-4
        np.testing.assert_allclose(
            np.reshape(np.sum(gradient, axis=0)[own], together.shape), expected[1], atol=1e-5, rtol=1e-4
        )
        for number in range(first, first + members):
            np.testing.assert_allclose(means[number], expected[2], rtol=1e-5)
            np.testing.assert_allclose(variances[number], expected[3], rtol=1e-5)
