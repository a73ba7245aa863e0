"""Checkpoints: what is in them, what is restored, refused, removed and kept, and that training is not disturbed."""

import errno
import json
import os
import pathlib
import shutil
import threading
import types

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_lite.config_file import save_config
from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.models.build import build_model
from mural_tf.models.step import StepGuard
from mural_tf.runs import finish
from mural_tf.training import checkpoints
from mural_tf.training.checkpoints import (
    BestCheckpoint,
    has_checkpoint,
    list_checkpoints,
    restore_for_inference,
    save_result,
    save_weights,
    step_of,
    training_checkpoints,
)
from mural_tf.training.fit import compile_model
from mural_tf.training.trained_model import load_trained

TOKENIZER = toy_data.toy_tokenizer()


class TwoWeights:
    """As much of a `DualEncoder` as checkpoints know, small enough to be saved in no time."""

    image_encoder, head_names, text_head = "pictures", ("image_text",), str

    def __init__(self):
        self.kernel = tf.Variable(tf.zeros([300, 40]), name="kernel")
        self.log_temperature = tf.Variable(0.0, name="log_temperature")
        self.step = types.SimpleNamespace(guard=StepGuard(10), average=None)
        self.step.guard.build(["loss"])
        self.optimizers = {"joint": keras.optimizers.legacy.Adam()}
        self.optimizers["joint"]._create_all_weights([self.kernel, self.log_temperature])
        self.towers = self

    def weights_by_part(self):
        return {"image_encoder": tf.train.Checkpoint(kernel=self.kernel), "log_temperature": self.log_temperature}

    def training_parts(self):
        return {}


@pytest.fixture
def model():
    return TwoWeights()


def variables(model):
    """Everything that training follows from."""
    return [model.kernel, model.log_temperature, *model.optimizers["joint"].variables()]


def fill(model, number):
    for variable in variables(model):
        variable.assign(tf.cast(tf.fill(variable.shape, number), variable.dtype))


def assert_filled(model, number):
    for variable in variables(model):
        assert np.all(variable.numpy() == number), variable.name


@pytest.fixture
def config():
    return contract.toy_config("align")


def build(config):
    model = build_model(config, TOKENIZER.vocabulary_size)
    compile_model(model, config)
    return model


def damage(path):
    with open(f"{path}.data-00000-of-00001", "r+b") as file:
        file.truncate(100)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def files(*steps):
    return [f"ckpt-{step}.{part}" for step in steps for part in ("data-00000-of-00001", "index")]


@pytest.mark.parametrize("mode,optimizer", [
    ("joint", "adam"), pytest.param("per_task", "lamb", marks=pytest.mark.slow)
])  # fmt: skip
def test_a_snapshot_is_what_tensorflow_writes_and_steps_do_not_change_it(config, tmp_path, mode, optimizer):
    config.optimizer.update(dict(name=optimizer, mode=mode, warmup_steps=0))
    model = build(config)
    checkpoint = training_checkpoints(model, tmp_path, 1)._checkpoint
    reader = checkpoints.SnapshotReader(checkpoint)
    trained = model.trainable_variables

    @tf.function
    def step():  # in place, as training updates
        for optimizer in model.optimizers.values():
            optimizer.apply_gradients([(variable + 1.0, variable) for variable in trained])

    step()
    theirs = checkpoint.write(str(tmp_path / "theirs-1"))
    values = reader.read()
    step()
    checkpoints.write_snapshot(values, tmp_path / "ours-1")
    later = checkpoint.write(str(tmp_path / "later-1"))
    ours, theirs, later = (tf.train.load_checkpoint(str(path)) for path in (tmp_path / "ours-1", theirs, later))
    assert ours.get_variable_to_shape_map() == theirs.get_variable_to_shape_map()
    changed = 0
    for name in ours.get_variable_to_shape_map():  # the object graph among them
        np.testing.assert_array_equal(ours.get_tensor(name), theirs.get_tensor(name), err_msg=name)
        changed += np.any(ours.get_tensor(name) != later.get_tensor(name))
    assert changed > 3 * len(trained)  # weights and both slots: the step did change what was read before it


def test_save_returns_before_anything_is_written(model, tmp_path, monkeypatch):
    saved = training_checkpoints(model, tmp_path, 2)
    fill(model, 1)
    go_on, write = threading.Event(), checkpoints.write_snapshot
    monkeypatch.setattr(checkpoints, "write_snapshot", lambda *a: (go_on.wait(60), write(*a)))
    saved.save(1)
    fill(model, 2)
    model.kernel.assign_add(tf.ones_like(model.kernel))
    assert names(tmp_path) == []
    go_on.set()
    saved.wait()
    assert saved.restore()
    assert_filled(model, 1)


def test_replicas_are_measured_by_a_copy_restored_once_a_step_and_one_embedder(model, tmp_path, monkeypatch):
    copy = TwoWeights()
    monkeypatch.setattr(finish, "build_model", lambda config, size: copy)
    from_model = lambda model, *_, **__: types.SimpleNamespace(model=model, step=None)  # noqa: E731
    placed = []
    monkeypatch.setattr(finish, "embedder_of", from_model)
    monkeypatch.setattr(finish, "known_texts", lambda *_: None)
    monkeypatch.setattr(finish, "embed_class_names", lambda *heads: placed.append(heads))
    measured = finish.MeasuredModel(model, TOKENIZER, None, tmp_path, alone=False)
    saved = training_checkpoints(model, tmp_path, 2)
    embedders = []
    for step in (1, 2):
        fill(model, step)
        saved.save(step)
        saved.wait()
        embedders.append(measured.embedder(step))
        # The names of classes are where the heads of this step put them.
        assert placed == [("pictures", "image_text")] * len(embedders)
        assert embedders[-1].model is copy and embedders[-1].step == step
        assert np.all(copy.kernel.numpy() == step)
    assert embedders[0] is embedders[1]
    copy.kernel.assign(tf.zeros_like(copy.kernel))
    assert measured.at(2) is copy and np.all(copy.kernel.numpy() == 0)  # not read again for the same step


def test_the_last_ones_are_kept_and_the_list_names_only_complete_ones(model, tmp_path, monkeypatch):
    saved = training_checkpoints(model, tmp_path, 2)
    folder, listed = tmp_path / "checkpoints", []
    write = checkpoints.write_snapshot
    monkeypatch.setattr(
        checkpoints, "write_snapshot", lambda *a: (listed.append(tf.train.latest_checkpoint(folder)), write(*a))
    )
    for step in (10, 20, 30):
        saved.save(step)
    saved.wait()
    assert names(folder) == ["checkpoint", *files(20, 30)]
    assert listed == [None, str(folder / "ckpt-10"), str(folder / "ckpt-20")]
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert tf.train.latest_checkpoint(moved) == str(moved / "ckpt-30")  # relative names
    assert tf.train.get_checkpoint_state(moved).all_model_checkpoint_paths == [
        str(moved / "ckpt-20"), str(moved / "ckpt-30")
    ]  # fmt: skip


def save(model, workdir, *steps, keep=3, **options):
    saved = training_checkpoints(model, workdir, keep, **options)
    for step in steps:
        fill(model, step)
        saved.save(step)
        saved.wait()
    return saved


@pytest.fixture
def three(model, tmp_path):
    """A workdir with checkpoints 10, 20, 30, all of whose numbers are the step."""
    save(model, tmp_path, 10, 20, 30)
    return tmp_path


@pytest.mark.parametrize("change", [
    damage,
    lambda path: os.unlink(f"{path}.data-00000-of-00001"),
    lambda path: os.unlink(f"{path}.index"),
    lambda path: open(f"{path}.index", "r+b").truncate(30),
])  # fmt: skip
def test_a_damaged_checkpoint_falls_back_to_the_one_before(model, three, change):
    change(three / "checkpoints/ckpt-30")
    saved = training_checkpoints(model, three, 3)
    assert saved.restore()
    assert_filled(model, 20)
    for partly in (False, True):
        assert restore_for_inference(model, three, partly=partly).endswith("ckpt-20")
    saved.save(25)  # then the damaged one goes
    saved.wait()
    assert names(three / "checkpoints") == ["checkpoint", *files(10, 20, 25)]


def test_one_bit_of_damage_is_seen(model, three):
    path = three / "checkpoints/ckpt-30.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert training_checkpoints(model, three, 3).restore()
    assert_filled(model, 20)


@pytest.mark.parametrize("content", [b'model_checkpoint_path: "ckpt-\xb730"', b""])
def test_a_damaged_list_is_not_needed(model, three, caplog, content):
    (three / "checkpoints/checkpoint").write_bytes(content)
    assert training_checkpoints(model, three, 3).restore()
    assert_filled(model, 30)
    assert f"The list {three}/checkpoints/checkpoint is damaged" in caplog.text


def test_leftovers_of_a_killed_save_are_removed(model, three):
    folder = three / "checkpoints"  # whose last checkpoint is complete, but not listed yet
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-20"\nall_model_checkpoint_paths: "ckpt-20"\n')
    assert [path.rsplit("-")[-1] for path in list_checkpoints(folder)] == ["10", "20", "30"]
    for left in (".saving", "ckpt-40_temp"):
        (folder / left).mkdir()
        (folder / left / "part").write_bytes(b"half")
    shutil.copy(folder / "ckpt-30.data-00000-of-00001", folder / "ckpt-40.data-00000-of-00001")  # index still missing
    saved = training_checkpoints(model, three, 3)
    assert saved.restore()
    assert_filled(model, 30)
    saved.save(40)
    saved.wait()
    assert names(folder) == ["checkpoint", *files(20, 30, 40)]


@pytest.mark.parametrize("owner,name", [(tf.raw_ops, "SaveV2"), (checkpoints, "publish")])
def test_a_full_disk_is_said_once_and_earlier_checkpoints_stay(model, three, monkeypatch, owner, name):
    published = []

    def full_disk(*arguments, **options):
        if name == "SaveV2":
            raise tf.errors.ResourceExhaustedError(None, None, "ckpt; No space left on device")
        if published:
            raise OSError(errno.ENOSPC, "No space left on device")
        published.append(pathlib.Path(arguments[1]).name)

    saved = training_checkpoints(model, three, 3)
    before = names(three / "checkpoints")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full_disk)
        saved.save(40)  # fails on its thread
        with pytest.raises(UserError) as raised:
            saved.save(50)
        saved.wait()
        saved.check()
    message = str(raised.value)
    assert message.startswith(f"Saving a checkpoint in {three}/checkpoints failed: ") and message.endswith(
        "No space left on device. Earlier checkpoints are intact; free some space and run the same command again."
    )
    assert published in ([], ["ckpt-40.data-00000-of-00001"])  # the index last
    assert names(three / "checkpoints") == before and saved._kept[-1].endswith("-30")
    assert restore_for_inference(model, three).endswith("ckpt-30")


def test_another_error_on_the_thread_is_not_swallowed(model, tmp_path, monkeypatch):
    saved = training_checkpoints(model, tmp_path, 3)
    monkeypatch.setattr(checkpoints, "write_snapshot", lambda *a: 1 / 0)
    saved.save(1)
    with pytest.raises(ZeroDivisionError):
        saved.wait()


def test_the_best_is_kept(config, tmp_path):
    model = build(config)
    for step, value in ((10, 5.0), (20, 7.0), (30, float("nan"))):
        model.log_temperature.assign(-step / 100)
        BestCheckpoint(model, tmp_path).offer(step, value)  # each in a process of its own
    best = BestCheckpoint(model, tmp_path)
    best.offer(40, 7.0)
    assert json.loads((tmp_path / "checkpoints/best/best.json").read_text()) == {"step": 20, "value": 7.0}
    assert names(tmp_path / "checkpoints/best") == ["best.json", "checkpoint", *files(20)]
    training_checkpoints(model, tmp_path, 1).save(40)

    save_config(config, tmp_path / "config.json")
    TOKENIZER.save(tmp_path / "vocabulary.txt")
    loaded, _, _, step = load_trained(tmp_path, "best")
    assert step == 20 and abs(float(loaded.log_temperature) + 0.2) < 1e-6
    assert load_trained(tmp_path)[3] == 40
    (tmp_path / "checkpoints/best/best.json").write_text("{")
    with pytest.raises(UserError, match="best.json is not valid JSON"):
        BestCheckpoint(model, tmp_path)


def test_a_result_counts_before_the_last_step_and_the_best(model, tmp_path):
    save(model, tmp_path, 10, 20)
    assert restore_for_inference(model, tmp_path) == str(tmp_path / "checkpoints/ckpt-20")
    fill(model, 7)
    save_result(model, tmp_path, 20)
    fill(model, 8)
    save_weights(model, tmp_path / "checkpoints/best", 15)
    save_weights(model, tmp_path / "checkpoints/best", 16)  # the only one in its folder
    assert names(tmp_path / "checkpoints/best") == ["checkpoint", *files(16)]
    for which, path, number in (
        ("result", "result/ckpt-20", 7),
        ("latest", "ckpt-20", 20),
        ("best", "best/ckpt-16", 8),
    ):
        fill(model, 0)
        assert restore_for_inference(model, tmp_path, which) == str(tmp_path / "checkpoints" / path)
        assert model.kernel.numpy()[0, 0] == model.log_temperature.numpy() == number
    assert step_of(str(tmp_path / "a-1/ckpt-012")) == 12 and has_checkpoint(tmp_path)
    listed = (tmp_path / "checkpoints/checkpoint").read_text()
    assert listed == 'model_checkpoint_path: "ckpt-20"\n' + "".join(
        f'all_model_checkpoint_paths: "ckpt-{step}"\n' for step in (10, 20)
    )


def test_what_is_missing_is_said(model, tmp_path):
    for which, message in (
        ("result", f"has no checkpoint yet: expected one in {tmp_path}/checkpoints."),
        ("best", f"has no best checkpoint yet: expected one in {tmp_path}/checkpoints/best. It is kept when training "
                 "evaluates, with train.evaluate_every above 0."),
    ):  # fmt: skip
        with pytest.raises(UserError) as raised:
            restore_for_inference(model, tmp_path, which)
        assert str(raised.value) == f"{tmp_path} {message}"
    with pytest.raises(UserError, match="^Unknown checkpoint 'last'; known: result, latest, best.$"):
        restore_for_inference(model, tmp_path, "last")


def test_damage_is_said_for_each_file(model, tmp_path, caplog):
    save(model, tmp_path, 10, 20, 30)
    folder = tmp_path / "checkpoints"
    for step in (30, 20):
        damage(folder / f"ckpt-{step}")
    assert restore_for_inference(model, tmp_path) == str(folder / "ckpt-10")
    assert [record.getMessage() for record in caplog.records] == [
        f"The checkpoint {folder}/ckpt-{step} is missing or damaged; using the one before, {folder}/ckpt-{step - 10}."
        for step in (30, 20)
    ]
    caplog.clear()
    damage(folder / "ckpt-10")
    with pytest.raises(UserError) as raised:
        training_checkpoints(model, tmp_path, 3).restore()
    assert str(raised.value).startswith(f"No checkpoint in {folder} is usable: all 3 are missing or damaged")
    assert len(caplog.records) == 2


class OtherShape(TwoWeights):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.zeros([3, 40]), name="kernel")


def test_another_architecture_is_no_damage(model, tmp_path):
    save(model, tmp_path, 10, 20)
    with pytest.raises(UserError) as raised:
        restore_for_inference(OtherShape(), tmp_path)
    begin = (
        f"The checkpoint {tmp_path}/checkpoints/ckpt-20 does not fit the model of this configuration and vocabulary: "
    )
    assert str(raised.value).startswith(begin) and len(begin) + 10 < len(str(raised.value)) <= len(begin) + 300
    more = TwoWeights()
    more.weights_by_part = lambda: {**TwoWeights.weights_by_part(more), "new": tf.Variable(3.0)}
    with pytest.raises(UserError, match="does not fit the model"):
        restore_for_inference(more, tmp_path)
    fill(more, 0)
    restore_for_inference(more, tmp_path, partly=True)  # of another method: what is not in the file stays
    assert more.kernel.numpy()[0, 0] == 20


def test_what_is_restored_and_what_is_only_saved(model, tmp_path):
    """The place in the data is in the file, and its reader restores it."""
    place = tf.Variable(5)
    data = dict(data_progress=tf.train.Checkpoint(place=place))
    saved = save(model, tmp_path, 10, **data)
    keys = {name.split("/")[0] for name, _ in tf.train.list_variables(str(tmp_path / "checkpoints"))}
    assert keys == {"_CHECKPOINTABLE_OBJECT_GRAPH", "model", "guard", "optimizer_joint", "data_progress"}
    place.assign(6)
    fill(model, 0)
    assert saved.restore() == str(tmp_path / "checkpoints/ckpt-10") and int(place) == 6
    assert_filled(model, 10)
    model.step.average = tf.train.Checkpoint(mean=tf.Variable(1.0))
    save(model, tmp_path, 20)
    keys = {name.split("/")[0] for name, _ in tf.train.list_variables(str(tmp_path / "checkpoints"))}
    assert "average" in keys and "data_progress" not in keys


def test_a_worker_that_does_not_write(model, tmp_path):
    save(model, tmp_path, 10)
    folder = tmp_path / "checkpoints"
    for left in (".saving", "ckpt-20_temp"):
        (folder / left).mkdir()
    before = names(folder)
    other = save(model, tmp_path, 20, writes=False)
    assert names(folder) == before and other._thread is None
    assert training_checkpoints(model, tmp_path, 3)._kept == [str(folder / "ckpt-10")]
    assert names(folder) == [name for name in before if name not in (".saving", "ckpt-20_temp")]


def test_a_step_that_is_saved_again_is_kept_once(model, tmp_path):
    saved = save(model, tmp_path, 10, 20, 10, keep=2)
    assert [step_of(path) for path in saved._kept] == [20, 10]
    fill(model, 3)
    saved.save(10)
    saved.wait()
    assert names(tmp_path / "checkpoints") == ["checkpoint", *files(10, 20)]
    fill(model, 0)
    saved.restore()
    assert_filled(model, 3)


def test_checkpoints_that_are_listed_or_there(model, tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("ckpt-9.index", "ckpt-10.index", "ckpt-x.index", "other-11.index"):
        (folder / name).touch()
    listed = ["ckpt-8", "ckpt-12", "model"]
    lines = [f"model_checkpoint_path: {json.dumps('ckpt-12')}"]
    lines += [f"all_model_checkpoint_paths: {json.dumps(name)}" for name in listed]
    (folder / "checkpoint").write_text("\n".join(lines))
    assert list_checkpoints(folder) == [str(folder / f"ckpt-{step}") for step in (8, 9, 10, 12)]
    assert list_checkpoints(tmp_path / "nowhere") == []
