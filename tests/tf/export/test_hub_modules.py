"""The exported modules through TF-Hub's own client: run, fine-tune, nest, travel, and come back as towers."""

import functools
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from toy_data import ONE_LAYER, SIDE, image_text_records, toy_config, toy_tokenizer, write_toy_data
from toy_export import TEXTS, difference, pixels, toy_model

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.backend import keras, tensorflow_hub
from mural_tf.configs import mural_labse
from mural_tf.data import records
from mural_tf.encoders import build_image_encoder, build_text_encoder
from mural_tf.encoders import hub as hub_towers
from mural_tf.encoders.hub import settle_vocabulary
from mural_tf.export.hub_modules import image_encoder_module, stored_preparation
from mural_tf.runs import finetune, pretrain

hub = tensorflow_hub()
TOLERANCE = 1e-5
ROOT = pathlib.Path(__file__).resolve().parents[3]


def train(products, variables, steps):
    """Turns embeddings towards a target, given their products with it; returns the loss of every step."""
    optimizer, losses = keras.optimizers.legacy.SGD(0.05), []
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(tf.reduce_sum(products(), axis=1))
        gradients = tape.gradient(loss, variables)
        assert all(gradient is not None for gradient in gradients)
        optimizer.apply_gradients(zip(gradients, variables))
        losses.append(float(loss))
    return losses


def test_hub_image_module_runs(export, model, config):
    layer = hub.KerasLayer(str(export / "hub/image_encoder"), trainable=True)
    images = tf.cast(pixels(config), tf.float32) / 255.0
    assert difference(layer(images), model.embed_images(images)) <= TOLERANCE
    assert {v.name for v in layer.trainable_variables} == {v.name for v in model.image_encoder.trainable_variables}
    loaded = layer.resolved_object
    assert loaded.regularization_losses == [] and len(loaded.variables) == len(model.image_encoder.variables)


@pytest.fixture(scope="module")
def preprocessor(export):
    return hub.load(str(export / "hub/text_preprocessor"))


def test_hub_text_modules_are_a_text_tower(export, model, config, preprocessor):
    tokenizer = toy_tokenizer(lower_case=True)
    tokens = preprocessor(tf.constant(TEXTS))
    for name, values in tokenizer(tf.constant(TEXTS)).items():
        np.testing.assert_array_equal(tokens[name], values)
    pieces = preprocessor.tokenize(tf.constant(TEXTS))
    assert pieces.to_list() == tokenizer.tokenize(tf.constant(TEXTS)).to_list()
    for segment in (pieces, pieces.merge_dims(1, 2)):
        packed = preprocessor.bert_pack_inputs([segment], seq_length=tf.constant(5))
        np.testing.assert_array_equal(packed["input_word_ids"][0], [2, *tokens["input_word_ids"][0, 1:4], 3])
        assert packed["input_mask"].shape == (len(TEXTS), 5)

    encoder = hub.load(str(export / "hub/text_encoder"))
    outputs = encoder(tokens)
    assert difference(outputs["default"], model.embed_texts(tokens)) <= TOLERANCE
    assert difference(outputs["text_text"], model.embed_texts(tokens, "text_text")) <= TOLERANCE
    assert difference(outputs["sentence"], model.text_encoder(dict(tokens))) <= TOLERANCE
    tower = config.text_tower.copy_and_resolve_references()
    tower.name, tower.handle = "hub", str(export / "hub/text_encoder")
    hub_tower = build_text_encoder(tower, tokenizer.vocabulary_size)
    assert difference(hub_tower(dict(tokens)), model.embed_texts(tokens)) <= TOLERANCE
    assert len(hub_tower.trainable_variables) == len(model.text_encoder.trainable_variables) + 4  # two heads


def test_two_segments_are_packed_as_in_labse(preprocessor):
    tokenizer = toy_tokenizer(lower_case=True)
    start, end, pad = (tokenizer.vocabulary.index(piece) for piece in ("[CLS]", "[SEP]", "[PAD]"))
    first = preprocessor.tokenize(tf.constant(["thing", "thing ding thing ding"]))
    second = preprocessor.tokenize(tf.constant(["ding", "v"]))
    thing, ding, v = (tokenizer.vocabulary.index(piece) for piece in ("thing", "ding", "v"))
    packed = preprocessor.bert_pack_inputs([first, second], seq_length=7)
    # 4 places for both segments of the second row, given out in turns: 3 for the first, which wants 4, and 1.
    expected = [[start, thing, end, ding, end, pad, pad], [start, thing, ding, thing, end, v, end]]
    np.testing.assert_array_equal(packed["input_word_ids"], expected)
    np.testing.assert_array_equal(packed["input_type_ids"], [[0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1]])
    np.testing.assert_array_equal(packed["input_mask"], [[1, 1, 1, 1, 1, 0, 0], [1] * 7])
    flat = [segment.merge_dims(1, 2) for segment in (first, second)]
    again = preprocessor.bert_pack_inputs(flat, seq_length=tf.constant(7))
    np.testing.assert_array_equal(again["input_word_ids"], expected)


def test_the_preprocessor_is_a_keras_layer_on_strings(export):
    texts = keras.Input(shape=(), dtype=tf.string)
    tokens = hub.KerasLayer(str(export / "hub/text_preprocessor"))(texts)
    outputs = keras.Model(texts, tokens)(tf.constant(TEXTS))
    for name, values in toy_tokenizer(lower_case=True)(tf.constant(TEXTS)).items():
        np.testing.assert_array_equal(outputs[name], values)
    assets = {path.name for path in (export / "hub/text_preprocessor/assets").iterdir()}
    assert assets == {"vocabulary.txt", "settings.json"}


@pytest.mark.slow
def test_modules_nest_in_another_saved_model(export, model, config, tmp_path):
    names = ("image_encoder", "text_preprocessor", "text_encoder")
    module = tf.Module()
    module.image, module.preprocess, module.text = (hub.load(str(export / "hub" / name)) for name in names)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None, SIDE, SIDE, 3], tf.float32)])
    def embed(text, image):
        return {"texts": module.text(module.preprocess(text))["default"], "images": module.image(image)}

    tf.saved_model.save(module, str(tmp_path), signatures=embed)
    images = tf.cast(pixels(config), tf.float32) / 255.0
    inside = tf.saved_model.load(str(tmp_path)).signatures["serving_default"](text=tf.constant(TEXTS), image=images)
    tokens = toy_tokenizer(lower_case=True)(tf.constant(TEXTS))
    assert difference(inside["texts"], model.embed_texts(tokens)) <= TOLERANCE
    assert difference(inside["images"], model.embed_images(images)) <= TOLERANCE


@pytest.mark.slow
def test_a_model_trained_with_groups_of_statistics_is_exported_for_any_batch(tmp_path):
    config = toy_config("")
    config.image_tower.update(dict(name="resnet", width=80 / 512, depth=0.5, batch_norm_group="16"))
    model = toy_model(config)
    module = image_encoder_module(model)
    assert {layer.group for layer in model.normalization_layers()} == {16}
    tf.saved_model.save(module, str(tmp_path))  # traces it again
    assert hub.load(str(tmp_path))(tf.zeros([3, SIDE, SIDE, 3]), training=True).shape == (3, 80)


def test_an_exported_image_encoder_is_an_image_tower_that_trains(export, model, config, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_towers, "load_module", functools.cache(hub_towers.load_module))
    tower = config.image_tower.copy_and_resolve_references()
    tower.update(dict(name="hub", handle=str(export / "hub/image_encoder"), branch_size=0, projection=0))
    encoder = build_image_encoder(tower)
    images = tf.cast(pixels(config), tf.float32) / 255.0
    assert encoder.embedding_size == 80
    assert difference(encoder(images), model.embed_images(images)) <= TOLERANCE
    assert len(encoder.trainable_variables) == len(model.image_encoder.trainable_variables)

    target = tf.math.l2_normalize(tf.ones([len(images), 80]), axis=-1)
    statistics = [v for v in encoder.variables if "moving_mean" in v.name]
    before = [v.numpy() for v in statistics]
    losses = train(lambda: encoder(images, training=True) * target, encoder.trainable_variables, steps=3)
    assert losses[-1] < losses[0]
    assert statistics and all(np.abs(v.numpy() - b).max() > 0 for v, b in zip(statistics, before))
    tower.frozen = True
    assert not build_image_encoder(tower).trainable_variables
    tower.image_size = 48
    with pytest.raises(UserError, match="does not take images of image_tower.image_size=48 pixels"):
        build_image_encoder(tower)
    tower.handle = str(tmp_path)
    with pytest.raises(UserError, match="could not be loaded"):
        build_image_encoder(tower)


def test_fine_tuning_from_modules_names_their_export(export):
    with pytest.raises(UserError, match="holds an export's Hub modules, .* give --from the export or workdir"):
        finetune.starting_point(base_config(), str(export / "hub"))


def test_modules_say_how_their_pixels_are_made(export, tmp_path):
    ways = dict(resize_mode="shorter_side", interpolation="bicubic", jpeg="accurate")
    folder = pathlib.Path(shutil.copytree(export / "hub/image_encoder", tmp_path / "image_encoder"))
    path = folder / "assets/settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **ways}))
    assert {name: stored_preparation(folder)[name] for name in ways} == ways
    assert stored_preparation(tmp_path) == {}  # a module from elsewhere
    path.write_text(json.dumps({**json.loads(path.read_text()), "jpeg": 1}))
    with pytest.raises(UserError, match="settings.json: jpeg is 1, expected a text"):
        stored_preparation(folder)


def test_the_configuration_of_labse_takes_vocabulary_and_casing_from_the_module(tmp_path):
    def settled(*pieces, tower="tower", **preparing):
        for folder, files in ((tower, pieces), *preparing.items()):
            (tmp_path / folder / "assets").mkdir(parents=True)
            for number, text in enumerate(files):
                (tmp_path / folder / f"assets/{number}.txt").write_text(text, encoding="utf-8")
        arguments = [f"handle={tmp_path / tower}", *(f"preprocessor={tmp_path / name}" for name in preparing)]
        config = mural_labse.get_config(",".join(arguments))
        settle_vocabulary(config)
        return config

    config = settled("[PAD]\n[UNK]\nred\n##É\n")
    assert config.text_tower.name == "hub" and config.text_tower.handle == str(tmp_path / "tower")
    assert config.vocabulary.file == str(tmp_path / "tower/assets/0.txt") and config.vocabulary.size == 4
    assert not config.vocabulary.lower_case and not config.vocabulary.strip_accents
    config = settled(tower="bare", preparing=["[PAD]\n[UNK]\nred\n"])
    assert config.vocabulary.file == str(tmp_path / "preparing/assets/0.txt") and config.vocabulary.lower_case
    with pytest.raises(UserError, match="has no vocabularies .* name the module that prepares"):
        settled(tower="none")
    with pytest.raises(UserError, match="has 2 vocabularies"):
        settled("a", "b", tower="two")
    assert mural_labse.get_config("text=frozen").text_tower.frozen


def test_mural_on_labse_learns_evaluates_and_exports_texts(tmp_path):
    """configs/mural_labse.py from the records to an export, with the module's vocabulary and a smaller image tower."""
    data = write_toy_data(tmp_path / "data", count=16)
    records.write_records(data, records.IMAGE_TEXT, "test", image_text_records(16))
    tower = toy_config("").text_tower
    _, vocabulary = toy_tokenizer().for_lite()
    encoder = build_text_encoder(tower, len(vocabulary.splitlines()))
    tf.saved_model.save(labse(encoder), str(tmp_path / "labse"))
    (tmp_path / "labse/assets/vocab.txt").write_bytes(vocabulary)
    config = mural_labse.get_config(f"handle={tmp_path / 'labse'}")
    config.data.directory = str(data)
    config.data.shuffle_buffer = 16
    config.image_tower.update({**ONE_LAYER, "image_size": SIDE, "resize": SIDE})
    config.image_tower.precision = config.text_tower.precision = "float32"
    config.embedding_size = 80
    config.text_tower.max_length = 8
    config.loss.temperature = 0.1
    config.optimizer.update(dict(name="adam", learning_rate=3e-3, text_text_learning_rate=3e-3, warmup_steps=1))
    config.train.update(dict(steps=20, image_text_batch=16, text_text_batch=16, log_every=20))
    pretrain.pretrain(config, tmp_path / "run")
    metrics = json.loads((tmp_path / "run/summary.json").read_text())["metrics"]
    mean_recall = metrics["retrieval/all/mean_recall"]
    assert mean_recall > 60.0, mean_recall  # chance is 33
    model = tf.saved_model.load(str(tmp_path / "run/export/text_encoder/1"))
    texts = tf.constant(["thing w1", "ding v1", "thing w2"])  # the second translates the first
    vectors = model.signatures["serving_default"](text=texts)["embedding"].numpy()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1


def labse(encoder):
    """A module with exactly LaBSE's inputs and outputs."""

    def encode(inputs, training=False):
        state = encoder(inputs, training=training)
        pooled = tf.math.l2_normalize(state, axis=-1)
        outputs = {"default": pooled, "pooled_output": pooled}
        return {**outputs, "sequence_output": state[:, tf.newaxis], "encoder_outputs": [state]}

    module = tf.train.Checkpoint()
    module.variables = list(encoder.variables)
    module.trainable_variables = list(encoder.trainable_variables)
    module.regularization_losses = []
    module.__call__ = tf.function(encode)
    names = ("input_word_ids", "input_mask", "input_type_ids")
    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in names}
    for training in (True, False):
        module.__call__.get_concrete_function(specs, training=training)
    return module
