"""The TF-Hub text tower on a small SavedModel with LaBSE's inputs and outputs, written here."""

import numpy as np
import pytest
import tensorflow as tf

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.encoders import build_text_encoder
from mural_tf.text.tokens import TOKENS

SIZE = 6
SIGNATURE = {name: tf.TensorSpec([None, None], tf.int32, name) for name in TOKENS}


class TinyLaBSE(tf.train.Checkpoint):
    """Mean of the word vectors, doubled in training mode so that a test can see the mode."""

    def __init__(self, output="default"):
        super().__init__()
        self.output = output
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(11, SIZE)).astype(np.float32), name="table")
        self.types = tf.Variable(tf.zeros([2, SIZE]), trainable=False, name="types")
        self.variables = [self.table, self.types]
        self.trainable_variables = [self.table]
        for training in (True, False):  # both traces are saved
            self.__call__.get_concrete_function(SIGNATURE, training=training)

    @tf.function
    def __call__(self, inputs, training=False):
        mask = tf.cast(inputs["input_mask"], tf.float32)[:, :, tf.newaxis]
        words = tf.gather(self.table, inputs["input_word_ids"]) + tf.gather(self.types, inputs["input_type_ids"])
        mean = tf.reduce_sum(words * mask, axis=1) / tf.reduce_sum(mask, axis=1)
        if training:
            mean *= 2.0
        return {self.output: mean, "sequence_output": words}


class WrongOutput(TinyLaBSE):
    def __init__(self):
        super().__init__(output="last_state")


class WrongInput(tf.train.Checkpoint):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, texts):
        return {"default": tf.zeros([tf.size(texts), SIZE])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hub") / "labse"
    tf.saved_model.save(TinyLaBSE(), str(path))
    return str(path)


def tower_config(handle, **fields):
    config = base_config().text_tower
    config.update(dict(name="hub", handle=str(handle)))
    config.update(fields)
    return config


def random_tokens(batch=3, length=5):
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, length + 1, batch)
    return {
        "input_word_ids": rng.integers(0, 11, (batch, length), np.int32),
        "input_mask": (np.arange(length) < lengths[:, None]).astype(np.int32),
        "input_type_ids": np.zeros((batch, length), np.int32),
    }


def expected_embeddings(tokens):
    table = np.random.default_rng(0).normal(size=(11, SIZE)).astype(np.float32)
    rows = [table[ids[mask == 1]].mean(axis=0) for ids, mask in zip(tokens["input_word_ids"], tokens["input_mask"])]
    return np.array(rows)


def test_trainable_tower_passes_the_training_flag_and_has_gradients(folder):
    model = build_text_encoder(tower_config(folder), vocabulary_size=11)
    tokens = random_tokens()
    assert model.embedding_size == SIZE and model.output_shape == (None, SIZE)
    assert np.max(np.abs(model(tokens, training=False) - expected_embeddings(tokens))) < 1e-6
    with tf.GradientTape() as tape:
        outputs = model(tokens, training=True)
        loss = tf.reduce_sum(outputs)
    assert np.max(np.abs(outputs - 2 * expected_embeddings(tokens))) < 1e-6
    assert [w.shape.as_list() for w in model.trainable_variables] == [[11, SIZE]]
    (gradient,) = tape.gradient(loss, model.trainable_variables)
    # loss = sum over rows of 2 * mean of n word vectors: each token adds 2 / n to each entry of its word's row.
    expected = np.zeros((11, SIZE))
    for ids, mask in zip(tokens["input_word_ids"], tokens["input_mask"]):
        for word in ids[mask == 1]:
            expected[word] += 2.0 / mask.sum()
    assert np.max(np.abs(tf.convert_to_tensor(gradient) - expected)) < 1e-5


def test_frozen_tower_stays_in_inference_mode(folder):
    model = build_text_encoder(tower_config(folder, frozen=True), vocabulary_size=11)
    tokens = random_tokens()
    assert not model.trainable_variables
    assert np.max(np.abs(model(tokens, training=True) - expected_embeddings(tokens))) < 1e-6


def test_pooled_output_is_accepted_where_there_is_no_default(tmp_path):
    tf.saved_model.save(TinyLaBSE(output="pooled_output"), str(tmp_path / "bert"))
    model = build_text_encoder(tower_config(tmp_path / "bert"), vocabulary_size=11)
    tokens = random_tokens()
    assert np.max(np.abs(model(tokens) - expected_embeddings(tokens))) < 1e-6


@pytest.mark.slow
def test_other_interfaces_are_named(tmp_path, folder):
    def message(handle, **fields):
        with pytest.raises(UserError) as error:
            build_text_encoder(tower_config(handle, **fields), vocabulary_size=11)
        return str(error.value)

    tf.saved_model.save(WrongOutput(), str(tmp_path / "output"))
    assert "['last_state', 'sequence_output']" in message(tmp_path / "output")
    tf.saved_model.save(WrongInput(), str(tmp_path / "input"))
    assert "does not take these inputs" in message(tmp_path / "input")
    tf.saved_model.save(tf.Module(), str(tmp_path / "plain"))
    assert "only be run through signatures" in message(tmp_path / "plain")
    (tmp_path / "empty").mkdir()
    assert "could not be loaded" in message(tmp_path / "empty")
    assert "neither a local folder nor a URL" in message(tmp_path / "missing")
    assert "needs text_tower.handle" in message("")
    assert "precision='mixed_bfloat16'" in message(folder, precision="mixed_bfloat16")
