"""The LAMB of this project is TensorFlow Addons' to the bit, slots included, wherever there is one to compare with."""

import numpy as np
import pytest
import tensorflow as tf

from mural_tf import optimizers
from mural_tf.optimizers.lamb import OwnLamb

EXCLUDED = dict(exclude_from_weight_decay=["bias"], exclude_from_layer_adaptation=["bias", "scale"])


class OwnRates(optimizers._VariableRates, OwnLamb):
    """As `optimizers.Lamb` is where there are no Addons."""


def variables():
    """A kernel, one of zeros, a scalar, a bias, one that is decayed but not adapted, and a table."""
    draw = np.random.default_rng(0)
    values = {
        "kernel": draw.normal(size=(7, 5)),
        "zeros": np.zeros((4, 3)),
        "temperature": np.float64(-1.5),
        "bias": draw.normal(size=5),
        "scale": draw.normal(size=3),
        "table": draw.normal(size=(20, 4)),
    }
    return [tf.Variable(value, dtype=tf.float32, name=name) for name, value in values.items()]


def gradients(step, given):
    """Zero for the bias in every third step; the table's are sparse, with a row twice."""
    draw = np.random.default_rng(step)
    found = [tf.constant(draw.normal(size=v.shape), tf.float32) for v in given]
    if step % 3 == 0:
        found[3] = tf.zeros(5)
    rows = tf.constant([1, 7, 1, step % 20])
    found[5] = tf.IndexedSlices(tf.constant(draw.normal(size=(4, 4)), tf.float32), rows, tf.constant([20, 4]))
    return found


def trained(optimizer, per_variable):
    given = variables()
    optimizer.rates = per_variable

    @tf.function
    def step(*values):
        optimizer.apply_gradients(zip(values, given))

    for number in range(30):
        step(*gradients(number, given))
    slots = {f"{v.name}/{slot}": optimizer.get_slot(v, slot).numpy() for v in given for slot in ("m", "v")}
    return {v.name: v.numpy() for v in given} | slots


@pytest.mark.parametrize("per_variable", [
    {"kernel": 0.1, "table": 3.0}, pytest.param({}, marks=pytest.mark.slow)
])  # fmt: skip
def test_thirty_steps_equal_those_of_addons(per_variable):
    pytest.importorskip("tensorflow_addons", reason="no TensorFlow Addons from Python 3.12 on")
    schedule = optimizers.keras.optimizers.schedules.PolynomialDecay(0.05, 40)
    options = dict(learning_rate=schedule, weight_decay=0.01, epsilon=1e-6, **EXCLUDED)
    ours, theirs = (trained(kind(**options), per_variable) for kind in (OwnRates, optimizers.Lamb))
    assert issubclass(optimizers.Lamb, OwnLamb) is False and ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.mark.parametrize("excluded,epsilon,expected", [
    ([], 0.0, 2.0 - 0.1 * 2.0), (["weight"], 0.0, 2.0 - 0.1 * 1.0), (["weight"], 0.5, 2.0 - 0.1 / 1.5),
])  # fmt: skip
def test_one_step_by_hand(excluded, epsilon, expected):
    """θ = 2, g = 1: u = 1 / (1 + ε) + 0.5 · 2, quotient 2 / u; where it is excluded u = 1 / (1 + ε), quotient 1."""
    weight = tf.Variable([2.0], name="weight")
    optimizer = OwnLamb(0.1, weight_decay=0.5, epsilon=epsilon, exclude_from_weight_decay=excluded)
    optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    assert abs(float(weight.numpy()[0]) - expected) < 1e-6
    assert OwnLamb.from_config(optimizer.get_config()).get_config() == optimizer.get_config()
