"""Settings of every test: quiet TensorFlow, the scripts' kernels, CPU only, nothing compiled, scripts importable."""

import gc
import importlib.abc
import importlib.util
import os
import sys

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


class WithoutTensorFlow(importlib.abc.MetaPathFinder):
    """Where TensorFlow is not installed, as after `pip install ./lite`, tests that import it are skipped."""

    def find_spec(self, name, path, target=None):
        if name == "tensorflow":
            pytest.skip("needs TensorFlow, which pip install ./lite leaves out", allow_module_level=True)


if not HAS_TENSORFLOW:
    sys.meta_path.append(WithoutTensorFlow())

if "PYTEST_XDIST_WORKER" in os.environ and HAS_TENSORFLOW:
    gc.set_threshold(200_000, 20, 50)  # looking for garbage is a fifth of importing TensorFlow
    import tensorflow

    # For replicas without a process of their own; what names no device runs on the first one as ever.
    cpu = tensorflow.config.list_physical_devices("CPU")[0]
    tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * 2)
    # TensorFlow's optimiser of graphs takes longer than the small graphs here take to run. It can be turned off for
    # input pipelines only before the first operation. The scripts and servers that tests start as processes have it.
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    # Outside of graphs TensorFlow makes a function of each operation before it runs it, anew for every variable and
    # whenever a seed is set: 2 ms, where the operation itself takes 0.05. It is the same kernel that runs.
    from tensorflow.python import pywrap_tfe  # private: there is no public name
    from tensorflow.python.eager import context

    context.ensure_initialized()
    if hasattr(pywrap_tfe, "TFE_ContextSetRunEagerOpAsFunction"):
        pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(context.context()._handle, False)


# The files that take longest, longest first. The workers take file after file; a long one among the last would leave
# the other core without work.
FIRST = ("test_contract", "test_scripts", "test_pipeline", "test_training_log", "test_tuning",
         "test_pretrained_families", "test_convert", "test_lite", "test_embedder", "test_keras", "test_shares",
         "test_export", "test_bert", "test_translation_distillation", "test_efficientnet", "test_mule",
         "test_hub_modules", "test_models")  # fmt: skip


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(FIRST)))


def pytest_collection_finish(session):
    """What was imported stays, and graphs are many small things: looking for garbage takes a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


@pytest.fixture(autouse=True)
def no_fusion():
    """Compiling the fused loops for every shape takes longer than most tests; those about them turn it on again."""
    if not HAS_TENSORFLOW:
        yield
        return
    from mural_tf.encoders.kernels import set_fusion

    before = set_fusion("off")
    yield
    set_fusion(before)


@pytest.fixture
def eager():
    """Nothing is traced but exports and input pipelines: for tests whose subject is not the graph.

    A training step takes seconds to trace and a tenth of one to run.
    """
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder that the workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def toy(shared_folder):
    from toy_export import toy_export  # imports TensorFlow

    return toy_export(shared_folder / "toy")


@pytest.fixture(scope="session")
def lite_toy(shared_folder):
    from toy_export import lite_toy

    return lite_toy(shared_folder / "lite_toy")


@pytest.fixture(scope="session")
def model(toy):
    return toy.model


@pytest.fixture(scope="session")
def config(toy):
    return toy.config


@pytest.fixture(scope="session")
def export(toy):
    return toy.path
