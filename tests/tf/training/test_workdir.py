"""A workdir: one configuration, one run at a time, the data and the threads it was trained with."""

import os
import pathlib
import subprocess

import pytest

from mural_lite.config import base_config
from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_tf.runs.pretrain import pretrain
from mural_tf.training import environment, workdir
from mural_tf.training.workdir import lock_workdir, open_workdir


def test_the_revision_is_that_of_this_package(tmp_path, monkeypatch):
    """Not of a repository that an environment lies in."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert environment._revision(tmp_path) == ""  # nothing is committed
    (tmp_path / "file").touch()
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    found = environment._revision(tmp_path)
    assert found and found == found.strip()
    (tmp_path / "file").write_text("changed")
    assert environment._revision(tmp_path) == f"{found}-dirty"
    (tmp_path / "venv/lib").mkdir(parents=True)
    assert environment._revision(tmp_path / "venv/lib") == ""
    monkeypatch.setenv("PATH", "")  # no git
    assert environment._revision(tmp_path) == ""


def with_seed(seed):
    config = base_config()
    config.seed = seed
    return config


def test_nothing_trained_yet(tmp_path):
    open_workdir(tmp_path / "w", with_seed(0))
    (tmp_path / "w/vocabulary.txt").write_text("of seed 0")
    open_workdir(tmp_path / "w", with_seed(1))
    assert load_config(tmp_path / "w/config.json").seed == 1 and not (tmp_path / "w/vocabulary.txt").exists()


OTHERS = {
    "data.max_skipped_fraction": 0.5, "data.read": "all", "train.evaluate_first": True, "train.export": False,
    "train.image_text_batch": 32, "train.micro_batches": 2, "train.steps": 8, "train.text_text_batch": 32,
}  # fmt: skip


@pytest.mark.parametrize("field", workdir.CHANGEABLE_FIELDS)
def test_how_long_and_how_divided_a_run_is_may_change_with_a_word(field, tmp_path, capsys):
    config, other = with_seed(0), with_seed(0)
    config.train.steps, config.vocabulary.sha256 = 4, "of the first start"
    other.train.steps = 4
    open_workdir(tmp_path, config)
    (tmp_path / "checkpoints").mkdir()
    for step in (1, 3):
        (tmp_path / f"checkpoints/ckpt-{step}.index").touch()
    before = load_config(tmp_path / "config.json").to_dict()
    other.update_from_flattened_dict({field: OTHERS[field]})
    other.train.log_every = 7  # is not kept
    with pytest.raises(UserError, match=f"belongs to another configuration .{field} was"):
        open_workdir(tmp_path, other, writes=False)  # a worker that was started with other words than the chief
    assert load_config(tmp_path / "config.json").to_dict() == before
    open_workdir(tmp_path, other)
    assert capsys.readouterr().out.startswith(f"Changed since {tmp_path} was last started: {field} was ")
    open_workdir(tmp_path, other)
    assert capsys.readouterr().out == ""
    branch, name = field.split(".")
    before[branch][name] = OTHERS[field]
    assert load_config(tmp_path / "config.json").to_dict() == before
    other.seed = 1
    other[branch][name] = config[branch][name]
    with pytest.raises(UserError, match=r"another configuration \(seed was 0, is 1\)\. Run with its own"):
        open_workdir(tmp_path, other)


def test_where_the_data_are_now_is_kept(tmp_path):
    config = with_seed(0)
    config.data.directory = "before"
    open_workdir(tmp_path, config)
    (tmp_path / "checkpoints").mkdir()
    config.data.directory = "moved"
    config.evaluation.split = "dev"
    open_workdir(tmp_path, config)
    kept = load_config(tmp_path / "config.json")
    assert (kept.data.directory, kept.evaluation.split) == ("moved", "dev")


@pytest.mark.parametrize("decay,warmup,line", [((0.0, 0), 1, True), ((0.9, 2), 1, False), ((0.9, 2), 4, True)])
def test_the_rate_of_a_run_that_is_lengthened(decay, warmup, line, tmp_path, capsys):
    config = with_seed(0)
    config.train.steps = 4
    config.optimizer.update(dict(decay=decay, warmup_steps=warmup))
    open_workdir(tmp_path, config)
    (tmp_path / "checkpoints").mkdir()
    for step in (1, 3):
        (tmp_path / f"checkpoints/ckpt-{step}.index").touch()
    config.train.steps = 8_000
    open_workdir(tmp_path, config)
    assert ("\nFrom step 3 on the learning rate follows a run of 8,000 steps.\n" in capsys.readouterr().out) == line
    config.train.steps = 3
    open_workdir(tmp_path, config)
    config.train.steps = 2
    with pytest.raises(UserError, match="train.steps=2: .* is trained for 3 steps already. Give 3 or more"):
        open_workdir(tmp_path, config)
    assert load_config(tmp_path / "config.json").train.steps == 3


def test_a_workdir_has_one_run_at_a_time(tmp_path):
    with lock_workdir(tmp_path / "w"):
        message = rf"w is in use by another run \(process {os.getpid()} on .*\)\. Wait"
        with pytest.raises(UserError, match=message), lock_workdir(tmp_path / "w"):
            pass
        open_workdir(tmp_path / "w", with_seed(0))  # the lock alone does not make it another's folder
        with pytest.raises(UserError, match="in use by another run"):
            pretrain(with_seed(1), tmp_path / "w")
        assert load_config(tmp_path / "w/config.json").seed == 0
    with lock_workdir(tmp_path / "w"):
        pass
    with pytest.raises(UserError, match="Cannot write to .*config.json: "), lock_workdir(tmp_path / "w/config.json"):
        pass


@pytest.mark.parametrize(
    ("remote", "message"),
    [
        ("s3x://b/w", "s3x://b/w.*no file system is installed that reads it; expected gs://, s3:// or a local path"),
        (pathlib.Path("gs://bucket/run1"), "expected a local path, or a store's name with two slashes"),
    ],
)
def test_a_store_that_nothing_reads_does_not_become_a_folder_here(tmp_path, monkeypatch, remote, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        pretrain(with_seed(0), remote)
    assert not list(tmp_path.iterdir())


def test_another_number_of_threads_is_said(tmp_path, monkeypatch, caplog):
    open_workdir(tmp_path / "w", with_seed(0))
    open_workdir(tmp_path / "w", with_seed(0))
    assert "threads" not in caplog.text
    monkeypatch.setattr(workdir, "threads", lambda: 321)
    open_workdir(tmp_path / "w", with_seed(0))
    assert "goes on with 321" in caplog.text
