"""The check of what a TPU would refuse: it finds what it should, and the training step has none of it."""

import contract
import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_lite.errors import UserError
from mural_tf.training import fit, tpu_check
from mural_tf.training.strategy import as_compiled
from mural_tf.training.tpu_check import check_step, find_problems, operations
from mural_tf.training.tpu_lowering import trace_step

VECTOR = tf.TensorSpec([4], tf.float32)


@pytest.mark.parametrize("function,spec,expected", [
    (lambda x: tf.where(x > 0.0), VECTOR, "Where (1): the size of its output depends on data"),
    (lambda x: tf.py_function(lambda y: y, [x], tf.float32), VECTOR, "EagerPyFunc (1): XLA does not compile it"),
    (lambda x: tf.strings.length(x), tf.TensorSpec([4], tf.string), "StringLength (1): XLA does not compile it"),
    (lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: tf.unique(y)[0][:4], [x],
                             shape_invariants=[tf.TensorShape([None])]), VECTOR, "Unique (1)"),
])  # fmt: skip
def test_what_a_tpu_refuses_is_found(function, spec, expected):
    problems = find_problems(tf.function(function).get_concrete_function(spec).graph.as_graph_def())
    assert any(problem.startswith(expected) for problem in problems), problems


def test_all_problems_of_a_step_and_none(monkeypatch):
    def step(values):
        length = tf.strings.length(tf.identity(tf.constant("text")))
        return tf.where(values > 1.0), tf.unique(tf.unique(values)[0])[0], length

    traced = [step]
    asked = []

    def trace_step(config, vocabulary_size, images):
        asked.append((config.train.jit, vocabulary_size, images))
        return tf.function(traced[0], autograph=False), tf.TensorSpec([4])

    monkeypatch.setattr(tpu_check, "trace_step", trace_step)
    monkeypatch.setattr(tpu_check, "as_compiled", lambda config, strategy: config)
    config = toy_data.toy_config("/nowhere")
    with pytest.raises(UserError) as raised:
        check_step(config, 100, 4)
    assert str(raised.value) == (
        "A TPU would refuse this step: StringLength (1): XLA does not compile it; Unique (2): the size of its output "
        "depends on data; Where (1): the size of its output depends on data; Const: handles strings; Identity: handles "
        "strings"
    )
    traced[0] = lambda values: tf.function(lambda more: more + 1.0, autograph=False)(values) * values
    counts = operations(
        tf.function(traced[0], autograph=False).get_concrete_function(tf.TensorSpec([4])).graph.as_graph_def()
    )
    assert check_step(config, 100, 4) == (
        f"XLA has kernels for each of the step's {sum(counts.values())} operations of {len(counts)} types."
    )
    assert asked == [(True, 100, 4)] * 2 and not config.train.jit and counts["AddV2"] == counts["Mul"] == 1


@pytest.mark.parametrize("tower", [
    "none", *(pytest.param(tower, marks=pytest.mark.slow) for tower in ("features", "resnet", "efficientnet"))
])  # fmt: skip
def test_the_training_step_has_no_problems(tmp_path, tower):
    """In two passes with dropout, so that loops and random draws are part of it; test_contract.py has all methods."""
    config = toy_data.toy_config(tmp_path, "labse" if tower == "none" else "align")
    if tower == "efficientnet":
        config.image_tower.update(dict(name=tower, width=0.25, depth=0.25))
    if tower == "features":
        config.image_tower.update(dict(name=tower, feature_size=12, branch_size=32, projection=80))
    config.text_tower.dropout = 0.1
    config.optimizer.name = "lamb"
    config.train.micro_batches = 2
    step, example = trace_step(config, 100, images=4)
    graph_def = step.get_concrete_function(example).graph.as_graph_def()
    counts = operations(graph_def)
    assert counts["StatelessWhile"] + counts["While"] >= 2
    assert (counts["FusedBatchNormV3"] > 8) == (tower in ("resnet", "efficientnet"))
    assert find_problems(graph_def) == []


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_texts_in_groups_of_length(capsys, request, compiled, monkeypatch):
    """The README's configuration has such groups; the check does with them what a run with --tpu does."""
    config = contract.toy_config("labse", text_tower__length_groups=2)
    step, example = trace_step(config, 100, images=2)
    refused = find_problems(step.get_concrete_function(example).graph.as_graph_def())
    assert any("depends on data" in problem for problem in refused), refused
    monkeypatch.setattr(fit, "COMPILED_LENGTHS", (4, 8))
    assert "XLA has kernels for each of the step's" in check_step(config, 100, 4)
    assert "counts as 1" not in capsys.readouterr().out
    if not compiled:  # then the step is traced as ever, but run without XLA, as test_by_length.py runs it
        request.getfixturevalue("eager")
    config.train.jit = True
    step, example = trace_step(as_compiled(config, tf.distribute.get_strategy()), 100, 4)
    assert operations(step.get_concrete_function(example).graph.as_graph_def())["Case"]
    assert np.isfinite(step(*example)["loss"])


@pytest.mark.parametrize("tower,jit,tpu,expected", [
    ("bert", False, False, 4), ("bert", True, False, 4), ("bert", False, True, 4),
    ("words", False, False, 4), ("words", True, False, 1), ("words", False, True, 1),
])  # fmt: skip
def test_groups_where_a_whole_step_is_compiled(tower, jit, tpu, expected, tmp_path, monkeypatch, capsys):
    class FakeTPU:
        extended = tf.distribute.get_strategy().extended

    monkeypatch.setattr(tf.distribute, "TPUStrategy", FakeTPU)
    config = toy_data.toy_config(tmp_path)
    config.text_tower.update(dict(name=tower, length_groups=4))
    config.train.jit = jit
    taken = as_compiled(config, FakeTPU() if tpu else tf.distribute.get_strategy())
    assert taken.text_tower.length_groups == expected and config.text_tower.length_groups == 4
    assert capsys.readouterr().out.count("\n") == int(expected == 1)
