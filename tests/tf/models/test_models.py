"""MURAL and ALIGN: what a step computes and what it moves."""

import contract
import numpy as np
import pytest
import tensorflow as tf
from contract import losses_of


@pytest.fixture(scope="module")
def mural():
    """A model, which tests leave as it is, and a batch."""
    config = contract.toy_config()
    model = contract.build(config)
    return model, contract.batch_of(model, config)


def test_loss_is_eq_1(mural, monkeypatch):
    model, batch = mural
    embeddings = {k: v.numpy().astype(np.float64) for k, v in model.encode(batch, training=False).items()}
    count = len(embeddings["image"])

    def softmax_loss(queries, candidates, temperature, margin):
        logits = queries @ candidates.T - margin * np.eye(count)
        logits /= temperature
        return np.mean([np.log(np.sum(np.exp(row - row[i]))) for i, row in enumerate(logits)])

    image, caption, a, b = (embeddings[name] for name in ("image", "caption", "text_a", "text_b"))
    monkeypatch.setitem(model.loss_config, "mask_duplicates", False)
    losses = losses_of(model, model.encode(batch, training=False), batch)
    expected = softmax_loss(image, caption, 0.1, 0.0) + softmax_loss(caption, image, 0.1, 0.0)
    np.testing.assert_allclose(losses["image_text"], expected, rtol=1e-4)
    expected = softmax_loss(a, b, 0.01, 0.3) + softmax_loss(b, a, 0.01, 0.3)
    np.testing.assert_allclose(losses["text_text"], expected, rtol=1e-4)
    assert model.loss_weights() == {"image_text": 1.0, "text_text": 0.1}
    monkeypatch.setitem(model.options, "text_text_temperature", 0.0)  # the learned one, here 0.1
    losses = losses_of(model, model.encode(batch, training=False), batch)
    np.testing.assert_allclose(
        losses["text_text"], softmax_loss(a, b, 0.1, 0.3) + softmax_loss(b, a, 0.1, 0.3), rtol=1e-4
    )


def test_align_has_one_head_and_mural_two(mural):
    align = contract.build(contract.toy_config("align"))
    mural_size, align_size = (sum(int(tf.size(v)) for v in m.trainable_variables) for m in (mural[0], align))
    assert mural_size - align_size == 16 * 24 + 24  # one Dense, 16 → 24, with bias
    with pytest.raises(ValueError, match="no 'text_text' head"):
        align.text_head("text_text")


@pytest.mark.slow
def test_heads_may_be_mlps():
    config = contract.toy_config()
    plain = contract.build(config)
    config.text_tower.head_hidden_size = 2
    model = contract.build(config)
    sizes = [sum(int(tf.size(v)) for v in m.text_text_head.trainable_variables) for m in (plain, model)]
    assert sizes == [16 * 24 + 24, 16 * 2 + 2 + 2 * 24 + 24]
    kernel, bias, out, last = (np.zeros(v.shape, "float32") for v in model.text_text_head.trainable_variables)
    kernel[0, 0], bias[1], out[0, 0], out[1, 1] = 2.0, -1.0, 1.0, 1.0
    model.text_text_head.set_weights([kernel, bias, out, last])
    state = np.zeros([1, 16], "float32")
    state[0, 0] = 0.5  # hidden: GELU(1) = .841345 and GELU(-1) = -.158655
    np.testing.assert_allclose(model.text_text_head(state)[0, :3], [0.841345, -0.158655, 0.0], atol=1e-5)
    # The task moves both layers, and the rate of the text-text head is that of both.
    batch = contract.batch_of(model, config)
    with tf.GradientTape() as tape:
        loss = losses_of(model, model.encode(batch, True), batch)["text_text"]
    assert None not in tape.gradient(loss, model.text_text_head.trainable_variables)
    assert len(model.variable_groups()["text_text_head"]) == 4


def test_the_text_text_task_trains_its_head_and_the_text_tower_only(mural):
    model, batch = mural
    with tf.GradientTape() as tape:
        loss = losses_of(model, model.encode(batch, True), batch)["text_text"]
    gradients = tape.gradient(loss, model.trainable_variables)
    reached = {id(v) for g, v in zip(gradients, model.trainable_variables) if g is not None}
    expected = model.text_encoder.trainable_variables + model.text_text_head.trainable_variables
    assert reached == {id(v) for v in expected}


def test_the_temperature_cannot_leave_its_range():
    config = contract.toy_config("align")
    config.optimizer.update(dict(learning_rate=5.0))
    model = contract.build(config)
    for seed in range(2):
        model.train_step(contract.batch_of(model, config, seed=seed))
        assert 0.0099 < float(model.temperature) < 2.001


def test_gradient_clipping_bounds_the_step():
    config = contract.toy_config("align")
    config.optimizer.update(dict(clip_norm=1e-12, epsilon=1.0))
    model = contract.build(config)
    before = [v.numpy() for v in model.trainable_variables]
    model.train_step(contract.batch_of(model, config))
    moved = max(np.max(np.abs(v.numpy() - b)) for v, b in zip(model.trainable_variables, before))
    assert moved < 1e-10
