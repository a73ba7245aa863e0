"""The image tower against Keras' EfficientNet, and the fast convolutions against the plain ones."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_tf.backend import keras
from mural_tf.encoders import build_image_encoder
from mural_tf.encoders.efficientnet import (
    COEFFICIENTS,
    IMAGENET_MEAN,
    IMAGENET_STANDARD_DEVIATION,
    blocks_by_stage,
    output_width,
    scaled_depth,
    scaled_width,
)
from mural_tf.encoders.kernels import DepthwiseConvolution, PointwiseConvolution, set_fusion, silu
from mural_tf.encoders.layers import Dropout


@pytest.fixture
def fused():
    """The fused loops, which every shape compiles anew, are part of what is tested."""
    set_fusion("auto")  # off in tests; restored after each


def tower_config(**fields):
    config = base_config().image_tower
    config.update(dict(width=0.25, depth=0.25, drop_connect_rate=0.0, precision="float32"))
    config.update(fields)
    return config


def random_images(batch, pixels, seed=0):
    return np.random.default_rng(seed).random((batch, pixels, pixels, 3), np.float32)


def keras_efficientnet(width, depth, pixels=None):
    """Keras' EfficientNet up to the layer where ours ends, by the factors that make B0 to B7 of it."""
    build = sys.modules[keras.applications.EfficientNetB0.__module__].EfficientNet
    full = build(width, depth, 224, include_top=False, weights=None, input_shape=(pixels, pixels, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(full.get_layer("block7a_project_bn").output)
    return keras.Model(full.input, pooled)


@pytest.fixture(scope="module", params=[(0.25, 0.5), pytest.param((1.0, 1.0), marks=pytest.mark.slow)], ids=str)
def pair(request):
    """Our tower and Keras' (10 blocks, or B0) with the same random weights and statistics."""
    ours = build_image_encoder(tower_config(width=request.param[0], depth=request.param[1]))
    theirs = keras_efficientnet(*request.param)
    rng = np.random.default_rng(0)
    ours_by_name = {w.name.split("/", 1)[1] if w.name.count("/") > 1 else w.name: w for w in ours.weights}
    for layer in theirs.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
        if isinstance(layer, keras.layers.Normalization):  # Keras keeps the variance where we keep the deviation
            layer.set_weights([np.array(IMAGENET_MEAN), np.square(IMAGENET_STANDARD_DEVIATION), np.array(0)])
    matched = 0
    for variable in theirs.weights:
        if variable.name.startswith("normalization"):
            continue
        value = variable.numpy()
        if value.ndim == 1:  # biases, BatchNorm scales and statistics away from 0 and 1
            value = value + rng.uniform(0.0, 0.3, value.shape)
        variable.assign(value)
        ours_by_name[variable.name].assign(value)
        matched += 1
    assert matched == len(ours.weights)
    return ours, theirs, request.param


@pytest.mark.parametrize("pixels", [64, pytest.param(47, marks=pytest.mark.slow)])
def test_inference_equals_keras(pair, pixels):
    ours, theirs, factors = pair
    images = random_images(2, pixels)
    if pixels % 2 == 0:
        expected = theirs(images * 255.0)
    else:  # Keras fixes its padding for even sizes when the size is unknown: build it for this one
        sized = keras_efficientnet(*factors, pixels)
        sized.set_weights(theirs.get_weights())
        expected = sized(images * 255.0)
    assert np.max(np.abs(ours(images) - expected)) < 1e-5
    assert np.max(np.abs(expected)) > 0.1


@pytest.mark.parametrize("fusion", ["off", pytest.param("auto", marks=pytest.mark.slow)])  # silu has its own test
def test_training_step_equals_keras(pair, fusion):
    set_fusion(fusion)
    ours, theirs, (_, depth) = pair
    images = random_images(8, 64)
    target = np.random.default_rng(1).normal(size=(8, ours.embedding_size)).astype(np.float32)
    before = theirs.get_weights()
    results = []
    for model, batch in ((ours, images), (theirs, images * 255.0)):
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True)
            loss = tf.reduce_mean(outputs * target)
        gradients = tape.gradient(loss, model.trainable_variables)
        statistics = [w for w in model.non_trainable_weights if "moving" in w.name]
        results.append((outputs.numpy(), [g.numpy() for g in gradients], [w.numpy() for w in statistics]))
    theirs.set_weights(before)
    (outputs, gradients, statistics), (expected_outputs, expected_gradients, expected_statistics) = results
    # Batch statistics of 8 images enlarge the rounding, which differs by processor (oneDNN's kernels): 1e-5 was seen.
    assert np.max(np.abs(outputs - expected_outputs)) < 1e-4 * np.max(np.abs(expected_outputs))
    norms = 3 * {0.5: 10, 1.0: 16}[depth]  # three in a block, two in the first one, and the stem's
    assert len(gradients) == len(expected_gradients) and len(statistics) == len(expected_statistics) == 2 * norms
    for gradient, expected in zip(gradients, expected_gradients):
        assert np.max(np.abs(gradient - expected)) < 1e-4 * max(1.0, np.max(np.abs(expected)))
    for statistic, expected in zip(statistics, expected_statistics):
        assert np.max(np.abs(statistic - expected)) < 1e-4 * max(1.0, np.max(np.abs(expected)))


def test_widths_and_depths_of_the_published_sizes():
    # 320 * 1.6 = 512, 320 * 2.0 = 640, 320 * 4.3 = 1376: multiples of 8 already. 32 * 1.1 = 35.2 -> 32 (not below 90%).
    assert [scaled_width(320, width) for width in (1.6, 2.0, 4.3)] == [512, 640, 1376]
    assert scaled_width(32, 1.1) == 32
    # 24 * 0.5 = 12 -> nearest multiple of 8 upwards from the middle: int(12 + 4) // 8 * 8 = 16.
    assert scaled_width(24, 0.5) == 16
    # 16 * 1.2 = 19.2 -> int(23.2) // 8 * 8 = 16, which is below 0.9 * 19.2 = 17.28, so one step up: 24.
    assert scaled_width(16, 1.2) == 24
    assert [scaled_depth(n, 2.2) for n in (1, 2, 3, 4)] == [3, 5, 7, 9]


@pytest.fixture(scope="module")
def small():
    return build_image_encoder(tower_config(projection=24))


def test_embedding_size_projection_and_any_image_size(small):
    model = small
    assert output_width(tower_config()) == 80  # 320 / 4
    assert model.embedding_size == 24 and model.output_shape == (None, 24)
    for pixels in (32, 33, 7):
        assert model(random_images(2, pixels)).shape == (2, 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet", "efficientnet_lite"])
def test_pooled_stages_are_means_of_what_stages_give(name):
    config = tower_config(name=name, pooled_stages=True)
    model, images = build_image_encoder(config), random_images(2, 40)
    assert model.embedding_size == model.output_shape[-1] == output_width(config)
    # The last layer of a stage is the last of its last block: the stage's first pooling layer reads it.
    pools = [layer for layer in model.layers if layer.name.endswith("_pool")]
    inside = keras.Model(model.input, [pool.input for pool in pools])(images)
    expected = np.concatenate([tf.reduce_mean(x, axis=(1, 2)) for x in inside], axis=1)
    np.testing.assert_allclose(model(images), expected, atol=1e-5)
    assert len(pools) == (8 if name == "efficientnet_lite" else 7)


def test_images_are_expected_between_0_and_1(small):
    model = small
    mean_image = np.broadcast_to(np.float32(IMAGENET_MEAN), (1, 8, 8, 3))
    assert np.max(np.abs(model.get_layer("normalization")(mean_image))) < 1e-6
    white = model.get_layer("normalization")(np.ones((1, 1, 1, 3), np.float32)).numpy().ravel()
    assert np.max(np.abs(white - [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225])) < 1e-5


def test_stochastic_depth_grows_linearly_and_drops_whole_examples():
    model = build_image_encoder(tower_config(depth=0.5, drop_connect_rate=0.5))
    drops = {layer.name: layer.rate for layer in model.layers if isinstance(layer, Dropout)}
    # 10 blocks, 1a 2a 3a 4a 4b 5a 5b 6a 6b 7a; those that keep stride and width are 4b 5b 6b = numbers 4 6 8.
    expected = [0.5 * index / 10 for index in (4, 6, 8)]
    assert np.max(np.abs(np.array(list(drops.values())) - expected)) < 1e-9
    dropped = model.get_layer("block6b_drop")(tf.ones([200, 2, 2, 3]), training=True).numpy()
    rate = 0.5 * 8 / 10
    kept = dropped[:, 0, 0, 0] > 0
    assert np.max(np.abs(dropped - kept[:, None, None, None] / (1 - rate))) < 1e-6
    assert 0.3 < kept.mean() < 0.8


def test_frozen_tower_does_not_move():
    model = build_image_encoder(tower_config(frozen=True, drop_connect_rate=0.5))
    images = random_images(3, 32)
    before = model.get_weights()
    assert not model.trainable_variables
    outputs, expected = model(images, training=True), model(images)
    assert np.max(np.abs(outputs - expected)) < 1e-5 * np.max(np.abs(expected))
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights()))


@pytest.mark.parametrize("size,kernel,stride", [
    (2, 3, 1), (2, 5, 1), (3, 5, 1), (3, 5, 2), (6, 5, 1), (6, 5, 2), (24, 3, 2),
])  # fmt: skip
def test_depthwise_layer_equals_keras(size, kernel, stride):
    x = tf.random.stateless_normal((4, size, size, 6), seed=(0, 0))
    ours = DepthwiseConvolution(kernel, stride)
    theirs = keras.layers.DepthwiseConv2D(kernel, strides=stride, padding="same", use_bias=False)
    ours(x), theirs(x)
    theirs.set_weights(ours.get_weights())
    outputs = []
    for layer in (ours, theirs):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(tf.sin(y))
        outputs.append([y, *tape.gradient(loss, [x, *layer.trainable_variables])])
    for value, expected in zip(*outputs):
        assert np.max(np.abs(value - expected)) < 1e-4


def test_pointwise_layer_equals_keras():
    x = tf.random.stateless_normal((2, 5, 5, 6), seed=(0, 0))
    ours = PointwiseConvolution(7, activation="sigmoid", bias_initializer="normal")
    theirs = keras.layers.Conv2D(7, 1, activation="sigmoid")
    ours(x), theirs(x)
    theirs.set_weights(ours.get_weights())
    assert np.max(np.abs(ours(x) - theirs(x))) < 1e-6


def test_compiled_silu_equals_the_plain_one(fused):
    x = tf.linspace(-20.0, 20.0, 1001)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = silu(x, training=True)
    sigmoid = 1 / (1 + np.exp(-x.numpy().astype(np.float64)))
    assert np.max(np.abs(y - x * sigmoid)) < 1e-5
    slope = sigmoid + x * sigmoid * (1 - sigmoid)  # d/dx x s = s + x s (1 - s)
    assert np.max(np.abs(tape.gradient(y, x) - slope)) < 1e-5


def test_the_published_sizes_have_their_numbers_of_blocks():
    """Tan and Le (2019): B0's stages have 1, 2, 2, 3, 3, 4, 1 blocks; a depth of 1.1 makes 2, 3, 3, 4, 4, 5, 2."""
    counts = [sum(blocks_by_stage(COEFFICIENTS[f"B{number}"][1], lite=False)) for number in range(8)]
    assert counts == [16, 23, 23, 26, 32, 39, 45, 55]
    assert blocks_by_stage(COEFFICIENTS["B1"][1], lite=False) == [2, 3, 3, 4, 4, 5, 2]
    assert [width for width, _ in COEFFICIENTS.values()] == [1.0, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 4.3]
