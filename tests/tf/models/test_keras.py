"""A method is a Keras model: what `compile`, `fit`, `evaluate`, `predict`, a call and `save` promise."""

import contract
import forked
import numpy as np
import pytest
import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.models import complete
from mural_tf.models.build import build_model
from mural_tf.models.keras_model import content_ids
from mural_tf.models.mural import Mural
from mural_tf.models.step import global_losses
from mural_tf.text.tokens import TOKENS

OTHERS = ("mural", "siglip", "etcl", "globetrotter", "labse", "mule", "embn", "parallel_embn")
METHODS = ("align", *(pytest.param(method, marks=pytest.mark.slow) for method in OTHERS))
ROWS = 12


def built(method="mural", **fields):
    config = contract.toy_config(method, **fields)
    keras.utils.set_random_seed(0)
    model = build_model(config, contract.tokenizer(config).vocabulary_size)
    return model, complete(config)


@pytest.fixture(scope="module")
def mural():
    """A model, which tests may compile but not train, and its configuration."""
    return built()


def data_of(model, config, count=ROWS):
    return contract.batch_of(model, config, count)


def without_ids(batch):
    return {name: value for name, value in batch.items() if not name.endswith("_id")}


def weights_of(model):
    return [weight.numpy() for weight in model.weights]


def largest(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other))


def test_kerass_optimiser_takes_plain_gradients(eager):
    model, config = built("align", text_tower__dropout=0.0, image_tower__drop_connect_rate=0.0)
    batch = data_of(model, config)
    by_hand = build_model(config, contract.tokenizer(config).vocabulary_size)
    by_hand.set_weights(model.get_weights())
    by_hand.compile("sgd")  # for what `objective` asks
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    for _ in range(2):  # the second with momentum
        with tf.GradientTape() as tape:
            losses, _ = global_losses(by_hand, by_hand.encode(batch, training=True), batch, ("joint",))
        variables = by_hand.trainable_variables
        gradients = tape.gradient(losses["joint"], variables)
        optimizer.apply_gradients((g, v) for g, v in zip(gradients, variables) if g is not None)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    model.fit(tf.data.Dataset.from_tensors(batch).repeat(2), verbose=0)
    before = [v.numpy() for v in by_hand.trainable_variables]
    assert largest(before, [v.numpy() for v in model.trainable_variables]) <= 1e-5


@pytest.mark.slow  # one optimiser, in a graph: `test_towers_of_ones_own_train`
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "new", "old", None])
def test_optimisers_of_every_kind_train(optimizer, micro_batches):
    kinds = {"new": lambda: keras.optimizers.AdamW(1e-2), "old": lambda: keras.optimizers.legacy.Adam(1e-2)}
    model, config = built(train__micro_batches=micro_batches, train__steps=40, optimizer__warmup_steps=0)
    batch = data_of(model, config)
    model.compile(kinds[optimizer]() if optimizer in kinds else optimizer)
    losses = model.fit(tf.data.Dataset.from_tensors(batch).repeat(8), epochs=3, verbose=0).history["loss"]
    assert losses[2] < losses[0] and int(model.steps_taken) == 24


@pytest.mark.parametrize("method", METHODS)
def test_evaluation_changes_nothing_and_a_saved_model_is_the_same(method, tmp_path, eager):
    model, config = built(method)
    batch, other = data_of(model, config), contract.batch_of(model, config, ROWS, seed=1)
    model.compile("adam")
    before = weights_of(model)
    both = tf.data.Dataset.from_tensors(batch).concatenate(tf.data.Dataset.from_tensors(other))
    found = model.evaluate(both, return_dict=True, verbose=0)
    losses = []
    for one in (batch, other):
        _, logs = global_losses(model, model.encode(one, training=False), one, ("joint",))
        losses.append(float(logs["loss"]))
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert largest(before, weights_of(model)) == 0.0
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.configuration == model.configuration
    embeddings, again = model(batch), loaded(batch)
    assert embeddings.keys() == model.used.keys() == again.keys()
    assert max(np.abs(embeddings[name] - again[name]).max() for name in again) <= 1e-6
    assert largest(weights_of(model), weights_of(loaded)) == 0.0
    loaded.compile("adam")
    assert loaded.evaluate(both, return_dict=True, verbose=0) == pytest.approx(found, rel=1e-5, abs=1e-5)


@pytest.mark.slow
def test_keras_batches_of_arrays_are_weighted_by_their_size():
    model, config = built()
    arrays = tf.nest.map_structure(lambda value: value.numpy(), data_of(model, config, 10))
    model.compile("adam")
    found = model.evaluate(arrays, batch_size=4, return_dict=True, verbose=0)  # 4, 4 and 2
    by_hand = [model.test_on_batch(tf.nest.map_structure(lambda v, i=i: v[i : i + 4], arrays), return_dict=True)["loss"]
               for i in (0, 4, 8)]  # fmt: skip
    assert found["loss"] == pytest.approx(np.average(by_hand, weights=[4, 4, 2]), rel=1e-5)
    vectors = model.predict(arrays, batch_size=4, verbose=0)
    assert np.abs(vectors["image"] - model.embed_images(tf.constant(arrays["image"]))).max() <= 1e-6
    tokens = {name: tf.constant(value) for name, value in arrays["text_b"].items()}
    assert np.abs(vectors["text_b"] - model.embed_texts(tokens, "text_text")).max() <= 1e-6
    history = model.fit(arrays, batch_size=4, epochs=2, validation_data=arrays, verbose=0).history
    assert len(history["val_loss"]) == 2 and "recall@1_image_text" in model.train_on_batch(arrays, return_dict=True)
    assert model({"caption": arrays["caption"]}).keys() == {"caption"}
    generator = (arrays for _ in range(2))
    assert np.isfinite(model.fit(generator, steps_per_epoch=2, verbose=0).history["loss"][0])


def test_equal_content_is_no_negative_where_ids_are_missing(mural, eager):
    model, config = mural
    batch = without_ids(data_of(model, config))
    batch["image"] = tf.concat([batch["image"][:-1], batch["image"][:1]], axis=0)
    batch["text_b"] = {name: tf.concat([value[:-1], value[:1]], axis=0) for name, value in batch["text_b"].items()}
    rows, twice = tf.range(ROWS, dtype=tf.int64), tf.concat([tf.range(ROWS - 1, dtype=tf.int64), [0]], axis=0)
    words = {name: content_ids(batch[name]) for name in ("caption", "text_a")}
    assert all(len(set(ids.numpy())) == ROWS for ids in words.values())  # no two texts are alike by chance
    given = {"image_id": twice, "caption_id": rows, "text_group_id": rows, "text_a_id": 100 + rows, "text_b_id": twice}
    model.compile("adam")
    expected = model.test_on_batch({**batch, **given}, return_dict=True)
    assert model.test_on_batch(batch, return_dict=True) == pytest.approx(expected, rel=1e-6)
    apart = model.test_on_batch({**batch, **given, "image_id": rows}, return_dict=True)
    assert abs(apart["loss_image_text"] - expected["loss_image_text"]) > 1e-4


def test_ids_of_content():
    images = np.random.default_rng(0).random([4, 3, 3, 3]).astype("f")
    images[3] = images[1]
    for values in (images, (255 * images).astype(np.uint8), images.astype(np.float64), images.astype(np.float16)):
        ids = content_ids(values).numpy()
        assert ids.dtype == np.int64 and ids[3] == ids[1] and len(set(ids)) == 3
    short, long = [[5, 7], [7, 5]], [[5, 7, 0, 0], [7, 5, 0, 0]]
    ids = [content_ids({"input_word_ids": tf.constant(rows)}).numpy() for rows in (short, long)]
    assert (ids[0] == ids[1]).all() and ids[0][0] != ids[0][1]  # padding adds nothing, order counts


def evaluated(replicas=2):
    """The losses of evaluation, one step of training, and what is said to batches that replicas cannot share."""
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        model, config = built()
        model.compile(keras.optimizers.Adam(1e-3))
    arrays = tf.nest.map_structure(lambda value: value.numpy(), data_of(model, config, 8))
    examples = tf.data.Dataset.from_tensor_slices(arrays)
    batches = examples.batch(8, drop_remainder=True)
    losses, said = model.evaluate(batches, return_dict=True, verbose=0), []
    finite = bool(np.isfinite(model.fit(batches, verbose=0).history["loss"]).all())
    for wrong in (examples.batch(8), examples.batch(3, drop_remainder=True), arrays):
        try:
            model.fit(wrong, verbose=0)
        except UserError as error:
            said.append(str(error))
    return losses, finite, said


@pytest.mark.slow
def test_replicas_evaluate_as_one_device():
    (two, finite, said), (one, _, nothing) = forked.call(evaluated), evaluated(1)
    assert two == pytest.approx(one, rel=1e-5, abs=1e-5) and finite and not nothing
    assert len(said) == 3
    assert all("2 replicas share a batch, so its size must be fixed and a multiple of 2" in line for line in said)


def test_mistakes_are_one_line(mural, tmp_path):
    model, config = mural
    batch = data_of(model, config)
    for wrong, message in (
        ({"image": batch["image"]}, "Batches of Mural lack caption, text_a, text_b"),
        ({**batch, "caption": tf.zeros([4, 8])}, "lack caption/input_word_ids, .* texts as a tokenizer gives them"),
        (tf.zeros([2, 3]), "Batches of Mural are dictionaries of .*; got"),
    ):
        model.compile("adam")
        for call in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
            with pytest.raises(UserError, match=message):
                call(wrong)
    with pytest.raises(UserError, match="A batch of Mural holds .*; got nothing"):
        model({})
    for arguments, message in (
        ({"optimizer": "adm"}, "optimizer='adm'.*expected a name of Keras'"),
        ({"optimizer": "adam", "loss": "mse"}, "the losses of Mural and its logs are its own"),
    ):
        with pytest.raises(UserError, match=message):
            model.compile(**arguments)
    for name in ("model.h5", "folder"):
        with pytest.raises(UserError, match=r"a Mural is saved as ….keras; .* run_export.py"):
            model.save(tmp_path / name)
        assert not (tmp_path / name).exists()


def test_a_tower_alone_has_no_file(mural, tmp_path):
    model, _ = mural
    for tower in (model.image_encoder, model.text_encoder):
        with pytest.raises(UserError, match=r"tower.keras: a tower alone has no file.*model.save\('….keras'\)"):
            tower.save(tmp_path / "tower.keras")
    assert not list(tmp_path.iterdir())


def test_towers_of_ones_own_train():
    """A method takes any two Keras models; `compile` makes the variables of its heads."""
    config = complete(contract.toy_config("mural"))
    images = keras.Input((32, 32, 3))
    image_encoder = keras.Model(images, keras.layers.Dense(16)(keras.layers.GlobalAveragePooling2D()(images)))
    tokens = {name: keras.Input((None,), dtype="int32", name=name) for name in TOKENS}
    states = keras.layers.Embedding(contract.tokenizer(config).vocabulary_size, 8)(tokens["input_word_ids"])
    text_encoder = keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(states))
    parts = dict(loss=config.loss, method=config.method, text_tower=config.text_tower)
    model = Mural(image_encoder, text_encoder, ConfigDict({**parts, **dict(
        embedding_size=16, shared_head=False, image_size=32)}))  # fmt: skip
    batch = contract.batch_of(model, config, ROWS)
    model.compile(keras.optimizers.Adam(1e-2))
    assert {v.shape[-1] for v in model.text_text_head.trainable_variables} == {16}
    history = model.fit(tf.data.Dataset.from_tensors(batch).repeat(20), epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    assert model(batch)["text_a"].shape == (ROWS, 16)
