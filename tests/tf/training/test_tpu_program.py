"""Reading a TPU's compiled program: cycles of loops and branches, collectives, precisions; slices by name."""

import pytest

from mural_lite.errors import UserError
from mural_tf.training.tpu_program import Program, facts, part_of_step
from mural_tf.training.tpu_slices import GENERATIONS, GIB, find_slice


def cycles(number: int) -> str:
    return f'backend_config={{"estimated_cycles":"{number}"}}'


TEXT = "\n".join([
    "HloModule step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {2}: (3, {}, must-alias) }, rest",
    "",
    "%sum (a: f32[], b: f32[]) -> f32[] {",
    "  %a = f32[]{:T(128)} parameter(0)",
    "  ROOT %add.1 = f32[] add(%a, %b)",
    "}",
    "",
    "%fused (p: bf16[8,16]) -> f32[8,8] {",
    "  %p = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)",
    "  %q = bf16[8,16]{1,0} parameter(1)",
    '  ROOT %dot.1 = f32[8,8]{1,0} convolution(%p, %q), dim_labels=bf_oi->bf, metadata={op_name="towers"}',
    "}",
    "",
    "%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {",
    f"  %in_loop = f32[4]{{0}} fusion(%x), kind=kLoop, calls=%fused, {cycles(10)}",
    f"  %inner = (s32[]) while(%y), condition=%always, body=%inner_body, {cycles(0)}",
    "}",
    "",
    "%inner_body (state: (s32[])) -> (s32[]) {",
    f"  %twice_unknown = f32[2]{{0}} copy(%x), {cycles(3)}",
    "}",
    "",
    "%always (state: (s32[])) -> pred[] {",
    f"  ROOT %true = pred[] compare(%x, %y), {cycles(1)}",
    "}",
    "",
    "%cheap (p: f32[]) -> f32[] {",
    f"  ROOT %cheap_one = f32[] negate(%p), {cycles(5)}",
    "}",
    "",
    "%dear (p: f32[]) -> f32[] {",
    f"  ROOT %dear_one = f32[] negate(%p), {cycles(700)}",
    "}",
    "",
    "ENTRY %main (p0: f32[8,16]) -> (f32[8,8]) {",
    "  %p0 = f32[8,16]{1,0} parameter(0)",
    "  %p1 = f32[16,8]{1,0} parameter(1)",
    "  %loop = (s32[], f32[4]) while(%t), condition=%always, body=%body, "
    'backend_config={"known_trip_count":{"n":"4"},"estimated_cycles":"2"}',
    f"  %either = f32[] conditional(%c, %p0, %p1), branch_computations={{%cheap, %dear}}, {cycles(0)}",
    '  %dot.2 = f32[8,8]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, operand_precision={highest,highest}, '
    f'metadata={{op_name="jit/text_encoder/matmul"}}, {cycles(100)}',
    f"  %all-reduce.1 = (f32[100]{{0}}, bf16[10]{{0}}) all-reduce(%p0, %p1), to_apply=%sum, {cycles(0)}",
    f"  %all-reduce-start.2 = f32[7]{{0}} all-reduce-start(%p0), to_apply=%sum, {cycles(0)}",
    "  %all-reduce-done.2 = f32[7]{0} all-reduce-done(%all-reduce-start.2)",
    "  ROOT %result = (f32[8,8]{1,0}) tuple(%dot.2)",
    "}",
])  # fmt: skip


def test_loops_and_branches_count_as_they_run():
    program = Program(TEXT)
    body = 10 + (3 + 1)  # the inner loop's turns are unknown: once
    assert program.cycles == 2 + 4 * (body + 1) + 700 + 100
    assert program.unknown_loops() == 1
    first, second, third = program.most_expensive(3)
    assert (first["name"], first["cycles"]) == ("dear_one", 700)
    assert second == dict(name="dot.2", place="jit/text_encoder/matmul", shape="f32[8,8]", cycles=100)
    assert (third["name"], third["cycles"]) == ("in_loop", 40)
    assert sum(program.cycles_by(lambda instruction: instruction.opcode).values()) == program.cycles


def test_bytes_between_chips():
    assert Program(TEXT).collectives() == {"all-reduce": {"count": 2, "bytes": 400 + 20 + 28}}


def test_products_and_their_precision():
    assert sorted(Program(TEXT).products()) == [
        ("jit/text_encoder/matmul", "f32xf32", "highest"), ("towers", "bf16xbf16", "default")
    ]  # fmt: skip


def test_arguments_that_are_overwritten():
    assert Program(TEXT).donated() == {0, 3}


@pytest.mark.parametrize("line,expected", [
    ("  %x = f32[<=8,4]{1,0} custom-call(%p0)", "dynamic size: x"),
    ("  %x = f64[8]{0} convert(%p0)", "float64: x"),
    ("  %x = (f32[8]{0}, token[]) infeed(%token)", "infeed x"),
    ("  %x = (f32[8]{0}, u32[], token[]) recv-done(%y)", "recv-done x"),
    ("  %x = (f32[8]{0}, u32[], token[]) send(%y, %token)", "send x"),
])  # fmt: skip
def test_features_that_a_step_must_not_have(line, expected):
    assert Program(TEXT).refused_features() == []
    assert Program(TEXT.replace("  %p1 =", f"{line}\n  %p1 =")).refused_features() == [expected]


def test_facts_are_what_json_holds():
    found = facts(TEXT)
    assert found["cycles"] == Program(TEXT).cycles and found["unknown_loops"] == 1
    assert found["cycles_by_part"] == {"the rest": found["cycles"] - 100, "text_encoder": 100}
    assert found["operations"] == 7
    assert part_of_step("gradient_tape/image_encoder/conv") == "image_encoder, backward"


# Slices.


@pytest.mark.parametrize("name,replicas,topology,peak", [
    ("v3-128", 128, "v3:8x8", 61.5e12), ("v3-8", 8, "v3:2x2", 61.5e12), ("v4-32", 16, "v4:2x2x4", 275e12),
    ("v4-8", 4, "v4:2x2x1", 275e12), ("v5litepod-64", 64, "v5e:8x8", 197e12), ("v5litepod-4", 4, "v5e:2x2", 197e12),
    ("v5p-8", 4, "v5p:2x2x1", 459e12), ("v6e-8", 8, "v6e:2x4", 918e12),
])  # fmt: skip
def test_slices_by_name(name, replicas, topology, peak):
    found = find_slice(name)
    assert (found.name, found.replicas, found.topology, found.generation.peak) == (name, replicas, topology, peak)


def test_every_shape_has_the_chips_of_its_size():
    for generation in GENERATIONS.values():
        for chips, shape in generation.shapes.items():
            product = 1
            for side in shape.split("x"):
                product *= int(side)
            assert product == chips, shape
        assert generation.memory in (16 * GIB, 32 * GIB, 95 * GIB)


@pytest.mark.parametrize("name", ["v3", "v3-128x", "v7-8", "v4-0", "v4--8", "v4-12", "v5e-4", "gpu:a100x8", "here", ""])
def test_unknown_slices_are_refused(name):
    with pytest.raises(UserError, match=f"Unknown --tpu={name} of a dry run: "):
        find_slice(name)
