"""Checkpoints by whole messages and lists of files: what is restored, refused, removed and kept."""

import json
import pathlib

import pytest
import tensorflow as tf
from test_checkpoints import TwoWeights, assert_filled, damage, files, fill, names

from mural_lite.errors import UserError
from mural_tf.training import checkpoints
from mural_tf.training.checkpoints import (
    has_checkpoint,
    list_checkpoints,
    restore_for_inference,
    save_result,
    save_weights,
    step_of,
    training_checkpoints,
)


@pytest.fixture
def model():
    return TwoWeights()


def save(model, workdir, *steps, keep=3, **options):
    saved = training_checkpoints(model, workdir, keep, **options)
    for step in steps:
        fill(model, step)
        saved.save(step)
        saved.wait()
    return saved


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


def test_a_full_disk_leaves_the_files_that_were_there(model, tmp_path, monkeypatch):
    saved = save(model, tmp_path, 10)
    published = []

    def publish(source, target):
        if len(published) == 1:
            raise OSError(28, "No space left on device")
        published.append(pathlib.Path(target).name)

    monkeypatch.setattr(checkpoints, "publish", publish)
    saved.save(20)
    saved._thread.join()
    with pytest.raises(UserError) as raised:
        saved.check()
    assert str(raised.value) == (
        f"Saving a checkpoint in {tmp_path}/checkpoints failed: "
        "No space left on device. Earlier checkpoints are intact; "
        "free some space and run the same command again."
    )
    saved.check()
    assert published == ["ckpt-20.data-00000-of-00001"]  # the index last
    assert names(tmp_path / "checkpoints") == ["checkpoint", *files(10)] and saved._kept[-1].endswith("-10")


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
