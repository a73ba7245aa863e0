"""The training step as a replica of a slice sees it can be lowered: every method, one pass and two, BatchNorm's groups.

XLA's all-reduce has a kernel for CPUs from TensorFlow 2.20 on.
"""

import contract
import pytest
import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.encoders.kernels import for_tpu
from mural_tf.export.hub_modules import text_encoder_module
from mural_tf.losses.pairs import Rows
from mural_tf.training.tpu_forecast import as_on_tpu
from mural_tf.training.tpu_lowering import SliceReplica, lower_step, xla_reason

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


@needs_all_reduce
@pytest.mark.parametrize("chunks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_module_of_tf_hub_as_the_text_tower(chunks, tmp_path):
    with for_tpu():
        module = text_encoder_module(contract.build(contract.toy_config("labse")))
    tf.saved_model.save(module, str(tmp_path))
    tower = dict(text_tower__name="hub", text_tower__handle=str(tmp_path), text_tower__precision="auto")
    program = lowered(as_on_tpu(contract.toy_config("mural", train__micro_batches=chunks, **tower)))
    assert b"all-reduce" in program
    weights = [variable.numpy().tobytes() for variable in module.variables]
    assert not [len(values) for values in weights if len(values) > 200 and values in program]  # they are arguments


@needs_all_reduce
def test_a_size_made_of_the_replicas_number_is_refused(monkeypatch):
    """As on a TPU. XLA would take the number for a constant if it were an ordinary argument."""

    def range_of_first_and_last(self, columns):
        return tf.equal(tf.range(self.first, self.first + self.count)[:, None], columns[None, :])

    monkeypatch.setattr(Rows, "is_own_row", range_of_first_and_last)
    with pytest.raises(UserError, match="A TPU would refuse this step: .*must be a compile-time constant"):
        lowered(contract.toy_config("align"))


def test_what_a_slice_does_not_do_is_said():
    replica = SliceReplica(REPLICAS)
    with replica, pytest.raises(ValueError, match="only sums"):
        replica.all_reduce("mean", tf.constant(1.0))
    with replica, pytest.raises(ValueError, match="int64, which a TPU cannot sum"):
        replica.all_reduce("sum", tf.Variable(1, dtype=tf.int64, name="count"))
    with replica, pytest.raises(ValueError, match="only rows are gathered"):
        replica.all_gather(tf.zeros([2, 2]), axis=1)


def test_the_words_of_xla_without_frames():
    message = 'Failed:\n\n  File "a.py", line 3\n    ^^^\nInput 0 must be constant\nStack trace for op\n'
    assert xla_reason(message) == "Failed: Input 0 must be constant"
