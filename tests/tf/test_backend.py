"""Imports that do without what may be missing, and without what nobody asked to read."""

import os
import subprocess
import sys
import types

import pytest

from mural_tf import backend
from mural_tf.backend import without_noise


def test_what_is_dropped_comes_back_afterwards(capfd):
    with pytest.raises(ZeroDivisionError), without_noise():
        os.write(2, b"a notice\n")
        raise ZeroDivisionError
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


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
    assert first or done.stdout.endswith(" False\n"), done.stdout
    assert first or not (done.stderr and backend.KERAS_2_IS_TF_KERAS), done.stderr
