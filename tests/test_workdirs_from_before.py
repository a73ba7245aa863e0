"""Workdirs that were made before fields moved to the method's own key, and methods were declared, still load.

tests/before/ holds their configurations, vocabularies and the names, shapes and types of their checkpoints' values.
"""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mural_tf.config import RENAMED, load_config
from mural_tf.models import complete
from mural_tf.text.word_pieces import TOKENS
from mural_tf.training.checkpoints import load_trained, training_checkpoints
from mural_tf.training.fit import compile_model

BEFORE = pathlib.Path(__file__).parent / "before"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
methods = pytest.mark.parametrize("method", ["globetrotter", "mule"])


def write_workdir(source: pathlib.Path, workdir: pathlib.Path) -> dict:
    """Writes a workdir as it was then, with random weights; returns its checkpoint's values."""
    (workdir / "checkpoints").mkdir(parents=True)
    for name in ("config.json", "vocabulary.txt"):
        (workdir / name).write_bytes((source / name).read_bytes())
    rng, values, root = np.random.default_rng(0), {}, tf.train.Checkpoint()
    for key, (shape, dtype) in json.loads((source / "checkpoint.json").read_text()).items():
        *path, last = (name.replace(".S", "/") for name in key.removesuffix(VALUE).split("/"))  # as TensorFlow escapes
        if ".OPTIMIZER_SLOT" in key or not key.endswith(VALUE):
            continue
        node = root
        for name in path:
            if getattr(node, name, None) is None:
                setattr(node, name, tf.train.Checkpoint())
            node = getattr(node, name)
        values[key] = rng.normal(size=shape).astype(dtype)
        setattr(node, last, tf.Variable(values[key]))
    root.write(str(workdir / "checkpoints" / "ckpt-4"))
    return values


@methods
def test_a_workdir_from_before_loads(method, tmp_path):
    values = write_workdir(BEFORE / method, tmp_path)
    model, _, config, step = load_trained(tmp_path)
    assert step == 4 and config.model == method
    held = {key.split("/")[1] for key in values if key.startswith("model/")}
    parts = {name: getattr(part, "variables", [part]) for name, part in model.weights_by_part().items()}
    assert held == {name for name, variables in parts.items() if variables}
    found = sorted(float(np.sum(variable)) for variables in parts.values() for variable in variables)
    expected = sorted(float(np.sum(value)) for key, value in values.items() if key.startswith("model/"))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.all(np.isfinite(model.embed_texts({name: tf.ones([1, 3], tf.int32) for name in TOKENS})))


@methods
def test_checkpoints_have_the_keys_of_before(method, tmp_path):
    write_workdir(BEFORE / method, tmp_path / "before")
    model, _, config, _ = load_trained(tmp_path / "before")
    compile_model(model, config)
    checkpoints = training_checkpoints(model, tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    found = dict(tf.train.list_variables(str(tmp_path / "checkpoints" / "ckpt-1")))
    del found["_CHECKPOINTABLE_OBJECT_GRAPH"]
    kept = json.loads((BEFORE / method / "checkpoint.json").read_text())
    del kept["data_position" + VALUE]
    assert found == {key: shape for key, (shape, _) in kept.items()}


def test_moved_fields_keep_their_values():
    for method, field, value in (("globetrotter", "alpha_margin", 0.5), ("mule", "margin", 0.2)):
        before = json.loads((BEFORE / method / "config.json").read_text())
        config = load_config(BEFORE / method / "config.json")
        assert config.method[field] == value and complete(config).method == config.method
        for old, (new, owners) in RENAMED.items():
            branch, key = old.split(".")
            kept = before[branch][key]
            expected = tuple(kept) if isinstance(kept, list) else kept
            assert key not in config.get(branch, {})
            assert (config.method.get(new.split(".")[1]) == expected) if method in owners else True
    groups = json.loads((BEFORE / "mule" / "config.json").read_text())["evaluation"]["groups"]
    assert set(load_config(BEFORE / "mule" / "config.json").evaluation.groups) == set(groups)
