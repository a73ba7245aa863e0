"""From files to a workdir, by the command line, and from there everything: load, evaluate, fine-tune, export."""

import subprocess
import sys

import foreign_weights as foreign
import numpy as np
import pytest
import toy_data

import mural_tf
from mural_tf.config import ConfigurationError, base_config, load_config
from mural_tf.data import records
from mural_tf.recipes.finetune import finetune
from mural_tf.recipes.import_pretrained import import_into_workdir


def small_config(model="align"):
    config = base_config()
    config.model = model
    config.text_tower.max_length = 16
    config.image_tower.precision = config.text_tower.precision = "float32"
    return config


@pytest.fixture(scope="module")
def align(tmp_path_factory):
    return foreign.write_align(tmp_path_factory.mktemp("align"))


@pytest.fixture(scope="module")
def mural(align, tmp_path_factory):
    """A workdir: ALIGN's weights with a fresh text-text head."""
    workdir = tmp_path_factory.mktemp("import") / "mural"
    import_into_workdir("align", align, workdir, small_config(), method="mural")
    return workdir


def test_command_line_writes_a_workdir(align, tmp_path):
    command = [sys.executable, "-m", "mural_tf.pretrained", "align", f"--weights={align}"]
    command.append(f"--workdir={tmp_path / 'w'}")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "align with" in done.stdout and "fresh" not in done.stdout
    embedder = mural_tf.load(tmp_path / "w")
    assert embedder.step == 0 and embedder.embedding_size == 160
    assert embedder.encode_text(["a red balloon"]).shape == (1, 160)
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 1 and "holds a trained model already" in again.stderr


def test_workdir_has_the_settings_of_the_files(mural):
    config = load_config(mural / "config.json")
    assert (config.model, config.embedding_size) == ("mural", 160)
    assert (config.image_tower.resize, config.image_tower.image_size) == (40, 33)
    assert (config.image_tower.normalization, config.image_tower.padding) == ("symmetric", "even")
    assert (config.text_tower.layers, config.text_tower.heads, config.text_tower.hidden_size) == (2, 4, 32)
    assert (config.vocabulary.lower_case, config.vocabulary.strip_accents) == (True, True)
    assert config.vocabulary.size == len(foreign.PIECES)
    assert abs(config.loss.temperature - 0.037) < 1e-6


def test_second_head_changes_nothing_of_align(align, mural, tmp_path):
    import_into_workdir("align", align, tmp_path / "align", small_config())
    one, two = mural_tf.load(tmp_path / "align"), mural_tf.load(mural)
    texts, images = ["a red balloon", "the cat on the photo"], list(foreign.random_images(3, 33))
    np.testing.assert_array_equal(one.encode_text(texts), two.encode_text(texts))
    np.testing.assert_array_equal(one.encode_image(images), two.encode_image(images))


@pytest.mark.slow
def test_fine_tuning_evaluation_and_export(mural, tmp_path):
    """Checkpoint initialisation: MURAL's two tasks, a few steps from ALIGN's towers, then all the way to an export."""
    data = toy_data.write_toy_data(tmp_path / "data", count=16)
    records.write_records(data, records.IMAGE_TEXT, "test", toy_data.image_text_records(8))
    config = toy_data.toy_config(data)
    config.train.update(dict(steps=3, checkpoint_every=3, log_every=1, image_text_batch=8, text_text_batch=8))
    finetune(config, str(mural), tmp_path / "tuned")
    rows = (tmp_path / "tuned" / "metrics.jsonl").read_text()
    assert "loss_text_text" in rows and "mean_recall" in rows
    tuned, exported = mural_tf.load(tmp_path / "tuned"), mural_tf.load(tmp_path / "tuned" / "export")
    assert tuned.config.text_tower.layers == 2 and tuned.step == 3
    images = list(foreign.random_images(2, 33))
    assert np.abs(tuned.encode_image(images) - exported.encode_image(images)).max() < 1e-5
    assert np.abs(tuned.encode_text(["red cat"]) - exported.encode_text(["red cat"])).max() < 1e-5


def test_unknown_source_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match="Got 'clip', expected one of align"):
        import_into_workdir("clip", tmp_path, tmp_path / "w")
