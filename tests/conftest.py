"""Settings of every test: quiet TensorFlow, the scripts' kernels, CPU only, nothing compiled, scripts importable."""

import os
import pathlib
import sys

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))


# The files that take longest, longest first. The workers take file after file; a long one among the last would leave
# the other core without work.
FIRST = ("test_scripts", "test_serve", "test_gradients", "test_paper_configs", "test_embedder", "test_workers",
         "test_models", "test_pipeline", "test_replicas", "test_efficientnet", "test_training_log",
         "test_checkpoints")  # fmt: skip


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(FIRST)))


@pytest.fixture(autouse=True)
def no_fusion():
    """Compiling the fused loops for every shape takes longer than most tests; those about them turn it on again."""
    from mural_tf.encoders.kernels import enable_fusion

    before = enable_fusion(False)
    yield
    enable_fusion(before)


def shared(part):
    from toy_export import toy_export  # imports TensorFlow

    return getattr(toy_export(), part)


@pytest.fixture(scope="session")
def model():
    return shared("model")


@pytest.fixture(scope="session")
def config():
    return shared("config")


@pytest.fixture(scope="session")
def export():
    return shared("path")
