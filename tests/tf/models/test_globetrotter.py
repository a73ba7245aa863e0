"""Globetrotter and the text-only dual encoder: which loss trains what, their wirings, and that they learn."""

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from contract import losses_of

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.losses.globetrotter import nt_xent, transitive_loss, transitive_weights
from mural_tf.losses.pairs import Pairs, Rows
from mural_tf.models.build import build_model
from mural_tf.training.fit import compile_model

LOSSES = ("text_text", "image_image", "image_text", "cloze")


def build(config):
    keras.utils.set_random_seed(0)
    model = build_model(config, toy_data.toy_tokenizer().vocabulary_size)
    compile_model(model, config)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    images = toy_data.image_text_records(16)
    for image in images:  # one language an image, as Globetrotter has it
        image.captions, image.languages, image.caption_groups = image.captions[:1], ["en"], ["g"]
    return toy_data.write_toy_data(tmp_path_factory.mktemp("toy"), images, toy_data.text_pairs(16))


@pytest.fixture
def config(folder):
    return toy_data.toy_config(folder, "globetrotter")


@pytest.fixture(scope="module")
def shared():
    """A model with two heads and all losses, its configuration, a batch and its embeddings, to look at."""
    config = contract.toy_config("globetrotter", loss__mask_duplicates=False)
    model = contract.build(config)
    batch = contract.batch_of(model, config, 16)
    return model, config, batch, model.encode(batch, training=False)


def names_reached(model, batch):
    """{loss: the parts of the model that its gradient reaches}."""
    with tf.GradientTape(persistent=True) as tape:
        losses = losses_of(model, model.encode(batch, False), batch)
    owner = {
        v.ref(): name
        for name, part in model.weights_by_part().items()
        for v in getattr(part, "trainable_variables", [part])
    }
    variables = model.trainable_variables
    return {
        task: {owner[v.ref()] for v, g in zip(variables, tape.gradient(loss, variables)) if g is not None and np.any(g)}
        for task, loss in losses.items()
    }


def test_each_loss_trains_its_own_parts(shared):
    model, _, batch, _ = shared
    found = names_reached(model, batch)
    assert found == {
        "text_text": {"text_encoder", "text_text_head"},  # nothing of the image side: α is detached
        "image_image": {"image_encoder"},
        "image_text": {"image_encoder", "text_encoder", "image_text_head"},
        "cloze": {"text_encoder", "cloze_head"},
    }


@pytest.mark.slow
def test_one_head():
    config = contract.toy_config("globetrotter", shared_head=True, text_tower__pooling="first")
    model = contract.build(config)
    found = names_reached(model, contract.batch_of(model, config, 16))
    assert found["text_text"] == {"text_encoder", "image_text_head"}
    config.text_tower.pooling = "first_and_mean"
    with pytest.raises(UserError, match="text_tower.pooling=first; got bert and first_and_mean"):
        contract.build(config)


def test_losses_are_those_of_the_embeddings(shared):
    model, _, batch, embeddings = shared
    losses, first, second = losses_of(model, embeddings, batch), embeddings["view_0"], embeddings["view_1"]
    np.testing.assert_allclose(losses["image_image"], nt_xent(Pairs(first, second), 0.1), rtol=1e-5)
    alpha = transitive_weights(first, embeddings["caption"], "code", 0.4)
    np.testing.assert_allclose(losses["text_text"], transitive_loss(embeddings["sentence"], alpha, 0.1), rtol=1e-5)
    expected = 0.0
    for view in (first, second):
        cosines = view.numpy().astype(np.float64) @ embeddings["caption"].numpy().T / 0.1
        for logits in (cosines, cosines.T):
            expected += np.mean(np.log(np.sum(np.exp(logits), axis=1)) - np.diag(logits)) / 2
    np.testing.assert_allclose(losses["image_text"], expected, rtol=1e-5)
    share = model.alpha_above_zero(**{name: Rows.of(embeddings[name]) for name in ("view_0", "caption", "sentence")})
    np.testing.assert_allclose(share, np.count_nonzero(alpha) / (16 * 15), rtol=1e-5)


def test_the_cloze_loss_is_a_mean_over_the_masked_places(shared):
    model, _, batch, embeddings = shared
    tokens = batch["cloze"]
    states = model.text_encoder.token_states(tokens, training=False).numpy()
    table = model.text_encoder.get_layer("embeddings").token_table
    losses = []
    for b, k in zip(*np.nonzero(tokens["weights"].numpy())):
        logits = model.cloze_head(states[b, tokens["places"][b, k]][None, None], table).numpy()[0, 0].astype(np.float64)
        losses.append(np.log(np.sum(np.exp(logits))) - logits[tokens["targets"][b, k]])
    found = losses_of(model, embeddings, batch)["cloze"]
    assert len(losses) == 16  # short captions: one place each
    np.testing.assert_allclose(found, np.mean(losses), rtol=1e-4)


@pytest.mark.parametrize("left_out", LOSSES)
def test_every_loss_can_be_left_out(shared, left_out):
    model, config, batch, embeddings = shared
    owner = model.options if f"{left_out}_weight" in model.options else model.loss_config
    before = owner[f"{left_out}_weight"]
    owner[f"{left_out}_weight"] = 0.0
    try:
        losses = losses_of(model, embeddings, batch)
        assert set(losses) == {*LOSSES} - {left_out} and np.all(np.isfinite(list(losses.values())))
        assert ("cloze" in model.parts) == (left_out != "cloze") and "view_1" in model.parts
        assert ("alpha_above_zero" in model.log_names) == (left_out != "text_text")
    finally:
        owner[f"{left_out}_weight"] = before


@pytest.mark.slow
def test_fully_supervised():
    config = contract.toy_config("globetrotter", method__alpha="pairs")
    model = contract.build(config)
    batch = contract.batch_of(model, config, 16)
    embeddings = model.encode(batch, training=False)
    batch["text_a_id"] = tf.concat([batch["text_b_id"][1:], batch["text_a_id"][1:2]], axis=0)  # texts on both sides
    texts = embeddings["text_a"], embeddings["text_b"]
    ids = [batch[name] for name in ("text_group_id", "text_a_id", "text_b_id")]
    expected = nt_xent(Pairs(*texts, (*ids, tuple(ids[1:]))), 0.1)
    assert abs(expected - nt_xent(Pairs(*texts), 0.1)) > 1e-3
    np.testing.assert_allclose(losses_of(model, embeddings, batch)["text_text"], expected, rtol=1e-5)
    assert "alpha_above_zero" not in model.log_names and model.streams == ("views", "text_text")


@pytest.mark.slow
def test_text_only(config):
    config.image_tower.update(dict(name="none", projection=80, head_size=0))
    config.loss.update(dict(text_text_weight=0.0, image_text_weight=0.0))
    config.method.image_image_weight = 0.0
    model = build(config)
    assert model.streams == ("captions",)
    batch = toy_data.stream_batch(config, toy_data.toy_tokenizer(), *model.streams)
    assert "view_0" not in batch and "image_id" not in batch
    model.check_batch({"cloze": batch["cloze"]})
    assert model.parts == ("cloze",) and set(losses_of(model, model.encode(batch, True), batch)) == {"cloze"}


def test_states_of_packed_and_masked_texts_are_those_of_padded_ones(shared):
    encoder = shared[0].text_encoder
    tokens = toy_data.toy_tokenizer()(tf.constant(["thing w3 ding v4", "", "ding", "w1 v2", "thing thing thing"]))
    padded = encoder(tokens).numpy()
    assert padded.shape == (5, 32)
    for groups in (1, 3):
        assert np.abs(encoder.packed_states(tokens, groups, False) - padded).max() < 1e-5
    states, mask = encoder.token_states(tokens, training=False).numpy(), tokens["input_mask"].numpy()
    for row in range(5):  # the [CLS] state, and the mean of the others
        assert np.abs(states[row, 0] - padded[row, :16]).max() < 1e-6
        assert np.abs(states[row, 1 : mask[row].sum()].mean(axis=0) - padded[row, 16:]).max() < 1e-6
