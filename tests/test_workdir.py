"""A workdir takes another configuration only as long as nothing was trained in it."""

import pytest

from mural_tf.config import base_config, load_config
from mural_tf.errors import UserError
from mural_tf.training.workdir import open_workdir


def with_seed(seed):
    config = base_config()
    config.seed = seed
    return config


def test_nothing_trained_yet(tmp_path):
    open_workdir(tmp_path / "w", with_seed(0))
    (tmp_path / "w/vocabulary.txt").write_text("of seed 0")
    open_workdir(tmp_path / "w", with_seed(1))
    assert load_config(tmp_path / "w/config.json").seed == 1 and not (tmp_path / "w/vocabulary.txt").exists()


@pytest.mark.parametrize("made", ["checkpoints", "metrics.jsonl"])
def test_something_trained(tmp_path, made):
    open_workdir(tmp_path / "w", with_seed(0))
    (tmp_path / "w" / made).mkdir()
    with pytest.raises(UserError, match="belongs to another configuration .seed was 0, is 1"):
        open_workdir(tmp_path / "w", with_seed(1))
    assert load_config(tmp_path / "w/config.json").seed == 0
