"""The training step as a replica of a slice sees it can be lowered: every method, one pass and two, BatchNorm's groups.

XLA's all-reduce has a kernel for CPUs from TensorFlow 2.20 on.
"""

import re

import contract
import pytest
import tensorflow as tf

from mural_tf.errors import UserError
from mural_tf.losses.pairs import Rows
from mural_tf.training.tpu_lowering import SliceReplica, lower_step, trace_step, xla_reason

REPLICAS = 4
needs_all_reduce = pytest.mark.skipif(
    tuple(map(int, tf.__version__.split(".")[:2])) < (2, 20),
    reason="TensorFlow 2.15 has no kernel of XlaAllReduce for a CPU",
)
QUICK = {("mural", 2), ("mule", 1)}


def lowered(config) -> bytes:
    return lower_step(config, contract.tokenizer(config).vocabulary_size, 4, None, REPLICAS)


@needs_all_reduce
@pytest.mark.parametrize("method,chunks", [
    pytest.param(method, chunks, marks=[pytest.mark.slow] * ((method, chunks) not in QUICK))
    for method in contract.METHODS for chunks in (1, 2)
])  # fmt: skip
def test_the_step_of_every_method(method, chunks):
    assert b"all-reduce" in lowered(contract.toy_config(method, train__micro_batches=chunks))


@needs_all_reduce
@pytest.mark.parametrize("group", [
    "global", *(pytest.param(group, marks=pytest.mark.slow) for group in ("local", "8", "2"))
])  # fmt: skip
def test_groups_of_batch_norm(group):
    """Four images per replica: 8 are those of two replicas, 2 are half of one's."""
    config = contract.toy_config("align", embedding_size=80)
    config.image_tower.update(dict(name="efficientnet", width=0.25, depth=0.25, image_size=32, resize=32))
    config.image_tower.update(dict(batch_norm_group=group, projection=0, branch_size=0))
    assert b"all-reduce" in lowered(config)


def range_of_first_and_last(self, columns):
    return tf.equal(tf.range(self.first, self.first + self.count)[:, None], columns[None, :])


@needs_all_reduce
def test_the_replicas_number_is_an_argument_of_the_program():
    """XLA would make a constant, 0, of the example's number where a slice begins there, and say nothing."""
    config = contract.toy_config("align")
    step, example = trace_step(config, contract.tokenizer(config).vocabulary_size, 4, None, REPLICAS)
    text = step.experimental_get_compiler_ir(*example)(stage="hlo")
    assert len(re.findall(r"= s32\[\] parameter\(\d+\)", text[text.index("\nENTRY ") :])) == 1
    assert "dynamic-slice" in text


@needs_all_reduce
def test_a_size_made_of_the_replicas_number_is_refused(monkeypatch):
    monkeypatch.setattr(Rows, "is_own_row", range_of_first_and_last)
    with pytest.raises(UserError, match="A TPU would refuse this step: .*must be a compile-time constant"):
        lowered(contract.toy_config("align"))


def test_what_a_slice_does_not_do_is_said():
    replica = SliceReplica(REPLICAS, tf.constant(0))
    with replica, pytest.raises(ValueError, match="only sums"):
        replica.all_reduce("MEAN", tf.constant(1.0))
    with replica, pytest.raises(ValueError, match="only rows are gathered"):
        replica.all_gather(tf.zeros([2, 2]), axis=1)


def test_the_words_of_xla_without_frames():
    message = 'Failed:\n\n  File "a.py", line 3\n    ^^^\nInput 0 must be constant\nStack trace for op\n'
    assert xla_reason(message) == "Failed: Input 0 must be constant"


def test_what_a_tpu_cannot_sum_is_named():
    with tf.Graph().as_default(), SliceReplica(REPLICAS, tf.constant(0)):
        with pytest.raises(ValueError, match="count:0 is int64, which a TPU cannot sum over replicas"):
            tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1, tf.int64, name="count"))
