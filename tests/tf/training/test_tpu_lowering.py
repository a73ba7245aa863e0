"""The training step as a replica of a slice sees it can be lowered: every method, one pass and two, BatchNorm's groups.

XLA's all-reduce has a kernel for CPUs from TensorFlow 2.20 on.
"""

import types

import contract
import numpy as np
import pytest
import tensorflow as tf

from mural_lite.errors import UserError
from mural_lite.skipped import KINDS
from mural_tf.data.streams.epochs import PLACE
from mural_tf.encoders import kernels
from mural_tf.encoders.kernels import for_tpu
from mural_tf.export.hub_modules import text_encoder_module
from mural_tf.training import fit, tpu_lowering
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
@pytest.mark.parametrize("tower", ["bert", pytest.param("modernbert", marks=pytest.mark.slow)])
def test_texts_in_groups_of_length(tower, monkeypatch):
    """Gradients of the table of tokens leave branches within a loop, where XLA needs to know their size.

    The width is BERT-base's: lists of rows of a smaller table were taken.
    """
    monkeypatch.setattr(fit, "COMPILED_LENGTHS", (4, 8))
    config = contract.toy_config("mural", text_tower__length_groups=4, text_tower__name=tower)
    config.text_tower.update(hidden_size=768, heads=12)
    assert b"conditional" in lowered(as_on_tpu(config))


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


def test_what_a_slice_does_not_do_is_said():
    replica = SliceReplica(REPLICAS)
    with replica, pytest.raises(ValueError, match="only sums"):
        replica.all_reduce("mean", tf.constant(1.0))
    with replica, pytest.raises(ValueError, match="int64, which a TPU cannot sum"):
        replica.all_reduce("sum", tf.Variable(1, dtype=tf.int64, name="count"))
    with replica, pytest.raises(ValueError, match="only rows are gathered"):
        replica.all_gather(tf.zeros([2, 2]), axis=1)


def test_sums_and_rows_of_a_slice(monkeypatch):
    """With a stand-in for XLA: replica 2 of 4, whose sum over the others is ten times its own."""
    asked = []

    def all_reduce(input, group_assignment, reduce_op, mode):
        asked.append((group_assignment.numpy().tolist(), reduce_op, mode))
        return 10 * input

    monkeypatch.setattr(tpu_lowering.gen_xla_ops, "xla_all_reduce", all_reduce)
    monkeypatch.setattr(tpu_lowering.gen_xla_ops, "xla_replica_id", lambda: tf.constant(2))
    values = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    replica = SliceReplica(REPLICAS)
    with replica, tf.GradientTape() as tape:
        sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, {"x": values, "n": 3})
        rows = replica.all_gather([values], axis=0)
        total = tf.reduce_sum(sums["x"] * [1.0, 2.0]) + tf.reduce_sum(rows[0][5:7])
    assert sums["x"].numpy().tolist() == (10 * values.numpy()).tolist() and int(sums["n"]) == 30
    assert rows[0].shape == (12, 2) and rows[0][6:9].numpy().tolist() == (10 * values.numpy()).tolist()
    assert not rows[0][:6].numpy().any() and not rows[0][9:].numpy().any() and replica.num_replicas_in_sync == 4
    assert tape.gradient(total, values).numpy().tolist() == [[20, 30], [10, 20], [10, 20]]
    assert asked == [([[0, 1, 2, 3]], "Add", "CrossReplica")] * len(asked) and len(asked) == 5


@pytest.mark.parametrize("texts,groups", [(None, 1), (5, 2)])
def test_the_step_that_is_traced_and_its_batch(texts, groups, monkeypatch):
    calls = []
    model = types.SimpleNamespace(
        streams=("a", "b"), train_step=lambda batch: calls.append(kernels.compiles_fused()) or batch
    )
    monkeypatch.setattr(tpu_lowering, "build_model", lambda config, size: calls.append(size))
    monkeypatch.setattr(tpu_lowering, "on_features", lambda _: model)
    monkeypatch.setattr(tpu_lowering, "compile_model", lambda *_: calls.append("compiled"))
    monkeypatch.setattr(tpu_lowering, "captions_per_image", lambda config: groups)
    monkeypatch.setattr(tpu_lowering, "batch_specs", lambda model, config, *counts: {"counts": counts})
    monkeypatch.setattr(tpu_lowering, "batch_values", dict)
    step, example = tpu_lowering.trace_step(contract.toy_config("mural"), 77, 4, texts)
    assert calls == [77, "compiled"] and example.pop("counts") == (4 * groups, texts or 4)
    assert {name: value.shape.as_list() for name, value in example.items()} == {
        "a_place": [1, 1, PLACE], "a_tally": [1, 1, 1 + len(KINDS), 3], "b_place": [1, 1, PLACE],
        "b_tally": [1, 1, 1 + len(KINDS), 3],
    }  # fmt: skip
    assert {value.dtype for value in example.values()} == {tf.int64} and not any(np.any(v) for v in example.values())
    assert set(model.progress.places) == {"a", "b"}
    entered = []
    model.train_step = lambda batch: entered.append((tf.distribute.get_replica_context(), kernels.on_tpu())) or batch
    for replicas in (1, 4):
        tpu_lowering.step_of_replica(model, replicas).get_concrete_function(tf.TensorSpec([2]))
    assert not isinstance(entered[0][0], SliceReplica) and entered[1][0].num_replicas_in_sync == 4
    assert entered[0][1] and entered[1][1] and not kernels.on_tpu()


@pytest.mark.parametrize("image,text", [("vit", "bert"), ("hub", "bert"), ("vit", "hub")])
@pytest.mark.parametrize("error,message", [
    (None, ""), (ValueError("Bad op\n  File x\nof a kind"), "A TPU would refuse this step: Bad op of a kind"),
    (UserError("ours"), "ours"), (tf.errors.UnimplementedError(None, None, "no"), "A TPU would refuse this step: no"),
])  # fmt: skip
def test_lowering_keeps_float32_and_says_what_is_refused(image, text, error, message, monkeypatch):
    precise = tf.config.experimental.tensor_float_32_execution_enabled
    states = []

    class Step:
        def experimental_get_compiler_ir(self, example):
            states.append((example, precise()))
            if error is not None:
                raise error
            return lambda stage: f"module as {stage}"

    monkeypatch.setattr(
        tpu_lowering, "trace_step", lambda *arguments: states.append(arguments[1:]) or (Step(), "example")
    )
    monkeypatch.setattr(tpu_lowering, "without_calls", lambda step, example: states.append("without calls") or step)
    config = contract.toy_config("mural")
    config.image_tower.name, config.text_tower.name = image, text
    before = precise()
    if error is None:
        assert lower_step(config, 77, 4, 5, 6) == "module as hlo_serialized"
    else:
        with pytest.raises(UserError) as raised:
            lower_step(config, 77, 4, 5, 6)
        assert str(raised.value) == message
    assert states == [(77, 4, 5, 6), *["without calls"] * ("hub" in (image, text)), ("example", False)]
    assert precise() == before


def test_functions_that_are_called_stand_in_their_places():
    """Also of a TF-Hub module, whose operations with a state lead to no result; loops stay loops."""
    weight = tf.Variable(3.0)

    @tf.function(autograph=False)
    def inner(value):
        return value * weight

    @tf.function(autograph=False)
    def outer(value):
        return tf.while_loop(lambda number: number < 20.0, lambda number: [inner(number)], [inner(value)])[0]

    def of_module(value):
        tf.raw_ops.Assert(condition=True, data=[value])
        return value * weight

    exported = tf.compat.v1.wrap_function(of_module, [tf.TensorSpec([])])
    example = {"a": tf.constant(1.0), "b": tf.constant(5.0)}
    step = tf.function(lambda batch: outer(batch["a"]) + exported(batch["b"]), autograph=False)
    called = tpu_lowering.without_calls(step, example)
    graph = called.get_concrete_function(example).graph.as_graph_def()
    (call,) = [node for node in graph.node if "Call" in node.op]
    functions = {function.signature.name: function for function in graph.library.function}
    kinds = [node.op for node in functions[call.attr["f"].func.name].node_def]
    assert kinds.count("While") + kinds.count("StatelessWhile") == 1
    assert not [kind for kind in kinds if "Call" in kind or kind in ("Enter", "Switch", "Merge")]
    assert [float(value) for value in called(example)] == [27.0 + 15.0]


def test_the_words_of_xla_without_frames():
    assert len(xla_reason("x" * 2000)) == 1000
    message = 'Failed:\n\n  File "a.py", line 3\n    ^^^\nInput 0 must be constant\nStack trace for op\n'
    assert xla_reason(message) == "Failed: Input 0 must be constant"
