"""The sigmoid loss of SigLIP against a number derived by hand, a loop in NumPy and the whole matrix at once."""

import importlib
import json
import math
import pathlib
import re

import contract
import numpy as np
import pytest
import tensorflow as tf
from test_contrastive_loss import unit_rows

import mural_tf.losses
import mural_tf.models
from mural_tf.export import restore
from mural_tf.export.model_card import describe_model
from mural_tf.losses.pairs import Pairs
from mural_tf.losses.sigmoid import sigmoid_loss
from mural_tf.optimizers import is_decayed

PAIRS, SIZE = 11, 5  # blocks of 4: two whole ones and one of three
IDS = (np.array([1, 2, 3, 1, 5, 6, 7, 8, 9, 1, 2]), (np.arange(11), np.array([0, 4, 2, 3, 1, 9, 6, 7, 8, 9, 10])))
NO_IDS = ()


def loop_oracle(left, right, temperature, bias, ids=()):
    """Algorithm 1 of the paper, one pair at a time, in float64."""
    total = 0.0
    for i in range(len(left)):
        for j in range(len(right)):
            sides = [own if isinstance(own, tuple) else (own, own) for own in ids]
            if i != j and any(queries[i] == candidates[j] for queries, candidates in sides):
                continue
            logit = float(np.dot(left[i].astype(np.float64), right[j].astype(np.float64))) / temperature + bias
            total += math.log1p(math.exp(-logit if i == j else logit))
    return total / len(left)


def whole_matrix(left, right, temperature, bias, ids=()):
    """The loss from all pairs at once, with TensorFlow's own gradients."""
    logits = tf.matmul(left, right, transpose_b=True) / temperature + bias
    positive = tf.eye(PAIRS, dtype=tf.bool)
    shared = tf.zeros_like(positive)
    for queries, candidates in (own if isinstance(own, tuple) else (own, own) for own in ids):
        shared |= tf.equal(queries[:, None], candidates[None, :])
    losses = -tf.math.log_sigmoid(tf.where(positive, logits, -logits))
    return tf.reduce_sum(tf.where(positive | ~shared, losses, 0.0)) / PAIRS


def variables():
    left, right = (tf.Variable(unit_rows(seed, PAIRS, SIZE)) for seed in (0, 1))
    return left, right, tf.Variable(0.3), tf.Variable(-1.5)


def value_and_gradients(function, inputs):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = 3.0 * function(*inputs)  # a factor: what comes from above counts
    return value, tape.gradient(value, inputs)


def as_tensors(ids):
    return tuple(tuple(map(tf.constant, own)) if isinstance(own, tuple) else tf.constant(own) for own in ids)


def test_value_derived_by_hand():
    # Two orthogonal pairs, τ = 1/2, b = -1: logits are 2 - 1 = 1 on the diagonal and 0 - 1 = -1 off it. A pair costs
    # -log sigmoid(1), and a negative -log sigmoid(-(-1)), the same: log(1 + e^-1) each. Four of them over N = 2.
    eye = tf.eye(2)
    np.testing.assert_allclose(sigmoid_loss(Pairs(eye, eye), 0.5, -1.0), 2 * math.log1p(math.exp(-1)), atol=1e-6)


@pytest.mark.parametrize("block", [1, 4, 11, 1_024])
@pytest.mark.parametrize("ids", [NO_IDS, IDS])
def test_equals_the_loop(block, ids):
    left, right = unit_rows(0, PAIRS, SIZE), unit_rows(1, PAIRS, SIZE)
    loss = sigmoid_loss(Pairs(left, right, as_tensors(ids)), 0.3, -1.5, block=block)
    np.testing.assert_allclose(loss, loop_oracle(left, right, 0.3, -1.5, ids), rtol=1e-6)
    assert abs(loop_oracle(left, right, 0.3, -1.5, IDS) - loop_oracle(left, right, 0.3, -1.5)) > 0.1


@pytest.mark.parametrize("ids, compiled", [
    (IDS, True), (IDS, False), pytest.param(NO_IDS, True, marks=pytest.mark.slow), (NO_IDS, False)
])  # fmt: skip
def test_blocks_have_the_gradients_of_the_whole_matrix(ids, compiled):
    inputs, ids = variables(), as_tensors(ids)

    @tf.function(jit_compile=compiled)
    def in_blocks():
        def loss(left, right, *given):
            return sigmoid_loss(Pairs(left, right, ids), *given, block=4)

        return value_and_gradients(loss, inputs)

    value, gradients = in_blocks()
    expected, expected_gradients = value_and_gradients(lambda *given: whole_matrix(*given, ids), inputs)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for gradient, other in zip(gradients, expected_gradients):
        assert np.max(np.abs(other)) > 0.1
        np.testing.assert_allclose(gradient, other, atol=2e-5)


def test_parts_over_rows_add_up_with_their_gradients():
    inputs, ids = variables(), as_tensors(IDS)

    def over(parts):
        def losses(left, right, *given):
            return tf.add_n([sigmoid_loss(Pairs(left, right, ids, rows), *given, block=4) for rows in parts])

        return value_and_gradients(losses, inputs)

    value, gradients = over([None])
    part, part_gradients = over([(0, 3), (tf.constant(3), tf.constant(3)), (6, 5)])
    np.testing.assert_allclose(part, value, rtol=1e-6)
    for one, other in zip(gradients, part_gradients):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_batch_of_unknown_size_has_the_same_loss():
    spec = tf.TensorSpec([None, SIZE])
    function = tf.function(
        lambda left, right: sigmoid_loss(Pairs(left, right), 0.3, -1.5, block=4), input_signature=[spec] * 2
    )
    for count in (3, 8, 11):
        left, right = unit_rows(0, count, SIZE), unit_rows(1, count, SIZE)
        np.testing.assert_allclose(function(left, right), loop_oracle(left, right, 0.3, -1.5), rtol=1e-6)


def largest_array(loss, pairs):
    """Numbers in the largest array that a loss of so many pairs and its gradients name, as XLA is given them."""

    @tf.function(jit_compile=True)
    def function(left, right, temperature, bias):
        return value_and_gradients(loss, (left, right, temperature, bias))

    inputs = [tf.ones([pairs, 2]), tf.ones([pairs, 2]), tf.constant(0.3), tf.constant(-1.0)]
    text = function.experimental_get_compiler_ir(*inputs)(stage="hlo")  # every array, before any are fused away
    shapes = re.findall(r"\b(?:pred|[fsu]\d+)\[([\d,]+)\]", text)
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def test_no_array_holds_all_pairs():
    pairs, rows, block = 256, (64, 128), 32
    ids = (tf.range(pairs) // 2,)

    def largest(width):
        return largest_array(
            lambda left, right, *given: sigmoid_loss(Pairs(left, right, ids, rows), *given, block=width), pairs
        )

    assert largest(pairs) == rows[1] * pairs
    assert largest(block) == rows[1] * block


def test_bias_and_temperature_are_the_model_s():
    config = contract.toy_config("siglip", method__bias=-4.0)
    model = contract.build(config)
    batch = contract.batch_of(model, config)
    embeddings = model.encode(batch, training=False)
    left, right = (embeddings[name].numpy() for name in ("image", "caption"))
    found = contract.losses_of(model, embeddings, batch)["image_text"]
    ids = (batch["image_id"].numpy(), batch["caption_id"].numpy())
    np.testing.assert_allclose(found, loop_oracle(left, right, 0.1, -4.0, ids), rtol=1e-5)
    assert not is_decayed(model.bias) and "bias" in model.weights_by_part()
    logs = model.train_step(batch)
    assert float(model.bias) != -4.0 and float(logs["bias"]) == -4.0  # logged as of before the step


def test_an_export_s_card_gives_the_bias_back(tmp_path, monkeypatch):
    config = contract.toy_config("siglip")
    model, other = contract.build(config), contract.build(config)
    model.bias.assign(-3.25)
    model.log_temperature.assign(-2.0)
    card = describe_model(model, config)
    monkeypatch.setattr(restore, "_match", lambda *_: [])  # of the towers
    (tmp_path / "model_card.json").write_text(json.dumps(card))
    restore.restore_from_export(other, tmp_path)
    assert float(other.bias) == -3.25
    np.testing.assert_allclose(other.log_temperature, -2.0, rtol=1e-6)


def test_the_guide_writes_the_same_method(tmp_path, monkeypatch):
    """Every Python block of the guide runs, and its method has the loss of this one."""
    page = pathlib.Path(__file__).resolve().parents[3] / "docs/a_method_in_an_hour.md"
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        path = tmp_path / block.split("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block, encoding="utf-8")
    for package in (mural_tf.losses, mural_tf.models):
        folder = tmp_path / package.__name__.replace(".", "/")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.syspath_prepend(tmp_path / "tests")
    monkeypatch.syspath_prepend(tmp_path / "mural_tf/configs")
    written = importlib.import_module("test_my_siglip")
    written.test_value_derived_by_hand()
    written.test_equals_the_oracle_in_parts_too()
    monkeypatch.setattr(mural_tf.models, "method_names", lambda: ["my_siglip"])
    config = importlib.import_module("shapes_my_siglip").get_config()
    assert config.model == "my_siglip" and config.method.bias == -10.0
    model = contract.build(contract.toy_config("mural_tf.models.my_siglip:MySiglip"))
    monkeypatch.undo()
    config = contract.toy_config("siglip")
    ours = contract.build(config)
    batch = contract.batch_of(ours, config)
    embeddings = ours.encode(batch, training=False)
    losses = [float(contract.losses_of(one, embeddings, batch)["image_text"]) for one in (model, ours)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert np.isfinite(model.train_step(batch)["loss"])
