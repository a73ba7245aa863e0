"""Micro-batches: two passes over chunks give the gradient of the full batch."""

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_tf.backend import keras
from mural_tf.encoders.layers import forward_pass
from mural_tf.models.build import build_model
from mural_tf.models.step import chunk_seed, compute_gradients, global_losses
from mural_tf.training.fit import compile_model

SEED = tf.constant([3, 4], tf.int32)


def gradients(model, batch, chunks, seed=SEED):
    """Eagerly: tracing would take most of the time. `test_moving_averages_move_once_a_step` runs it in a graph."""
    return vars(compute_gradients(model, batch, seed, chunks, model.optimizers))


def part_of(batch, chunk, chunks):
    return tf.nest.map_structure(lambda value: tf.split(value, chunks)[chunk], batch)


SAME_IN_BOTH = dict(text_tower__dropout=0.0, image_tower__batch_norm_group="2")


@pytest.mark.slow
def test_two_passes_with_one_optimiser_a_task():
    config = contract.toy_config(optimizer__mode="per_task", **SAME_IN_BOTH)
    model = contract.build(config)
    batch = contract.batch_of(model, config)
    one, two = gradients(model, batch, 1)["by_optimizer"], gradients(model, batch, 4)["by_optimizer"]
    assert set(two) == {"image_text", "text_text"}
    for task in two:  # also the same `None`s: a task must not move, or decay, what it does not use
        assert None in two[task]
        assert contract.largest_difference(one[task], two[task]) < 1e-4 * contract.scale(one[task])


@pytest.mark.parametrize("tower", ["features", pytest.param("resnet", marks=pytest.mark.slow)])
def test_both_passes_see_the_same_draws_and_the_same_batch_norm_groups(tower, tmp_path):
    """Against one tape over all chunks, each with its own draws and its own BatchNorm statistics."""
    config = toy_data.toy_config(tmp_path)
    config.text_tower.update(dict(dropout=0.3, layers=2))
    config.image_tower.update(dict(drop_connect_rate=0.5, depth=0.5))
    if tower == "features":
        config = contract.toy_config("align", text_tower__dropout=0.3)
    keras.utils.set_random_seed(0)
    model = build_model(config, toy_data.toy_tokenizer().vocabulary_size)
    compile_model(model, config)
    batch = contract.batch_of(model, config)

    def reference():
        with tf.GradientTape() as tape:
            parts, moments = [], []
            for chunk in range(2):
                examples = part_of({name: batch[name] for name in model.parts}, chunk, 2)
                with forward_pass(chunk_seed(SEED, chunk)) as current:
                    parts.append(model.encode(examples, training=True))
                moments.append(current.mean_moments())
            embeddings = {name: tf.concat([part[name] for part in parts], axis=0) for name in parts[0]}
            totals, _ = global_losses(model, embeddings, batch, model.optimizers)
        layers = model.normalization_layers()
        means = [sum(part[layer][0] for part in moments) / 2 for layer in layers]
        found = tape.gradient(totals["joint"], model.trainable_variables)
        return [tf.convert_to_tensor(gradient) for gradient in found], means

    expected, expected_means = reference()
    found = gradients(model, batch, 2)
    assert contract.largest_difference(expected, found["by_optimizer"]["joint"]) < 5e-5 * contract.scale(expected)
    layers = model.normalization_layers()
    assert len(layers) > (10 if tower == "resnet" else 0) and set(layers) == set(found["moments"])
    for layer, mean in zip(layers, expected_means):
        assert np.max(np.abs(found["moments"][layer][0] - mean)) < 1e-5
    other = gradients(model, batch, 2, SEED + 1)["by_optimizer"]["joint"]
    assert contract.largest_difference(expected, other) > 0.01 * contract.scale(expected)  # the draws matter here
    assert len({tuple(chunk_seed(SEED, chunk).numpy()) for chunk in range(3)}) == 3  # and each chunk draws for itself


@pytest.mark.slow
def test_moving_averages_move_once_a_step():
    averages = []
    for chunks in (1, 4):
        config = contract.toy_config("align", train__micro_batches=chunks, image_tower__batch_norm_group="2")
        model = contract.build(config)
        step = model.train_step if chunks == 1 else tf.function(model.train_step, autograph=False)  # loops in a graph
        step(contract.batch_of(model, config))
        averages.append([layer.moving_variance.numpy() for layer in model.normalization_layers()])
    assert averages[0] and np.max(np.abs(averages[0][0] - 1.0)) > 1e-3
    for one, other in zip(*averages):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
