"""BatchNorm folded into convolutions: the numbers of the tower in inference, and less to compute."""

import numpy as np
import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_tf.backend import keras
from mural_tf.encoders import build_image_encoder
from mural_tf.export.signatures import fold_batch_norm


def tower(seed=0, **fields):
    """A small tower in which no moment, scale or bias is 0 or 1."""
    config = base_config().image_tower
    config.update(dict(width=0.25, depth=0.5, image_size=33, precision="float32"))
    config.update(fields)
    keras.utils.set_random_seed(seed)
    model = build_image_encoder(config)
    draw = np.random.default_rng(seed)
    for variable in model.variables:
        if "moving_variance" in variable.name:
            variable.assign(draw.uniform(0.3, 2.0, variable.shape))
        else:
            variable.assign_add(draw.normal(scale=0.1, size=variable.shape))
    return model


def norms(model):
    return [layer.name for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]


CASES = [
    pytest.param(dict(), marks=pytest.mark.slow),
    dict(padding="even", normalization="none", depth=0.25),
    pytest.param(dict(name="resnet"), marks=pytest.mark.slow),
    pytest.param(dict(name="resnet", projection=24, head_size=16), marks=pytest.mark.slow),
    dict(name="resnet", branch_size=24, projection=16),
]


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_numbers_stay_and_batch_norm_goes(fields):
    model = tower(**fields)
    images = tf.random.stateless_uniform([3, 33, 33, 3], [1, 2])
    expected, weights = model(images, training=False), model.get_weights()
    folded = fold_batch_norm(model)
    assert norms(folded) == (["branch_bn"] if "branch_size" in fields else [])  # that one follows no convolution
    assert len(norms(model)) > 5
    np.testing.assert_allclose(folded(images), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert folded.count_params() < model.count_params()
    for before, after in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(before, after)


def test_a_tower_without_batch_norm_stays_as_it_is():
    images = keras.Input([4])
    plain = keras.Model(images, keras.layers.Dense(2)(images))
    assert fold_batch_norm(plain) is plain
