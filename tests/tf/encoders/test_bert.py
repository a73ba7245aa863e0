"""The text tower against a NumPy BERT written as plainly as possible."""

import math

import numpy as np
import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_tf.backend import keras
from mural_tf.encoders import build_text_encoder
from mural_tf.encoders.kernels import set_fusion
from mural_tf.encoders.transformer import TransformerLayer

VOCABULARY = 50


@pytest.fixture
def fused():
    """The fused loops, which every shape compiles anew, are part of what is tested."""
    set_fusion("auto")  # off in tests; restored after each


def tower_config(**fields):
    config = base_config().text_tower
    config.update(dict(layers=2, hidden_size=12, heads=3, feed_forward_size=20, max_length=9, dropout=0.0))
    config.precision = "float32"
    config.update(fields)
    return config


def random_tokens(batch=4, length=6, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, length + 1, batch)
    lengths[0] = length
    return {
        "input_word_ids": rng.integers(0, VOCABULARY, (batch, length), np.int32),
        "input_mask": (np.arange(length) < lengths[:, None]).astype(np.int32),
        "input_type_ids": rng.integers(0, 2, (batch, length), np.int32),
    }


def randomise(model, seed=0):
    """Weights large enough that every part matters, biases and scales included."""
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(0.0, 0.5, w.shape) + (1.0 if "gamma" in w.name else 0.0) for w in model.weights])


def numpy_bert(model, tokens, heads):
    """[CLS] state in float64, one example, head and layer at a time; reads the variables by name."""
    weights = {w.name.removesuffix(":0"): w.numpy().astype(np.float64) for w in model.weights}
    layers = len({name.split("/")[0] for name in weights if name.startswith("layer_")})

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return centred / deviation * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def dense(x, name):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    gelu = np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))
    states = []
    for ids, mask, types in zip(*(tokens[k] for k in ("input_word_ids", "input_mask", "input_type_ids"))):
        x = weights["embeddings/token_embeddings"][ids]
        if "embeddings/projection/kernel" in weights:
            x = dense(x, "embeddings/projection")
        x = x + weights["embeddings/position_embeddings"][: len(ids)] + weights["embeddings/type_embeddings"][types]
        x = norm(x, "embeddings/layer_norm")
        size = x.shape[-1] // heads
        for n in range(layers):
            query, key, value = np.split(dense(x, f"layer_{n}/qkv"), 3, axis=-1)
            attended = np.zeros_like(x)
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                logits = query[:, part] @ key[:, part].T / math.sqrt(size)
                attended[:, part] = softmax(np.where(mask == 1, logits, -np.inf)) @ value[:, part]
            x = norm(x + dense(attended, f"layer_{n}/attention_output"), f"layer_{n}/attention_norm")
            y = dense(gelu(dense(x, f"layer_{n}/intermediate")), f"layer_{n}/output")
            x = norm(x + y, f"layer_{n}/output_norm")
        states.append(x[0])
    return np.array(states)


@pytest.mark.parametrize("token_embedding_size, training", [(5, False), (0, True)])
def test_equals_the_numpy_bert(token_embedding_size, training, fused):
    model = build_text_encoder(tower_config(token_embedding_size=token_embedding_size), VOCABULARY)
    randomise(model)
    tokens = random_tokens()
    expected = numpy_bert(model, tokens, heads=3)
    assert model.embedding_size == 12 and model.output_shape == (None, 12)
    assert np.max(np.abs(model(tokens, training=training) - expected)) < 1e-4
    assert np.max(np.abs(expected[0] - expected[1])) > 0.1


def test_training_and_inference_graphs_have_the_same_gradients(fused):
    model = build_text_encoder(tower_config(), VOCABULARY)
    randomise(model)
    tokens = random_tokens()
    gradients = []
    for training in (False, True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.sin(model(tokens, training=training)))
        gradients.append([tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, model.trainable_variables)])
    for plain, fast in zip(*gradients):
        assert np.max(np.abs(plain - fast)) < 1e-4 * max(1.0, np.max(np.abs(plain)))
    assert all(np.max(np.abs(g)) > 0 for g in gradients[0])


def test_gradient_against_finite_differences():
    model = build_text_encoder(tower_config(layers=2), VOCABULARY)
    randomise(model, seed=3)
    tokens = random_tokens(batch=2)
    direction = np.random.default_rng(1).normal(size=(2, 12))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tokens, training=True) * tf.constant(direction, tf.float32))
    gradients = tape.gradient(loss, model.trainable_variables)
    rng = np.random.default_rng(2)
    for variable, gradient in zip(model.trainable_variables, gradients):
        gradient, value = tf.convert_to_tensor(gradient).numpy(), variable.numpy()
        step = rng.normal(size=value.shape) * 1e-5
        values = []
        for sign in (1, -1):  # the oracle reads the variables; it computes in float64, variables round to float32
            variable.assign(value + sign * step)
            moved = variable.numpy().astype(np.float64)
            values.append((np.sum(numpy_bert(model, tokens, heads=3) * direction), moved))
        variable.assign(value)
        (up, high), (down, low) = values
        predicted = np.sum(gradient * (high - low))
        assert abs((up - down) - predicted) < 2e-2 * abs(predicted) + 1e-7, variable.name


def test_padding_changes_nothing():
    model = build_text_encoder(tower_config(), VOCABULARY)
    randomise(model)
    tokens = random_tokens(length=6)
    padded = {
        name: np.pad(value, ((0, 0), (0, 3)), constant_values=name != "input_mask") for name, value in tokens.items()
    }
    assert np.max(np.abs(model(padded) - model(tokens))) < 1e-5


def test_first_position_only_equals_the_full_layer():
    x = tf.random.stateless_normal((3, 5, 12), seed=(0, 0))
    mask = tf.constant([[1] * 5, [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    full, first = (TransformerLayer(3, 20, 0.0, only=only) for only in ("", "first"))
    full((x, mask)), first((x, mask))
    randomise(full)
    first.set_weights(full.get_weights())
    assert first((x, mask)).shape == (3, 1, 12)
    assert np.max(np.abs(first((x, mask)) - full((x, mask))[:, :1])) < 1e-5


def test_dropout_acts_in_training_only_and_not_in_a_frozen_tower():
    tokens = random_tokens()
    model = build_text_encoder(tower_config(dropout=0.5), VOCABULARY)
    assert np.max(np.abs(model(tokens, training=True) - model(tokens, training=True))) > 1e-3
    assert np.max(np.abs(model(tokens, training=False) - model(tokens, training=False))) == 0
    frozen = build_text_encoder(tower_config(dropout=0.5, frozen=True), VOCABULARY)
    assert not frozen.trainable_variables
    assert np.max(np.abs(frozen(tokens, training=True) - frozen(tokens, training=False))) < 1e-6


def test_mixed_bfloat16_computes_in_bfloat16_and_returns_float32():
    exact, mixed = (build_text_encoder(tower_config(precision=p), VOCABULARY) for p in ("float32", "mixed_bfloat16"))
    mixed.set_weights(exact.get_weights())
    tokens = random_tokens()
    for training in (False, True):
        difference = np.max(np.abs(mixed(tokens, training=training) - exact(tokens, training=training)))
        assert 0 < difference < 0.05
    assert mixed(tokens).dtype == tf.float32 and {w.dtype for w in mixed.weights} == {tf.float32}
    assert keras.mixed_precision.global_policy().name == "float32"


@pytest.mark.parametrize("hidden_size,deviation", [(768, 0.02), (192, 0.04)])  # 0.02 * sqrt(768 / hidden_size)
def test_initial_weights_are_berts(hidden_size, deviation):
    model = build_text_encoder(tower_config(layers=1, hidden_size=hidden_size), VOCABULARY)
    for weight in model.weights:
        value = weight.numpy()
        if value.ndim == 2:
            assert np.max(np.abs(value)) <= 2 * deviation + 1e-6  # truncated at two deviations
            # A normal cut at two deviations keeps 0.8796 of its deviation.
            assert abs(value.std() / (0.8796 * deviation) - 1) < 0.1
        else:
            assert np.all(value == (1 if "gamma" in weight.name else 0))
