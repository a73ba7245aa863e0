"""Every optimiser against a NumPy step, and the two readings of MURAL's learning rates."""

import numpy as np
import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf import optimizers
from mural_tf.encoders.kernels import set_fusion
from mural_tf.optimizers import WarmupLinearDecay, build_optimizers, check_optimizer

TASKS = ("image_text", "text_text")
B1, B2, EPSILON, DECAY = 0.9, 0.99, 1e-6, 0.1


def optimizer_config(name, mode="joint"):
    config = base_config().optimizer
    config.update(dict(name=name, mode=mode, beta_2=B2, epsilon=EPSILON, weight_decay=DECAY))
    config.update(dict(learning_rate=0.01, text_text_learning_rate=0.001, warmup_steps=0))
    return config


def numpy_lamb(w, gradients, rate, decayed):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
        update = (m / (1 - B1**t)) / (np.sqrt(v / (1 - B2**t)) + EPSILON)
        ratio = 1.0
        if decayed:
            update = update + DECAY * w
            ratio = np.linalg.norm(w) / np.linalg.norm(update)
        w = w - rate(t - 1) * ratio * update
    return w


def numpy_adam(w, gradients, rate, decay=0.0):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        w = w - rate(t - 1) * decay * w
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
        scale = np.sqrt(1 - B2**t) / (1 - B1**t)  # Keras folds the bias correction into the rate
        w = w - rate(t - 1) * scale * m / (np.sqrt(v) + EPSILON)
    return w


def run(optimizer, start, gradients, name):
    variable = tf.Variable(start, name=name)
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return variable.numpy()


@pytest.mark.parametrize("variable", ["layer/kernel", "layer/bias", "norm/gamma", "log_temperature"])
@pytest.mark.parametrize("name", ["lamb", "adam", "adamw"])
def test_three_steps_equal_numpy(name, variable):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(3, 4)).astype(np.float32)
    gradients = rng.normal(size=(3, 3, 4)).astype(np.float32)
    optimizer = build_optimizers(optimizer_config(name), 10, {}, TASKS)["joint"]
    decayed = variable == "layer/kernel"

    def rate(step):  # no warm-up: 0.01 (10 - s) / 10
        return 0.01 * (10 - step) / 10

    if name == "lamb":
        expected = numpy_lamb(start, gradients, rate, decayed)
    else:
        expected = numpy_adam(start, gradients, rate, DECAY if name == "adamw" and decayed else 0.0)
    assert np.max(np.abs(run(optimizer, start, gradients, variable) - expected)) < 1e-6


def test_large_variables_are_updated_by_compiled_lamb(monkeypatch):
    monkeypatch.setattr(optimizers, "COMPILED_FROM", 12)
    set_fusion("on")  # off in tests; restored after each
    start = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    gradients = np.random.default_rng(1).normal(size=(3, 3, 4)).astype(np.float32)
    optimizer = build_optimizers(optimizer_config("lamb"), 10, {}, TASKS)["joint"]
    expected = numpy_lamb(start, gradients, lambda step: 0.01 * (10 - step) / 10, True)
    variable = tf.Variable(start, name="layer/kernel")

    @tf.function
    def step(gradient):
        optimizer.apply_gradients([(gradient, variable)])

    optimizer._create_all_weights([variable])
    for gradient in gradients:
        step(tf.constant(gradient))
    assert np.max(np.abs(variable - expected)) < 1e-6
    called = [op for f in step.get_concrete_function(tf.constant(gradients[0])).graph.as_graph_def().library.function
              for op in f.attr if op == "_XlaMustCompile" and f.attr[op].b]  # fmt: skip
    assert called


@pytest.mark.parametrize("name", ["lamb", "adam", "adamw"])
def test_sparse_gradients_equal_dense_ones(name):
    start = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    values, indices = np.ones((3, 2), np.float32), [1, 3, 1]
    dense = np.zeros((5, 2), np.float32)
    np.add.at(dense, indices, values)
    results = []
    for gradient in (tf.constant(dense), tf.IndexedSlices(tf.constant(values), tf.constant(indices), [5, 2])):
        optimizer = build_optimizers(optimizer_config(name), 10, {}, TASKS)["joint"]
        variable = tf.Variable(start, name="table")
        for _ in range(2):
            optimizer.apply_gradients([(gradient, variable)])
        results.append(variable.numpy())
    assert np.max(np.abs(results[0] - results[1])) < 1e-6


def test_joint_gives_the_text_text_head_its_own_rate():
    head, tower = tf.Variable([1.0, 2.0], name="text_text_head/bias"), tf.Variable([1.0, 2.0], name="tower/bias")
    groups = {"text_text_head": [head], "text_tower": [tower], "image_tower": []}
    optimizer = build_optimizers(optimizer_config("lamb"), 10, groups, TASKS)["joint"]
    optimizer.apply_gradients([(tf.ones(2), head), (tf.ones(2), tower)])
    # A first step of a bias moves by rate · sign(gradient): 0.001 for the head, 0.01 for the tower.
    np.testing.assert_allclose(1.0 - head[0], 0.001, rtol=1e-3)
    np.testing.assert_allclose(1.0 - tower[0], 0.01, rtol=1e-3)


def test_tower_rates_multiply():
    config = optimizer_config("adam")
    config.text_tower_rate = 0.1
    text, other = tf.Variable(1.0, name="layer_0/kernel"), tf.Variable(1.0, name="head/kernel")
    optimizer = build_optimizers(config, 10, {"text_tower": [text]}, TASKS)["joint"]
    optimizer.apply_gradients([(tf.constant(1.0), text), (tf.constant(1.0), other)])
    np.testing.assert_allclose((1.0 - text) / (1.0 - other), 0.1, rtol=1e-3)


def test_per_task_has_two_schedules():
    optimizers = build_optimizers(optimizer_config("lamb", "per_task"), 10, {}, TASKS)
    assert set(optimizers) == {"image_text", "text_text"}
    np.testing.assert_allclose(optimizers["image_text"].learning_rate(0), 0.01, rtol=1e-6)
    np.testing.assert_allclose(optimizers["text_text"].learning_rate(0), 0.001, rtol=1e-6)


def test_schedule_of_the_paper():
    schedule = WarmupLinearDecay(1e-3, 10_000, 600_000)
    for step, expected in [(0, 1e-7), (4_999, 5e-4), (9_999, 1e-3), (305_000, 5e-4), (600_000, 0.0), (700_000, 0.0)]:
        np.testing.assert_allclose(schedule(step), expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("decay", [(0.5,), (2.0, 3), (0.5, 0)])
def test_a_decay_is_a_rate_and_a_number_of_steps(decay):
    config = base_config()
    config.optimizer.decay = decay
    with pytest.raises(UserError, match="optimizer.decay=.*: expected a rate"):
        check_optimizer(config.optimizer)


@pytest.mark.parametrize("name, value", [
    ("warmup_steps", -5), ("text_text_learning_rate", -1.0), ("text_tower_rate", -1.0), ("beta_2", 1.0),
    ("weight_decay", -0.1), ("clip_norm", -1.0), ("epsilon", float("nan")),
])  # fmt: skip
def test_ranges_of_numbers(name, value):
    config = base_config()
    config.optimizer[name] = value
    with pytest.raises(UserError, match=f"^optimizer.{name}={value}: expected "):
        check_optimizer(config.optimizer)
