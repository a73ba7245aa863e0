"""The dry run: operations and memory read off graphs, machines by name, the forecast of a toy run, and its text."""

import dataclasses
import os

import forked
import pytest
import tensorflow as tf
import toy_data

from mural_tf.runs.dry_run import describe
from mural_tf.training import cost
from mural_tf.training.graph_costs import gradient_costs

FLOAT = 4


def costs_of(function, specs, variables=()):
    return gradient_costs(lambda *inputs: {"y": function(*inputs)}, specs, {"all": ["y"]}, variables)["all"]


def test_products_and_what_they_keep():
    """y = relu(x w) v: two products forward; three of the gradient, which x does not want; relu's output is kept."""
    w, v = tf.Variable(tf.zeros([16, 32])), tf.Variable(tf.zeros([32, 4]))
    costs = costs_of(lambda x: tf.matmul(tf.nn.relu(tf.matmul(x, w)), v), [tf.TensorSpec([8, 16])], [w, v])
    one, other = 2 * 8 * 16 * 32, 2 * 8 * 32 * 4
    assert costs.forward == {"float32": one + other} and costs.backward == {"float32": one + 2 * other}
    assert costs.kept == 8 * 32 * FLOAT and costs.copies == 0


def test_weights_in_another_precision_are_copies():
    w, v = tf.Variable(tf.zeros([16, 32])), tf.Variable(tf.zeros([32, 4]))

    def product(x):
        hidden = tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(w, tf.bfloat16))
        return tf.matmul(hidden, tf.cast(v, tf.bfloat16))

    costs = costs_of(product, [tf.TensorSpec([8, 16])], [w, v])
    assert set(costs.forward) == {"bfloat16"} and costs.copies == 2 * 32 * 4  # of v; w's is not read again
    assert costs.kept == 2 * 8 * 16 + 2 * 8 * 32


@pytest.mark.parametrize("convolve,stride", [(tf.nn.conv2d, 1), (tf.nn.depthwise_conv2d, 2)])
def test_convolutions_count_as_tensorflow_s_profiler_has_them(convolve, stride):
    """TensorFlow's own profiler knows graphs without functions only."""
    specs = tf.TensorSpec([2, 9, 9, 8]), tf.TensorSpec([3, 3, 8, 2])

    def run(x, filters):
        return convolve(x, filters, [1, stride, stride, 1], "SAME")

    options = {**tf.compat.v1.profiler.ProfileOptionBuilder.float_operation(), "output": "none"}
    graph = tf.function(run).get_concrete_function(*specs).graph
    costs = costs_of(run, specs)
    assert costs.forward == {"float32": tf.compat.v1.profiler.profile(graph, options=options).total_float_ops}
    assert costs.backward == {"float32": 2 * costs.forward["float32"]}  # of the input and of the filters


def test_products_in_functions_and_einsums_count():
    inner = tf.function(lambda a, b: tf.einsum("bij,bkj->bik", a, b), autograph=False)
    costs = costs_of(inner, [tf.TensorSpec([3, 4, 5]), tf.TensorSpec([3, 6, 5])])
    assert costs.forward["float32"] == 2 * 3 * 4 * 5 * 6 == costs.backward["float32"] / 2


@pytest.mark.parametrize("name, replicas, peak", [
    ("v3-128", 128, 61.5e12), ("v4-32", 16, 275e12), ("v5litepod-64", 64, 197e12), ("v5p-8", 4, 459e12),
    ("gpu:a100x8", 8, 312e12), ("gpu:a100-80x16", 16, 312e12), ("gpu:l4", 1, 121e12),
])  # fmt: skip
def test_machines_by_name(name, replicas, peak):
    machine = cost.find_machine(name)
    assert (machine.replicas, machine.peak) == (replicas, peak)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return toy_data.write_toy_data(tmp_path_factory.mktemp("data"), count=48)


@pytest.fixture
def config(data):
    config = toy_data.toy_config(data)
    config.vocabulary.size = 100
    config.image_tower.update(dict(name="resnet", width=0.15625, depth=0.5))
    config.train.micro_batches = 2
    return config


@pytest.mark.slow
def test_the_forecast_for_a_tpu(config, data):
    """What follows from the numbers is looked at in changed copies."""
    before = sorted(path.name for path in data.rglob("*"))
    config.image_tower.batch_norm_group = "8"  # more than a replica has
    found = cost.forecast(config, "v4-8")
    assert sorted(path.name for path in data.rglob("*")) == before  # no vocabulary either
    assert found.rows == {"image": 16, "caption": 16, "text_a": 16, "text_b": 16}
    assert found.config.image_tower.precision == "float32" and found.fits
    length = config.text_tower.max_length
    layer = 3 * 2 * length * (32 * 96 + 32 * 32 + 2 * 32 * 64)  # bounds of a text's products: only [CLS] leaves
    texts = 3 * 16 / 4 / 2  # of a chunk of a replica
    operations = sum(found.work["text tower"].forward.values()) + sum(found.work["text tower"].backward.values())
    assert 0.3 * texts * layer < operations < 1.5 * texts * layer
    text_tower = found.work["text tower"]  # which runs forward twice in each of two chunks
    assert found.operations("text tower") == 2 * (operations + sum(text_tower.forward.values()))
    assert found.seconds == sum(found.operations(name) for name in found.work) / (0.4 * 275e12)
    text = describe(found)
    words = ("a guess: 40% of the published 275 TFLOP/s", "v4-8: 4 replicas.", "one of 2 chunks")
    assert all(word in text for word in words)
    too_large = describe(dataclasses.replace(found, memory={**found.memory, "activations": 1e12}))
    assert "does not fit into the memory of a replica" in too_large and "steps take" not in too_large
    activations = 0.9 * found.machine.memory  # of half of a replica's part: a quarter fits
    assert dataclasses.replace(found, memory={**found.memory, "activations": activations}).least_chunks() == 4


@pytest.mark.slow
def test_several_chunks_keep_two_sums_of_gradients(config):
    """That of a chunk is added to the sum of those before; activations are those of one chunk alone."""
    two = cost.forecast(config, "v4-8")
    config.train.micro_batches = 1
    one = cost.forecast(config, "v4-8")
    gradients = 4.0 * sum(one.parameters.values())
    assert (one.memory["gradients"], two.memory["gradients"]) == (gradients, 2 * gradients)
    assert 0.4 < two.memory["activations"] / one.memory["activations"] < 0.6
    room = one.machine.memory * (1 - cost.FREE) - sum(one.memory.values())
    tight = {**one.memory, "weights": one.memory["weights"] + room + 1}  # a byte too much
    halves = dataclasses.replace(one, memory=tight)
    spared = one.memory["activations"] / 2 - gradients
    assert halves.least_chunks() == (2 if spared > 0 else None)


@pytest.mark.slow  # whole steps are traced
@pytest.mark.parametrize("has_data", [True, False])
def test_the_forecast_for_this_machine(config, monkeypatch, has_data):
    """Whole steps of a part of the batch, here the smallest that chunks divide; without data of values made up."""
    taken, batch_specs = [], cost.batch_specs
    for name in ("SECONDS", "WARM_UP"):
        monkeypatch.setattr(cost, name, 0.0)
    monkeypatch.setattr(cost, "batch_specs", lambda *a: taken.append(a[2:4]) or batch_specs(*a))
    monkeypatch.setattr(cost, "MOST_OPERATIONS", dict.fromkeys(("CPU", "GPU"), 1.0))
    config.image_tower.batch_norm_group = "4"
    if not has_data:
        config.data.directory = ""
    found = cost.forecast(config, "here")
    assert found.seconds > 0 and (has_data or taken[-1] == (2, 2))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert "seconds (measured, input included)" in describe(found) and "Other programs" not in describe(found)
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    assert "Other programs are busy here (load 1000.0)" in describe(found)


@pytest.mark.slow  # whole steps are traced
def test_the_forecast_of_heads_on_cached_states(config, monkeypatch):
    """Their states are made when training begins: steps are measured on a batch of the same sizes."""
    monkeypatch.setattr(cost, "WARM_UP", 0.0)
    monkeypatch.setattr(cost, "SECONDS", 0.0)
    for tower in (config.image_tower, config.text_tower):
        tower.update(dict(frozen=True, cached=True))
    assert cost.forecast(config, "here").seconds > 0


@pytest.mark.slow  # a method each: other streams, heads and functions in place of towers
@pytest.mark.parametrize("model", ["globetrotter", "labse", "etcl"])
def test_the_forecast_of_other_methods(model, data):
    config = toy_data.toy_config(data, model)
    config.vocabulary.size = 100
    found = cost.forecast(config, "gpu:a100x2")
    assert found.seconds > 0 and ("image tower" in found.work) == (model != "labse")


@pytest.mark.slow
def test_the_command_prints_and_writes_nothing():
    flags = ["--config=configs/mural_base.py", "--dry_run", "--tpu=v4-8", "--config.vocabulary.size=1000"]
    done = forked.run_script(
        "run_pretrain.py", *flags, "--config.text_tower.layers=1", "--config.image_tower.depth=0.2"
    )
    assert done.returncode == 0
    assert "Dry run of mural on v4-8" in done.stdout and "XLA compiles each of the step's" in done.stdout
    announced = [line for line in done.stderr.splitlines() if line.endswith(" …")]  # XLA logs between them
    assert announced == ["Building the model …", "Tracing a step for XLA …"]
