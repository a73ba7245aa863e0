"""MULE: what a step computes, that micro-batches compute the same, that it learns, trains, resumes and is exported."""

import json

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from contract import losses_of, rows_of

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.data import records
from mural_tf.encoders import build_text_encoder
from mural_tf.losses.mule import caption_neighbourhood, image_sentence_loss, pair_neighbourhood
from mural_tf.losses.pairs import Pairs
from mural_tf.models.step import compute_gradients

SEED = tf.constant([3, 4], tf.int32)


@pytest.fixture(scope="module")
def mule():
    """The model with all losses and its first batch; tests that change it build their own."""
    config = contract.toy_config("mule", text_tower__dropout=0.0)
    model = contract.build(config)
    batch, pairs = contract.batch_of(model, config), tf.range(contract.EXAMPLES, dtype=tf.int64)
    return model, {**batch, "text_group_id": pairs, "text_a_id": pairs, "text_b_id": 100 + pairs}


def test_losses_are_eq_4(mule):
    model, batch = mule
    embeddings = model.encode(batch, training=False)
    losses = losses_of(model, embeddings, batch)
    assert set(losses) == {"image_text", "neighbourhood", "text_text", "language"}
    owners, languages = np.arange(16) // 2, batch["caption_language_id"]
    matching = image_sentence_loss(embeddings["image"], embeddings["caption"], owners, batch["image_id"], languages)
    np.testing.assert_allclose(losses["image_text"], matching, rtol=1e-5)
    both = [embeddings["caption"], embeddings["caption_words"]]  # s and u
    ids = np.repeat(batch["image_id"], 2)
    expected = sum(caption_neighbourhood(layer, ids, languages, 2) for layer in both)
    np.testing.assert_allclose(losses["neighbourhood"], expected, rtol=1e-5)
    sides = [batch[f"text_{side}_language_id"] for side in "ab"]
    expected = sum(
        pair_neighbourhood(Pairs(embeddings[f"text_a{layer}"], embeddings[f"text_b{layer}"]), *sides)
        for layer in ("", "_words")
    )
    np.testing.assert_allclose(losses["text_text"], expected, rtol=1e-5)
    words = np.concatenate([embeddings[f"{name}_words"] for name in ("caption", "text_a", "text_b")])
    labels = np.concatenate([languages, *sides])
    logits = model.language_classifier(words).numpy()
    chosen = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[np.arange(len(labels)), labels]
    np.testing.assert_allclose(losses["language"], -chosen.mean(), rtol=1e-5)
    assert all(value.numpy() > 0 for value in losses.values())


def test_the_universal_embedding_is_the_mean_of_projected_words(mule):
    model, tokens = mule[0], contract.word_tokenizer()(tf.constant(["<de> v4 v1", "<en> w1 w2 w3"]))
    dense = model.text_encoder.get_layer("universal_embedding").layers_by_language
    ids = tokens["input_word_ids"].numpy()
    expected = []
    for row, language, length in ((0, 1, 2), (1, 0, 3)):
        words = dense[language](model.word_vectors.numpy()[ids[row, :length]]).numpy().mean(axis=0)
        expected.append(words / np.linalg.norm(words))
    np.testing.assert_allclose(model.embed_texts(tokens, "words"), expected, atol=1e-6)


def test_parts_and_masks_give_the_same():
    tokens = contract.word_tokenizer()(tf.constant(["<de> v4 v1", "<en> w1 w2 w3", "<en> w4", "<de> x"]))
    found = []
    for groups in (1, 2):
        config = contract.toy_config("parallel_embn", text_tower__length_groups=groups)  # with branches for languages
        keras.utils.set_random_seed(0)
        tower = build_text_encoder(config.text_tower, contract.word_tokenizer().vocabulary_size)
        found.append(tower(dict(tokens)).numpy())
    np.testing.assert_allclose(*found, atol=1e-6)


def test_the_reversed_gradient_reaches_words_with_the_other_sign_and_no_sentence_branch(mule):
    model, batch = mule
    with tf.GradientTape(persistent=True) as tape:
        embeddings = model.encode(batch, training=True)
        language = losses_of(model, embeddings, batch)["language"]
        labels = batch["caption_language_id"], batch["text_a_language_id"], batch["text_b_language_id"]
        words = tf.concat([embeddings[f"{name}_words"] for name in ("caption", "text_a", "text_b")], axis=0)
        plain = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.concat(labels, 0), model.language_classifier(words))
        )
    reached, other = (tf.convert_to_tensor(tape.gradient(x, model.word_vectors)) for x in (language, plain))
    assert np.max(np.abs(other)) > 1e-4
    np.testing.assert_allclose(reached, -other, atol=1e-7)
    kernel = model.language_classifier.kernel
    np.testing.assert_allclose(tape.gradient(language, kernel), tape.gradient(plain, kernel), atol=1e-7)
    branch = model.text_encoder.get_layer("sentence_branch").trainable_variables
    for gradient in tape.gradient(language, [*branch, *model.image_encoder.trainable_variables]):
        assert gradient is None or not np.any(gradient)


def test_lp_trains_the_projections_alone():
    config = contract.toy_config("mule", text_tower__frozen_words=True)
    config.loss.image_text_weight = config.method.neighbourhood_weight = config.method.language_weight = 0.0
    config.method.neighbourhood_levels = ("words",)
    model = contract.build(config)
    batch = contract.batch_of(model, config)
    assert model.parts == ("text_a", "text_b")
    gradients = compute_gradients(model, batch, SEED, 1).by_optimizer["joint"]  # two chunks: test_contract.py
    reached = {v.name for g, v in zip(gradients, model.trainable_variables) if g is not None and np.any(g)}
    assert reached and all("language_en" in name or "language_de" in name for name in reached), reached


def test_word_vectors_start_from_files_and_are_held_near_them(tmp_path, monkeypatch):
    monkeypatch.setattr("mural_tf.models.mule.WORD_VECTORS_WEIGHT", 0.5)
    for language, word in (("en", "w1"), ("de", "v1")):
        (tmp_path / f"{language}.vec").write_text(f"1 8\n{word}{' 0.5' * 8}\n", encoding="utf-8")
    files = str(tmp_path / "{language}.vec")
    config = contract.toy_config("mule", text_tower__word_vectors=files, text_tower__dropout=0.0)
    model, tokenizer = contract.build(config), contract.word_tokenizer()
    model.begin(tokenizer, restored=False)
    place = tokenizer.vocabulary.index("de\tv1")
    np.testing.assert_array_equal(model.word_vectors[place], np.full(8, 0.5))
    batch = contract.batch_of(model, config)
    embeddings = model.encode(batch, training=False)
    rows = {**rows_of(embeddings), "caption_words": (4, 8)}  # half of the sixteen captions, so half of the loss
    assert losses_of(model, embeddings, batch)["word_vectors"].numpy() == 0.0
    moved = model.word_vectors.numpy()
    moved[place] += 0.1
    model.word_vectors.assign(moved)
    found = losses_of(model, embeddings, batch, rows)["word_vectors"]
    np.testing.assert_allclose(found, 0.5 * 8 * 0.1**2, rtol=1e-4)
    assert "original_vectors" in model.weights_by_part()


@pytest.mark.slow
def test_trains_resumes_evaluates_and_exports(tmp_path):
    """On features in place of images, through the recipe that run_pretrain.py calls."""
    from mural_lite.models import open_model
    from mural_tf.runs.finetune import finetune
    from mural_tf.runs.pretrain import pretrain

    data = toy_data.write_toy_features(tmp_path / "data", contract.FEATURES, 32)
    images = list(records.read_records(data, records.IMAGE_TEXT, "train"))
    records.write_records(data, records.IMAGE_TEXT, "test", images)
    config = contract.toy_config("mule", data__directory=str(data))
    config.vocabulary.size = 200
    config.train.update(dict(steps=4, checkpoint_every=2, log_every=2))
    config.evaluation.split = "test"
    pretrain(config, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert 0 < summary["metrics"]["retrieval/de/mean_recall"] <= 100

    trained, exported = open_model(tmp_path / "run"), open_model(tmp_path / "run" / "export")
    texts = ["thing w3", "ding v5", "<de> thing w3"]
    np.testing.assert_allclose(trained.encode_text(texts), exported.encode_text(texts), atol=1e-5)
    german = trained.encode_text(["thing w3"], language="de")[0]
    np.testing.assert_allclose(german, trained.encode_text(texts)[2], atol=1e-6)
    assert np.max(np.abs(trained.encode_text(texts)[0] - trained.encode_text(texts)[2])) > 0.01
    images = [record.image for record in images]
    np.testing.assert_allclose(trained.encode_image(images), exported.encode_image(images), atol=1e-5)
    with pytest.raises(UserError, match="Image 0"):
        trained.encode_image([b"four"])

    finetune(config, str(tmp_path / "run" / "export"), tmp_path / "tuned")  # from the Hub modules' variables
    assert open_model(tmp_path / "tuned").step == 4
