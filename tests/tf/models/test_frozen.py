"""States of frozen towers, made once beside the data and taken by every method; and the adapters above them."""

import json
import os
import signal
import types

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from toy_export import difference

from mural_lite.config import base_config
from mural_lite.config_file import load_config
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.models import open_model
from mural_lite.skipped import KINDS, UNREADABLE_IMAGE
from mural_tf.backend import keras
from mural_tf.configs import bridge
from mural_tf.data import records
from mural_tf.data.streams.columns import ColumnFolder
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.encoders import kernels
from mural_tf.encoders.adapters import Adapter, ClassesAdapter, TextAdapter
from mural_tf.encoders.towers import computed_in, read_class_names
from mural_tf.models import complete, states
from mural_tf.models.build import build_model
from mural_tf.models.frozen import columns_of, on_features, standardize_adapters
from mural_tf.models.states import split_image_tower
from mural_tf.models.step import compute_gradients
from mural_tf.runs.finetune import finetune, starting_point
from mural_tf.runs.finish import MeasuredModel
from mural_tf.runs.pretrain import pretrain
from mural_tf.training.callbacks import SaveCheckpoints
from mural_tf.training.fit import compile_model
from mural_tf.training.trained_model import load_trained


def cached_config(folder, method="mural", cached=True, **fields):
    config = toy_data.toy_config(folder, method)
    config.augmentation.shift = 0.0
    for tower in (config.image_tower, config.text_tower):
        tower.update(dict(frozen=True, cached=cached, adapter_size=24, **fields))
    config.image_tower.update(dict(toy_data.ONE_LAYER, projection=80))
    return complete(config)


def model_of(config):
    keras.utils.set_random_seed(0)
    return build_model(config, toy_data.toy_tokenizer().vocabulary_size)


def made_columns(config, workdir, model=None):
    """The columns of a run with this configuration."""
    return columns_of(on_features(model or model_of(config)), config, toy_data.toy_tokenizer(), workdir)


# The adapter.


def test_an_adapter_s_formula():
    layer = Adapter(5, 3)
    states = np.random.default_rng(0).normal(3.0, 2.0, (4, 6)).astype(np.float32)
    layer(states)
    layer.standardize(states)
    kernel, bias, last, last_bias, skip = (w.numpy() for w in layer.trainable_variables)
    standard = (states - states.mean(axis=0)) / states.std(axis=0)
    hidden = tf.nn.gelu(standard @ kernel + bias).numpy()
    assert difference(layer(states), hidden @ last + last_bias + standard @ skip) < 1e-5
    assert np.all(bias == 0) and skip.shape == (6, 3)


def test_standardizing_by_hand():
    # Means (0 + 4) / 2 = 2 and 7; deviations 2, and 0 of a number that never changes, which stays as it is.
    layer = Adapter(2, 2)
    layer(np.zeros([1, 2], np.float32))
    layer.standardize(np.array([[0.0, 7.0], [4.0, 7.0]]))
    np.testing.assert_allclose(layer.mean, [2.0, 7.0])
    np.testing.assert_allclose(layer.deviation, [2.0, 1.0])


@pytest.mark.parametrize("settings", [dict(dropout=0.5), dict(noise=0.5)], ids=str)
def test_dropout_and_noise_are_of_training_alone(settings):
    layer = Adapter(64, 3, **settings)
    states = tf.ones([2, 4])
    assert difference(layer(states, training=False), layer(states)) == 0.0
    assert difference(layer(states, training=True), layer(states)) > 0.0


def test_the_noise_has_its_deviation():
    layer = Adapter(1, 4000, noise=0.25)
    states = np.zeros([1, 4000], np.float32)
    layer(states)
    layer.skip.kernel.assign(np.eye(4000, dtype=np.float32))
    layer.output_dense.kernel.assign(np.zeros([1, 4000]))
    noise = layer(states, training=True).numpy()
    assert abs(noise.std() - 0.25) < 0.02 and abs(noise.mean()) < 0.02


# ConSE.


def test_the_mean_of_names_by_hand():
    # p^(2/3) of 1/8 and 1 are 1/4 and 1.
    layer = ClassesAdapter(2, 3, classes=2, width=2)
    states = np.array([[2**0.5, 2**0.5, 2**0.5, 2**0.5, 1 / 8, 1]], np.float32)
    layer(states)
    layer.names.assign([[4, 0, 0, 4, 0], [0, 0, 1, 0, 1]])
    # By the head 1/4 (4, 0, 0) + (0, 0, 1), by states 1/4 (4, 0) + (0, 1), both as vectors of length 1/2. The mean
    # square of the state is 2, so a quarter of the first part is the trained head's and, but in training, three
    # quarters the names'; 5/4 of the second.
    vector, in_training = layer(states)[0].numpy(), layer(states, training=True)[0].numpy()
    np.testing.assert_allclose(vector[3:], 1.25 * np.array([0.125**0.5, 0.125**0.5]), rtol=1e-6)
    np.testing.assert_allclose(vector[:3] - in_training[:3], 0.75 * np.array([0.125**0.5, 0, 0.125**0.5]), atol=1e-5)
    np.testing.assert_array_equal(vector[3:], in_training[3:])
    assert abs(np.linalg.norm(in_training[:3]) - 0.25) < 1e-5


def test_every_class_counts():
    layer, generator = ClassesAdapter(2, 3, classes=30, width=5), np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(30), size=4).astype(np.float32)
    states = np.concatenate([generator.normal(size=(4, 6)), probabilities], axis=1).astype(np.float32)
    layer(states)
    names = generator.normal(size=(30, 8)).astype(np.float32)
    layer.names.assign(names)
    for row, vector in zip(probabilities, layer(states).numpy()):
        mean = sum(probability ** (2 / 3) * name[3:] for probability, name in zip(row, names))
        assert difference(vector[3:] / np.linalg.norm(vector[3:]), mean / np.linalg.norm(mean)) < 1e-6


def test_names_lie_where_the_text_head_puts_them_now():
    layer, head, states = ClassesAdapter(2, 3, classes=4, width=2), TextAdapter(2, 3), tf.random.normal([4, 2], seed=1)
    layer(tf.zeros([1, 9]))
    layer.name_states.assign(states)
    centred = states.numpy() - states.numpy().mean(axis=0)
    for _ in range(2):
        layer.embed_names(head)
        np.testing.assert_array_equal(layer.names[:, :3], head(states)[:, :3])
        np.testing.assert_allclose(
            layer.names[:, 3:], centred / np.linalg.norm(centred, axis=1, keepdims=True), rtol=1e-5
        )
        head.skip.kernel.assign_add(tf.ones_like(head.skip.kernel))


def test_the_trained_part_is_short_far_from_the_training_pictures():
    layer = ClassesAdapter(2, 3, classes=2, width=2)
    states = np.array([[1, 1], [2, 0], [2, 2], [9, 0]], np.float32)  # mean 0 and deviation 1 at first
    lengths = np.linalg.norm(layer(np.concatenate([states, np.full([4, 2], 0.5)], axis=1))[:, :3], axis=1)
    # Mean squares 1, 2, 4 and, with 9 cut off at 4, 8: (1 / d)^2.
    np.testing.assert_allclose(lengths, [1, 1 / 4, 1 / 16, 1 / 64], rtol=1e-5)


def test_a_text_beside_conse():
    layer = TextAdapter(2, 3)
    states = np.array([[3.0, 0.0], [1.0, 4.0]], np.float32)
    layer(states)
    layer.standardize(states)
    # Means 2 and 2: (1, -2) and (-1, 2), each divided by the root of 5.
    np.testing.assert_allclose(layer(states)[:, 3:], np.array([[1, -2], [-1, 2]]) / np.sqrt(5), rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(layer(states)[:, :3], axis=1), [1, 1], rtol=1e-6)


@pytest.mark.parametrize("content", ["{}", "[]", '["a", 3]', "[", '["a", " "]'])
def test_a_list_of_class_names_that_is_none(content, tmp_path):
    path = tmp_path / "names.json"
    path.write_text(content)
    with pytest.raises(UserError, match=f"image_tower.class_names={path}"):
        read_class_names(str(path))


# States.


@pytest.mark.parametrize("method", [
    "align", pytest.param("mural", marks=pytest.mark.slow), pytest.param("siglip", marks=pytest.mark.slow)
])  # fmt: skip
def test_a_step_with_states_is_the_step_with_the_towers(method, tmp_path):
    toy_data.write_toy_data(tmp_path, count=16)
    results = {}
    for cached in (False, True):
        config = cached_config(tmp_path, method, cached)
        towers = model_of(config)
        model, columns = on_features(towers), made_columns(config, tmp_path, towers)
        compile_model(model, config)
        batch = toy_data.stream_batch(config, toy_data.toy_tokenizer(), *towers.streams)
        batch.update({part: column.look_up(batch[ids]) for part, (column, ids) in columns.items()})
        assert set(columns) == set(model.parts if cached else ())
        assert all(batch[part].shape.rank == 2 for part in columns)
        result = compute_gradients(model, batch, (1, 2), 1)
        results[cached] = result.logs["loss"].numpy(), result.by_optimizer["joint"]
    np.testing.assert_allclose(results[True][0], results[False][0], rtol=2e-3)  # float16
    for ours, theirs in zip(results[True][1], results[False][1], strict=True):
        assert np.max(np.abs(ours - theirs)) < 0.01 * np.max(np.abs(theirs))


@pytest.mark.parametrize("modality, name, expected", [
    ("image", "efficientnet", "float32"), ("image", "vit", "bfloat16"), ("text", "bert", "bfloat16"),
    ("text", "hub", "float32"),
])  # fmt: skip
def test_what_a_tower_computes_in_where_bfloat16_is_fast(modality, name, expected, monkeypatch):
    monkeypatch.setattr(kernels, "multiplies_bfloat16", lambda: True)
    tower = base_config()[f"{modality}_tower"]
    tower.name = name
    assert computed_in(tower, modality) == expected


def test_states_of_all_stages_lie_apart(monkeypatch):
    """The same weights give means of all stages, or of the last alone, whose digest is that of earlier versions."""
    monkeypatch.setattr(kernels, "multiplies_bfloat16", lambda: False)
    tower = types.SimpleNamespace(variables=[tf.Variable([1.0, 2.0])])
    config = base_config().image_tower
    config.name = "efficientnet_lite"
    digests = {}
    for config.pooled_stages in (False, True):
        digests[config.pooled_stages] = states._image_digest(tower, config)
    assert digests[False] == "bbe4a2cc22e2be82-518ceb5d17799f55"
    assert digests[True] != digests[False]


def test_states_of_a_tower_in_bfloat16_or_of_other_tokens_lie_apart(tmp_path):
    toy_data.write_toy_data(tmp_path, count=8)
    made = {}
    for precision, pooling in (("float32", "first"), ("mixed_bfloat16", "first"), ("float32", "mean")):
        config = cached_config(tmp_path, "align")
        config.text_tower.precision = precision
        config.text_tower.pooling = pooling
        column, _ = made_columns(config, tmp_path)["caption"]
        made[precision, pooling] = column.sample(column._keys)
    assert [len(list((tmp_path / ".states").glob(f"{name}-*"))) for name in ("texts", "images")] == [3, 1]
    exact, rounded, of_all_tokens = made.values()
    assert 0.0 < difference(exact, rounded) < 0.03 * np.abs(exact).max() < difference(exact, of_all_tokens)


@pytest.mark.slow
def test_every_method_takes_the_states_that_are_there(tmp_path, monkeypatch):
    toy_data.write_toy_data(tmp_path)
    embedded = []
    add = ColumnFolder._add
    monkeypatch.setattr(ColumnFolder, "_add", lambda self, known, waiting, *others, **is_full: (
        embedded.append(len(waiting)), add(self, known, waiting, *others, **is_full))[1])  # fmt: skip
    for method, new in (("align", [64, 128]), ("mural", []), ("siglip", [])):
        config = cached_config(tmp_path, method)
        made_columns(config, tmp_path / method)
        assert sorted(embedded) == new, method
        embedded.clear()
    config.text_tower.frozen = config.text_tower.cached = False
    keras.utils.set_random_seed(1)  # another tower of pictures
    made_columns(config, tmp_path, build_model(config, toy_data.toy_tokenizer().vocabulary_size))
    assert embedded == [64]


@pytest.mark.slow
def test_adapters_follow_from_the_data_of_their_run(tmp_path):
    """Other runs' states beside the data, here of all languages, change neither mean nor deviation."""
    numbers = []
    for name, befores in (("first", []), ("second", [()])):
        data = toy_data.write_toy_data(tmp_path / name)
        for languages in (*befores, ("en",)):
            config = cached_config(data, "align")
            config.data.image_text_languages = languages
            model = model_of(config)
            standardize_adapters(model, config, toy_data.toy_tokenizer(), tmp_path)
        _, image_head = split_image_tower(model.image_encoder)
        numbers.append([variable.numpy() for head in (model.image_text_head, image_head)
                        for variable in (head.mean, head.deviation)])  # fmt: skip
    for one, other in zip(*numbers):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_pictures_that_do_not_decode_are_skipped_and_counted_up_to_a_bound(tmp_path):
    images = toy_data.image_text_records(40)
    images[3].image = images[7].image = b"no picture"
    toy_data.write_toy_data(tmp_path, images)
    config, tokenizer = cached_config(tmp_path, "align"), toy_data.toy_tokenizer()
    config.data.max_skipped_fraction = 0.04
    with pytest.raises(UserError, match="2 of 40 have no state of the frozen tower.*pictures that cannot be decoded"):
        made_columns(config, tmp_path)
    config.data.max_skipped_fraction = 0.1
    columns = made_columns(config, tmp_path)
    unusable = columns["image"][0].without_vector
    assert len(unusable) == 2
    counts, seen = 0, set()
    for batch in training_batches(config, tokenizer, streams=["image_text"], columns=columns).take(8):
        assert np.abs(batch["image"]).max(axis=1).min() > 0.0
        seen |= set(batch["image_id"].numpy().tolist())
        counts = batch["image_text_tally"].numpy()[0, 0, 1 + KINDS.index(UNREADABLE_IMAGE), 0]
    assert len(seen) == 38 and counts > 0 and not seen & set(unusable.tolist())


@pytest.mark.slow
def test_a_run_learns_resumes_to_the_bit_and_is_exported(tmp_path, monkeypatch):
    """The adapters' mean and deviation are of the data; the export gives what the model in the workdir gives."""
    data = toy_data.write_toy_data(tmp_path / "data")
    records.write_records(data, records.IMAGE_TEXT, "test", toy_data.image_text_records(16))
    (tmp_path / "words.txt").write_text("\n".join(toy_data.toy_tokenizer().vocabulary) + "\n")
    config = cached_config(data)
    config.vocabulary.file = str(tmp_path / "words.txt")
    config.train.update(dict(steps=60, checkpoint_every=20, log_every=20))
    with monkeypatch.context() as patched:
        patched.setattr(SaveCheckpoints, "on_train_batch_end", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        pretrain(config, tmp_path / "stopped")
    assert not (tmp_path / "stopped/summary.json").exists()
    for name in ("run", "stopped"):
        pretrain(config.copy_and_resolve_references(), tmp_path / name)
    whole, resumed = (tf.train.load_checkpoint(tmp_path / name / "checkpoints") for name in ("run", "stopped"))
    for name in whole.get_variable_to_shape_map():
        if name.startswith(("model/", "optimizer_")):
            np.testing.assert_array_equal(whole.get_tensor(name), resumed.get_tensor(name), name)
    embedder, exported = open_model(tmp_path / "run"), open_model(tmp_path / "run/export")
    pictures, texts = [toy_data.picture(i) for i in range(16)], [f"thing w{i}" for i in range(16)]
    assert difference(embedder.encode_image(pictures), exported.encode_image(pictures)) < 1e-5
    assert difference(embedder.encode_text(texts), exported.encode_text(texts)) < 1e-5
    assert (embedder.similarity(pictures, texts).argmax(axis=1) == np.arange(16)).mean() > 0.5
    assert load_config(tmp_path / "run/config.json").image_tower.cached
    assert isinstance(embedder, Embedder)

    before, unknown = embedder.encode_text(texts), ["never seen", *texts[:3]]
    mixed, looking_up = embedder.encode_text(unknown), open_model(tmp_path / "run", made_states=True)
    assert 0 < difference(looking_up.encode_text(texts), before) < 1e-2  # float16 states in place of the tower's
    looked_up = looking_up.encode_text(unknown)
    assert difference(looked_up, mixed) < 1e-2 and difference(looked_up[:1], mixed[:1]) < 1e-6
    other, head = looking_up.with_text_head("text_text"), embedder.with_text_head("text_text")
    assert 0 < difference(other.encode_text(texts), head.encode_text(texts)) < 1e-2  # other heads, too
    exported = open_model(tmp_path / "run/export", made_states=True)  # has no such states
    assert difference(before, exported.encode_text(texts)) < 1e-5


@pytest.mark.slow
def test_a_run_with_names_of_classes(tmp_path):
    """After training the names lie where the trained head puts them: in evaluation, from the workdir, in the export."""
    data, names = toy_data.write_toy_data(tmp_path / "data"), [f"thing w{i}" for i in range(12)]
    (tmp_path / "words.txt").write_text("\n".join(toy_data.toy_tokenizer().vocabulary) + "\n")
    (tmp_path / "names.json").write_text(json.dumps(names))
    config = cached_config(data)
    config.vocabulary.file, config.shared_head = str(tmp_path / "words.txt"), True
    config.image_tower.update(dict(name="efficientnet_lite", class_names=str(tmp_path / "names.json")))
    config.image_tower.projection = config.embedding_size = 24 + config.text_tower.hidden_size
    config.train.update(dict(steps=20, checkpoint_every=20, log_every=20))
    pretrain(config, tmp_path / "run")
    model, tokenizer, config, _ = load_trained(tmp_path / "run")
    _, head = split_image_tower(model.image_encoder)
    tokens = tokenizer(tf.constant(names))
    by_head = model.text_head("image_text")(model.text_encoder(tokens)).numpy()[:, : head.size]
    states = model.text_encoder(tokens).numpy()
    by_state = states - states.mean(axis=0)
    by_state /= np.linalg.norm(by_state, axis=-1, keepdims=True)
    expected = np.concatenate([by_head, by_state], axis=-1)
    assert difference(head.names, expected) < 1e-2  # states are float16, and their differences are small
    head.names.assign(tf.zeros_like(head.names))
    compile_model(model, config)
    MeasuredModel(model, tokenizer, config, tmp_path, alone=True).at(20)
    assert difference(head.names, expected) < 1e-2
    pictures = [toy_data.picture(i) for i in range(8)]
    ours, theirs = (
        open_model(tmp_path / "run").encode_image(pictures),
        open_model(tmp_path / "run/export").encode_image(pictures),
    )
    assert difference(ours, theirs) < 1e-5
    bridged = bridge.get_config("head")  # another text tower moves no picture, though pictures consist of names
    bridged.data.directory, bridged.data.image_text_languages = str(data), ("en",)
    bridged.method.update(dict(student=str(tmp_path / "run"), pivot="en", translation_weight=0.0))
    bridged.train.update(dict(steps=2, text_text_batch=8, image_text_batch=8, export=False))
    finetune(bridged, str(tmp_path / "run"), tmp_path / "bridged")
    assert difference(ours, open_model(tmp_path / "bridged").encode_image(pictures)) == 0.0
    assert type(load_trained(tmp_path / "bridged")[0].image_text_head) is Adapter
    whole = bridge.get_config("all")  # trains the tower, whose own training was of heads alone
    whole.data.directory, whole.method.student = str(data), str(tmp_path / "run")
    assert not starting_point(whole, str(tmp_path / "run"))[0].text_tower.frozen
    near = bridge.get_config("neighbours")
    near.data.directory, near.method.student = str(data), str(tmp_path / "run")
    with pytest.raises(UserError, match="run is mural, whose head for texts is of its own kind"):
        finetune(near, str(tmp_path / "run"), tmp_path / "near")
