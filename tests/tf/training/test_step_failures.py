"""What can go wrong with a step is said before anything is made, or in one line: counts, memory, other workers."""

import types

import contract
import pytest
import tensorflow as tf
import toy_data

from mural_lite import command_line as cli
from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.models import complete, streams_of
from mural_tf.models.align import Align
from mural_tf.models.build import build_model
from mural_tf.runs.pretrain import pretrain
from mural_tf.training import failures
from mural_tf.training import fit as fit_module
from mural_tf.training.batch_sizes import check_train
from mural_tf.training.callbacks import Intervals
from mural_tf.training.failures import failures_in_one_line
from mural_tf.training.fit import compile_model

ALONE = tf.distribute.get_strategy()


@pytest.mark.parametrize("method", [
    pytest.param(method, marks=[pytest.mark.slow] * (method not in ("mural", "embn"))) for method in contract.METHODS
])  # fmt: skip
def test_the_streams_of_a_method_are_known_without_its_towers(method):
    config = complete(contract.toy_config(method))
    assert streams_of(config) == build_model(config, contract.tokenizer(config).vocabulary_size).streams


def test_counts_that_cannot_be_are_said_before_anything_is_made(tmp_path):
    config = toy_data.toy_config("/nowhere")
    config.train.micro_batches = 0
    with pytest.raises(UserError, match="micro_batches=0: expected 1 or more"):
        pretrain(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_batches_that_the_method_does_not_read_may_have_any_size():
    config = complete(toy_data.toy_config("/nowhere", "align"))
    config.train.update(dict(micro_batches=3, image_text_batch=9))
    check_train(config, 1, "this machine")
    config.train.update(dict(log_every=0, checkpoint_every=0, evaluate_every=0))  # never
    check_train(config, 3, "this machine")
    with pytest.raises(UserError, match="image_text_batch=9 must be a multiple of 6: v4-4 has 2 replicas, and train"):
        check_train(config, 2, "v4-4")


@pytest.mark.parametrize("log_every,checkpoint_every,evaluate_every,expected", [
    (5, 10, 0, 5), (0, 10, 4, 4), (0, 10, 0, 10), (0, 0, 0, 30),
])  # fmt: skip
def test_without_a_row_every_so_often_intervals_end_where_something_else_is_due(
    log_every, checkpoint_every, evaluate_every, expected
):
    train = dict(steps=30, log_every=log_every, checkpoint_every=checkpoint_every, evaluate_every=evaluate_every)
    assert Intervals.of(types.SimpleNamespace(**train)) == Intervals(30, expected)


class Full(Align):
    def build_variables(self):
        full()


def full(*_, **__):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\n\t [[node]] with shape[9,9]")


@pytest.mark.parametrize("where,chunks", [("build", "K"), ("step", 4)])
def test_a_device_without_memory_is_one_line(where, chunks, eager, tmp_path, monkeypatch):
    config = toy_data.toy_config(toy_data.write_toy_features(tmp_path / "data", size=12), "align")
    config.image_tower.update(dict(name="features", feature_size=12, branch_size=16, projection=80))
    config.train.micro_batches = 2
    config.vocabulary.update(dict(size=100))
    if where == "build":
        config.model = "test_step_failures:Full"
    else:
        monkeypatch.setattr(fit_module, "_fit_intervals", full)  # no pipeline has to be made
    with pytest.raises(UserError) as found:
        pretrain(config, tmp_path / "run")
    assert f"--config.train.micro_batches={chunks}" in str(found.value) and "--dry_run" in str(found.value)
    assert "node" not in str(found.value)


@pytest.mark.parametrize("message,reason", [
    ('Detected at node defined at (most recent call last): File "keras.py", line 1383, in step_function Collective ops '
     "is aborted by: Connection reset by peer\nAdditional GRPC error", "Connection reset"),
    ("Task /job:worker/replica:0/task:1 heartbeat timeout. This indicates that", "heartbeat timeout"),
    ("failed to connect to all addresses: ipv4:127.0.0.1:80: Failed to connect: Connection refused (111)",
     "Connection refused"),
    ("recvmsg:Connection was broken", "Connection was broken"),
    ('File "a.py", line 3: something else was closed', "UnavailableError"),
])  # fmt: skip
def test_another_worker_s_end_is_told_without_places_in_code(message, reason, monkeypatch):
    monkeypatch.setattr(failures, "workers", lambda strategy: 2)
    with pytest.raises(UserError) as found, failures_in_one_line(toy_data.toy_config("/nowhere"), ALONE):
        raise tf.errors.UnavailableError(None, None, message)
    assert str(found.value).startswith(f"Another worker of this run ended or cannot be reached ({reason}); if it stop")


class Refusing(Align):
    def image_text_loss(self, image, caption, ids):
        raise UserError("this loss is refused")


def test_a_mistake_that_is_found_while_a_step_is_traced_stays_one_line(tmp_path):
    """Keras converts its loop over steps, and TensorFlow wraps what such code raises."""
    config = contract.toy_config("align")
    config.model = "test_step_failures:Refusing"
    keras.utils.set_random_seed(0)
    model = build_model(complete(config), 50)
    compile_model(model, config)
    batches = tf.data.Dataset.from_tensors(contract.batch_of(model, config))
    with pytest.raises(Exception, match="in user code") as raised:
        model.fit(batches, steps_per_epoch=1, verbose=0)
    assert cli._message_for_user(raised.value) == "this loss is refused"


def test_mistakes_are_found_before_data_are_made(tmp_path):
    config = toy_data.toy_config(tmp_path / "data")
    config.data.update(source="shapes", shuffle_buffer=-1)
    with pytest.raises(UserError, match="^data.shuffle_buffer=-1: expected a number of items, or 0: no shuffling.$"):
        pretrain(config, tmp_path / "run")
    assert not list(tmp_path.iterdir())
