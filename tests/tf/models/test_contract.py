"""What every method promises, those from outside the package too: one test for all of them."""

import contract
import forked
import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.config import has_images
from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.export import signatures
from mural_tf.models import complete, method_class, method_names, mount
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.models.step import compute_gradients
from mural_tf.training.checkpoints import training_checkpoints
from mural_tf.training.tpu_check import find_problems
from mural_tf.training.tpu_lowering import trace_step

SEED = (3, 4)  # not a tensor: forks set up their devices after this module is imported
every_method = pytest.mark.parametrize("method", contract.METHODS)


def quickly(*methods):
    """These methods; the others in the slow set."""
    return pytest.mark.parametrize("method", [
        pytest.param(method, marks=[pytest.mark.slow] * (method not in methods)) for method in contract.METHODS
    ])  # fmt: skip


# Which have between them all that a method can have, and the one of most parts.
methods_of_many_parts = quickly("globetrotter")
one_method = quickly("align")


@pytest.fixture(scope="module")
def made():
    """{method: (configuration, model, batch)}, made when first asked for; tests may move the weights, not the rest."""

    class Made(dict):
        def __missing__(self, method):
            config = contract.toy_config(method, text_tower__dropout=0.0, image_tower__batch_norm_group="4")
            model = contract.build(config)
            self[method] = config, model, contract.batch_of(model, config)
            return self[method]

    return Made()


@quickly("mural", "globetrotter", "siglip", "mule", contract.OUTSIDE)
def test_a_method_is_a_keras_model_around_two_towers(made, method):
    config, model, batch = made[method]
    assert isinstance(model, DualEncoder) and isinstance(model, keras.Model)
    for tower in (model.image_encoder, model.text_encoder):
        assert isinstance(tower, keras.Model)
    assert type(model).fit is DualEncoder.fit and type(model).train_step is DualEncoder.train_step
    assert type(model).title and method_class(method) is type(model)
    embeddings = model.encode(batch, training=False)
    for name, (part, width) in model.embedding_shapes.items():
        assert embeddings[name].shape == (len(tf.nest.flatten(batch[part])[0]), width) and part in model.parts
    assert set(embeddings) == set(model.used) and set(config.method) == set(model.fields)


@methods_of_many_parts
def test_micro_batches_have_the_gradients_of_one_pass(made, method):
    _, model, batch = made[method]  # without dropout, and with the same groups for BatchNorm in both
    one, two = (compute_gradients(model, batch, SEED, chunks) for chunks in (1, 2))
    expected, found = one.by_optimizer["joint"], two.by_optimizer["joint"]
    assert contract.scale(expected) > 1e-3
    assert contract.largest_difference(expected, found) < 5e-5 * contract.scale(expected)
    for name, value in one.logs.items():
        assert abs(float(value - two.logs[name])) < 1e-5 * max(1.0, abs(float(value))), name


def gradients_on_two_devices(method, chunks) -> dict:
    """What `_gradients` gives of a batch that is divided over two replicas."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if not tf.config.get_logical_device_configuration(cpu):  # in a process of its own
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    sums = tf.distribute.ReductionToOneDevice()  # the default one traces a function for each sum
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=sums)
    return _gradients(method, chunks, strategy)


def _gradients(method, chunks, strategy) -> dict:
    """Logs, gradients and BatchNorm's moments, over all images or, in chunks, over groups of two."""
    group = "global" if chunks == 1 else "2"
    config = contract.toy_config(method, text_tower__dropout=0.0, image_tower__batch_norm_group=group)
    config.loss.label_smoothing = 0.1
    with strategy.scope():
        model = contract.build(config)
    batch, replicas = contract.batch_of(model, config), strategy.num_replicas_in_sync

    def part(context):
        return tf.nest.map_structure(lambda v: tf.split(v, replicas)[context.replica_id_in_sync_group], batch)

    def step(mine):
        context = tf.distribute.get_replica_context()
        found = compute_gradients(model, mine, SEED, chunks)
        reached = {v.name: g for v, g in zip(model.trainable_variables, found.by_optimizer["joint"]) if g is not None}
        moments = {layer.name: moments[1] / replicas for layer, moments in found.moments.items()}
        return context.all_reduce(tf.distribute.ReduceOp.SUM, {**found.logs, **reached, **moments})

    found = strategy.run(step, args=(strategy.experimental_distribute_values_from_function(part),))
    return {name: strategy.experimental_local_results(value)[0].numpy() for name, value in found.items()}


@pytest.mark.parametrize("method,chunks", [
    ("align", 1), *(pytest.param(method, 2, marks=pytest.mark.slow) for method in contract.METHODS)
])  # fmt: skip
def test_replicas_have_the_gradients_of_one_device(method, chunks):
    """With examples that share ids across replicas, and micro-batches."""
    # The workers of a session have two devices; a process without them starts another one.
    if len(tf.config.list_logical_devices("CPU")) > 1:
        two = gradients_on_two_devices(method, chunks)
    else:
        two = forked.call(gradients_on_two_devices, method, chunks)
    expected = _gradients(method, chunks, tf.distribute.get_strategy())
    assert set(expected) == set(two) and len(expected) > 5
    for name, value in expected.items():
        assert np.max(np.abs(value - two[name])) < 1e-4 * max(1.0, np.max(np.abs(value))), name


def state(model):
    """All that a step follows from: weights, averages, teachers, counters, and what the optimisers keep of each."""
    return [*model.variables, *(v for one in model.optimizers.values() for v in one.variables()), model.steps_taken]


@methods_of_many_parts
def test_a_checkpoint_holds_all_that_a_step_follows_from(made, method, tmp_path):
    _, model, batch = made[method]
    model.train_step(batch)
    checkpoints = training_checkpoints(model, tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    model.reset_metrics()
    first = [value.numpy() for value in state(model)]
    assert len(first) > 3 * len(model.trainable_variables) and int(model.step.guard.total) == 0
    assert model.step.trained_parameters <= sum(map(tf.size, model.trainable_variables))
    for value in state(model):  # a teacher, which no step would move, among them
        value.assign(tf.cast(tf.fill(value.shape, 3), value.dtype))
    assert training_checkpoints(model, tmp_path, keep=1).restore()
    model.reset_metrics()
    for value, before in zip(state(model), first):
        np.testing.assert_array_equal(value, before, value.name)


@one_method
def test_resuming_is_not_having_stopped(method, tmp_path):
    config = contract.toy_config(method)  # with dropout
    model, again = contract.build(config), contract.build(config, seed=1)
    model.train_step(contract.batch_of(model, config))
    checkpoints = training_checkpoints(model, tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    training_checkpoints(again, tmp_path, keep=1).restore()
    for one in (model, again):
        one.reset_metrics()
        logs = one.train_step(contract.batch_of(model, config, seed=1))
        assert np.isfinite(logs["loss"]) and int(one.step.guard.total) == 0
    for one, other in zip(model.trainable_variables, again.trainable_variables):
        np.testing.assert_array_equal(one, other, one.name)
    assert int(again.steps_taken) == 2


@pytest.mark.slow  # test_export.py holds it of MURAL
@every_method
def test_what_is_exported_computes_what_the_model_does(made, method, eager):
    config, model, batch = made[method]
    tokenizer = contract.tokenizer(config)
    texts = tf.constant(["thing w3", "", "<de> v4 v5"])
    _, functions = signatures.text_signatures(model, tokenizer)
    expected = model.embed_texts(tokenizer(texts))
    assert np.max(np.abs(functions["serving_default"](texts)["embedding"] - expected)) < 1e-5
    if has_images(config.image_tower):
        pictures = batch[model.image_parts[0]] if model.image_parts else tf.random.stateless_normal([2, 12], SEED)
        _, functions = signatures.image_signatures(model, config)
        found = functions["image"](tf.cast(pictures, tf.float32))["embedding"]
        assert np.max(np.abs(found - model.embed_images(pictures))) < 1e-5


@pytest.mark.slow
@every_method
def test_a_tpu_would_take_the_step(method):
    step, example = trace_step(
        contract.toy_config(method), contract.tokenizer(contract.toy_config(method)).vocabulary_size, 4
    )
    assert find_problems(step.get_concrete_function(example).graph.as_graph_def()) == []


@pytest.mark.slow
@every_method
def test_overfits_a_handful(method):
    config = contract.toy_config(method, text_tower__dropout=0.0, train__steps=200)
    model = contract.build(config)
    batch = contract.batch_of(model, config)
    step = tf.function(model.train_step, autograph=False)
    first = float(step(batch)["loss"])
    for _ in range(60):
        model.reset_metrics()
        last = float(step(batch)["loss"])
    assert last < 0.25 * first


# How a method is found.


def test_methods_are_found_by_their_modules():
    assert set(method_names()) >= {"align", "mural", "etcl", "globetrotter", "labse", "mule", "embn", "parallel_embn"}
    for name in method_names():
        assert method_class(name).__module__ == f"mural_tf.models.{name}"
    with pytest.raises(UserError, match="Unknown model 'murall'; known: .* Did you mean mural?"):
        method_class("murall")


def test_own_fields_mount_below_one_key():
    config = contract.toy_config("mule", method__top=3)
    assert config.method.top == 3 and "alpha" not in config.method
    mount(config, "embn")
    assert config.model == "embn" and config.method.top == 3 and "language_weight" not in config.method
    mount(config, contract.OUTSIDE)
    assert config.method.to_dict() == {"image_text_margin": 0.1}
    config.method.image_text_margn = 0.2
    with pytest.raises(UserError, match="method.image_text_margn; did you mean method.image_text_margin?"):
        complete(config)
    config.method = ConfigDict({"image_text_margin": "wide"})  # as a damaged file has it
    with pytest.raises(UserError, match="method.image_text_margin is 'wide', expected a number"):
        complete(config)
