"""The check of what a TPU would refuse: it finds what it should, and the training step has none of it."""

import pytest
import tensorflow as tf
import toy_data

from mural_tf.training.tpu_check import find_problems, operations, trace_step

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


def test_the_training_step_has_no_problems(tmp_path):
    """In two passes with dropout, so that loops and random draws are part of it."""
    config = toy_data.toy_config(tmp_path)
    config.text_tower.dropout = 0.1
    config.optimizer.name = "lamb"
    config.train.micro_batches = 2
    step, example = trace_step(config, 100, batch=4)
    graph_def = step.get_concrete_function(example).graph.as_graph_def()
    counts = operations(graph_def)
    assert counts["StatelessWhile"] + counts["While"] >= 2 and counts["FusedBatchNormV3"] > 10
    assert find_problems(graph_def) == []
