"""Imports that do without what may be missing, and without what nobody asked to read."""

import os
import subprocess
import sys
import types

import pytest

from mural_tf import backend
from mural_tf.quiet import without_noise

NOTICES = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1.6 26919 port.cc:153] oneDNN custom operations are on. You may see slightly different results",
    "I0000 00:00:1.6 26919 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.",
    "2026-01-01 I tensorflow/core/platform/cpu_feature_guard.cc:182] This TensorFlow binary is optimized",
    "E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory",
]


def test_notices_are_held_back_and_nothing_else(capfd):
    with without_noise():
        for line in ["before", *NOTICES, "Traceback: of the user's own code"]:
            os.write(2, f"{line}\n".encode())
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines() == ["before", "Traceback: of the user's own code", "after"]
    with pytest.raises(ZeroDivisionError), without_noise():
        os.write(2, b"an error\n")
        raise ZeroDivisionError
    assert capfd.readouterr().err == "an error\n"


def test_the_stand_in_for_pkg_resources_is_there_only_for_the_import(monkeypatch):
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "pkg_resources", raising=False)
    with backend._package_resources():
        from pkg_resources import parse_version

        assert parse_version("2.15.1") > parse_version("2.9")
    assert "pkg_resources" not in sys.modules
    monkeypatch.setitem(sys.modules, "pkg_resources", own := types.ModuleType("pkg_resources"))
    with backend._package_resources():
        assert sys.modules["pkg_resources"] is own


WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):  # as with setuptools from 82 on
    def find_spec(self, name, path, target=None):
        if name == "pkg_resources":
            raise ModuleNotFoundError(name)

if FIRST:
    import tensorflow
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "pkg_resources" else found(name, *a)
import mural_tf
mural_tf.load
from mural_tf import backend
print(backend.tensorflow_hub().KerasLayer, backend.keras.__name__, "pkg_resources" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_everything_imports_without_pkg_resources_and_quietly(first):
    """Also where the user imported TensorFlow first, whose notices are then his own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    code = WITHOUT.replace("FIRST", str(first))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "KerasLayer" in done.stdout, done.stderr
    assert first or (done.stdout.endswith(" False\n") and not done.stderr), done.stderr
