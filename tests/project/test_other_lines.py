"""What one line of TensorFlow has trained and exported, the other one loads, and goes on training.

tests/other_lines/ holds an archive of each line; the one of the line that runs is a control.
"""

import shutil
import zipfile

import numpy as np
import other_lines
import pytest
import tensorflow as tf

LINE = tuple(tf.__version__.split(".")[:2])


def archives():
    for path in sorted(other_lines.FOLDER.glob("tensorflow-*.zip")):
        version = path.stem.split("-")[1]
        control = [pytest.mark.slow] if tuple(version.split(".")[:2]) == LINE else []
        yield pytest.param(path, id=version, marks=control)


@pytest.fixture(scope="module", params=archives())
def made(request, tmp_path_factory):
    """The folder that another line's archive is unpacked into, and what it embedded there."""
    folder = tmp_path_factory.mktemp("line")
    with zipfile.ZipFile(request.param) as archive:
        archive.extractall(folder)
    return folder, dict(np.load(folder / "embeddings.npz"))


@pytest.fixture
def optimized():
    """With TensorFlow's optimiser of graphs, as the archives were made: conftest.py turns it off."""
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


@pytest.mark.slow  # with the optimiser of graphs: this line's exports are in test_export.py
@pytest.mark.parametrize("names", [["workdir", "workdir/export"], ["workdir/export/hub"]])
def test_it_embeds_alike(made, names, optimized):
    folder, expected = made
    for embedded in other_lines.embed(*(str(folder / name) for name in names)):
        for kind, found in embedded.items():
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected[kind], rtol=0, atol=5e-6)  # 1.04e-6 was seen with AVX2 alone


@pytest.mark.slow
def test_it_trains_on(made, tmp_path, monkeypatch):
    """From the last step but one: weights, LAMB's slots and the place in the data. It ends where the other line did."""
    folder, expected = made
    shutil.copytree(folder / "workdir", tmp_path / "workdir", ignore=shutil.ignore_patterns("export"))
    for file in (tmp_path / "workdir/checkpoints").glob(f"ckpt-{other_lines.STEPS}.*"):
        file.unlink()
    monkeypatch.chdir(tmp_path)
    other_lines.write_toy_data("toys")
    (before,) = other_lines.embed("workdir")
    other_lines.train()
    (after,) = other_lines.embed("workdir")
    for kind, found in after.items():
        np.testing.assert_allclose(found, expected[kind], rtol=0, atol=1e-5)
        assert np.abs(before[kind] - expected[kind]).max() > 1e-4
