"""EmbN and PARALLEL-EmbN: what a step computes and the branches they have; the stream of image groups and features."""

import json

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from contract import losses_of

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.data.images import evaluation_image
from mural_tf.encoders import build_text_encoder
from mural_tf.encoders.word_vectors import read_vectors
from mural_tf.ingest.features import cache_features
from mural_tf.losses.mule import image_sentence_loss
from mural_tf.optimizers import StaircaseDecay


def parameters(config):
    tower = build_text_encoder(config.text_tower, contract.word_tokenizer().vocabulary_size)
    return sum(int(tf.size(variable)) for variable in tower.trainable_variables)


def test_the_only_loss_is_eq_3():
    config = contract.toy_config("embn")
    config.method.update(dict(factors=(1.0, 0.0), distance="cosine", margin=0.3))
    model = contract.build(config)
    batch = contract.batch_of(model, config)
    embeddings = model.encode(batch, training=False)
    losses = losses_of(model, embeddings, batch)
    settings = dict(factors=(1.0, 0.0), distance="cosine", margin=0.3)
    images = embeddings["image"], embeddings["caption"], np.arange(16) // 2, batch["image_id"]
    expected = image_sentence_loss(*images, batch["caption_language_id"], **settings)
    assert set(losses) == {"image_text"} and expected > 0
    np.testing.assert_allclose(losses["image_text"], expected, rtol=1e-6)


def test_parallel_has_a_branch_more():
    shared, parallel = (contract.toy_config(method) for method in ("embn", "parallel_embn"))
    cell = 4 * (20 * 12 + 12 * 12 + 12)  # LSTM: 20 inputs, 12 units, four gates
    assert parameters(parallel) - parameters(shared) == cell + 12 * 24 + 24  # and the Dense layer after it
    parallel.text_tower.language_branches = "shared"
    with pytest.raises(UserError, match="language_branches='parallel'"):
        contract.build(parallel)


def test_a_language_trains_its_own_branch_alone():
    model = contract.build(contract.toy_config("parallel_embn"))
    tokens = contract.word_tokenizer()(tf.constant(["<de> v3 v1", "<de> v3 v2"]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.embed_texts(tokens, training=True)[:, 0])
    gradients = tape.gradient(loss, model.text_encoder.trainable_variables)
    pairs = zip(map(tf.convert_to_tensor, gradients), model.text_encoder.trainable_variables)
    moved = {variable.name for gradient, variable in pairs if np.any(gradient)}
    assert any("sentence_branch_de" in name for name in moved) and any("language_de" in name for name in moved)
    assert not any("_en" in name for name in moved), moved


@pytest.mark.slow
def test_image_branch_on_a_frozen_tower():
    config = contract.toy_config("embn")
    config.image_tower.update(dict(name="efficientnet", width=0.25, depth=0.25, frozen=True))
    model = contract.build(config)
    trained = {variable.name.split("/")[0] for variable in model.image_encoder.trainable_variables}
    assert trained == {"branch_hidden", "branch_bn", "branch_projection"}
    assert [layer.name for layer in model.normalization_layers()] == ["branch_bn"]
    assert model.embed_images(tf.zeros([2, 32, 32, 3], tf.uint8)).shape == (2, 24)


def group_config(folder):
    """Three records in batches of two images with up to four captions."""
    languages = ["en", "en", "en", "de", "fr"]
    captions = ["thing w1", "thing w2", "thing w3", "ding v1", "chose"]
    feature = np.arange(12, dtype="<f4").tobytes()
    images = [
        records.ImageTextRecord("full", feature, captions, languages, [""] * 5),
        records.ImageTextRecord("few", feature, ["thing w4", " "], ["en", "de"], [""] * 2),
        records.ImageTextRecord("other", feature, ["chose"], ["fr"], [""]),
    ]
    toy_data.write_toy_data(folder, images, toy_data.text_pairs(4))
    config = contract.toy_config("embn", data__directory=str(folder), data__max_skipped_fraction=1.0)
    config.method.update(dict(captions_per_image=4, captions_per_language=2))
    config.train.image_text_batch = 8
    return config


def test_groups_hold_what_their_images_have(tmp_path):
    batch = toy_data.stream_batch(group_config(tmp_path), contract.word_tokenizer(), "image_groups")
    languages = batch["caption_language_id"].numpy().reshape(2, 4)
    assert sorted(map(sorted, languages.tolist())) == [[-1, -1, -1, 0], [-1, 0, 0, 1]]  # French is not a language here
    for row in languages:
        assert np.array_equal(row == -1, np.sort(row == -1))  # empty places come last
    assert batch["image"].dtype == tf.float32 and batch["image"].shape == (2, 12)
    assert batch["caption"]["input_word_ids"].shape == (8, 8)


def test_features_are_those_of_the_encoder(tmp_path):
    module = tf.train.Checkpoint()
    module.__call__ = tf.function(
        lambda images: tf.reduce_mean(images, axis=[1, 2]), [tf.TensorSpec([None, 32, 32, 3], tf.float32)]
    )
    tf.saved_model.save(module, str(tmp_path / "encoder"))
    images = toy_data.image_text_records(40)
    images[3].image = b"no picture"
    toy_data.write_toy_data(tmp_path / "data", images)
    arguments = tmp_path / "data", tmp_path / "features", str(tmp_path / "encoder")
    folder = cache_features(*arguments, resize=32, image_size=32, batch_size=7)
    found = {record.image_id: record for record in records.read_records(folder, records.IMAGE_TEXT, "train")}
    assert len(found) == 39 and "image3" not in found and found["image5"].captions == ["thing w5", "ding v5"]
    pixels = tf.io.decode_png(images[5].image).numpy().astype(np.float64) / 255.0
    np.testing.assert_allclose(np.frombuffer(found["image5"].image, "<f4"), pixels.mean(axis=(0, 1)), atol=1e-5)
    assert records.list_files(folder, records.TEXT_PAIRS, "train")
    assert cache_features(*arguments, resize=32, image_size=32) == folder  # it is there already
    index = tmp_path / "encoder/variables/variables.index"
    checksums = index.read_bytes()
    index.write_bytes(checksums[::-1])  # other weights
    with pytest.raises(UserError, match="holds another data set, with encoder_files"):
        cache_features(*arguments, resize=32, image_size=32)
    index.write_bytes(checksums)
    settings = dict(resize=32, image_size=32, resize_mode="shorter_side", interpolation="bicubic")
    (tmp_path / "encoder/assets/settings.json").write_text(json.dumps(settings))  # as of an export of ours
    folder = cache_features(tmp_path / "data", tmp_path / "bicubic", str(tmp_path / "encoder"), 40, 32)
    tower = base_config().image_tower
    tower.update({**settings, "resize": 40})
    pixels = evaluation_image(tf.io.decode_png(images[5].image), tower).numpy() / 255.0
    (feature,) = (r.image for r in records.read_records(folder, records.IMAGE_TEXT, "train") if r.image_id == "image5")
    np.testing.assert_allclose(np.frombuffer(feature, "<f4"), pixels.mean(axis=(0, 1)), atol=1e-5)
    folder = cache_features(tmp_path / "data", tmp_path / "stored", str(tmp_path / "encoder"))
    description = json.loads((folder / "dataset.json").read_text())
    assert (description["resize"], description["image_size"]) == (32, 32)  # as the encoder's folder says
    toy_data.write_toy_data(tmp_path / "data", images[:8])
    with pytest.raises(UserError, match="holds another data set, with files"):
        cache_features(tmp_path / "data", tmp_path / "bicubic", str(tmp_path / "encoder"), 40, 32)
    toy_data.write_toy_data(tmp_path / "data", images)
    with pytest.raises(UserError, match="SavedModel from float32"):
        cache_features(tmp_path / "data", tmp_path / "other", str(tmp_path / "data"), 32, 32)
    with pytest.raises(UserError, match="Too many of 40 records cannot be used: 1 x image that does not decode"):
        cache_features(*arguments[:1], tmp_path / "third", arguments[2], 32, 32, max_skipped_fraction=0.01)


def test_vector_files(tmp_path):
    path = tmp_path / "en.vec"
    path.write_text("3 2\na 0.1 0.2\nb 1 2 3\nc -1 0.5\nc 9 9\nd 1 1\n", encoding="utf-8")
    found = read_vectors(path, {"a": 10, "c": 12, "b": 13}, 2)
    assert set(found) == {10, 12}  # b has three numbers: left out, and the first line of c counts
    np.testing.assert_allclose(found[12], [-1.0, 0.5])
    with pytest.raises(UserError, match="text_tower.word_size=2"):
        read_vectors(path, {"a": 10}, 3)
    path.write_text("a x y\nb x y\n", encoding="utf-8")
    with pytest.raises(UserError, match="2 of 2 lines"):
        read_vectors(path, {"a": 1, "b": 2}, 2)
    with pytest.raises(UserError, match="cannot be read"):
        read_vectors(tmp_path / "missing.vec", {}, 2)


def test_decay_by_epochs():
    schedule = StaircaseDecay(1e-4, 0, 0.794, 65)
    assert float(schedule(0)) == float(schedule(64)) == pytest.approx(1e-4)
    assert float(schedule(65)) == pytest.approx(0.794e-4) and float(schedule(3 * 65)) == pytest.approx(1e-4 * 0.794**3)
