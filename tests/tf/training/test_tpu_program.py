"""Reading a TPU's compiled program: cycles of loops and branches, collectives, precisions; slices by name."""

import pytest
from proved_program import Program

from mural_lite.errors import UserError
from mural_tf.training.tpu_program import facts, part_of_step, trip_count
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
    body = 10 + (3 + 1)  # the inner loop's turns are unknown: once
    assert Program(TEXT).cycles == 2 + 4 * (body + 1) + 700 + 100 == 862
    operations = [  # name, place, shape, cycles of all turns
        ("dear_one", "", "f32[]", 700), ("dot.2", "jit/text_encoder/matmul", "f32[8,8]", 100),
        ("in_loop", "", "f32[4]", 40), ("twice_unknown", "", "f32[2]", 12), ("true", "", "pred[]", 4),
        ("true", "", "pred[]", 4), ("loop", "", "(s32[], f32[4])", 2), ("p0", "", "f32[8,16]", 0),
        ("p1", "", "f32[16,8]", 0), ("inner", "", "(s32[])", 0),
    ]  # fmt: skip
    assert facts(TEXT) == {
        "cycles": 862, "unknown_loops": 1, "operations": 7, "cycles_by_part": {"the rest": 762, "text_encoder": 100},
        "most_expensive": [dict(zip(("name", "place", "shape", "cycles"), values)) for values in operations],
        "collectives": {"all-reduce": {"count": 2, "bytes": 448}}, "refused_features": [],
    }  # fmt: skip
    assert list(facts(TEXT)["cycles_by_part"]) == ["the rest", "text_encoder"]  # the most first


@pytest.mark.parametrize("layer,part", [
    ("gradient_tape/image_encoder/conv", "image_encoder, backward"), ("x/text_encoder/y", "text_encoder"),
    ("losses/a", "losses"), ("gradient_norms", "gradient_norms"), ("optimizer/gradient_tape", "optimizer, backward"),
    ("gradient_tape", "the rest"), ("", "the rest"),
])  # fmt: skip
def test_parts_of_a_step(layer, part):
    assert part_of_step(layer) == part


def test_a_program_with_calls_and_other_types():
    """Two branches by name, a function that is called in a loop of three turns, and every size of number."""
    text = "\n".join([
        "HloModule m, input_output_alias={ {}: (7, {}, may-alias) }",
        "%then (p: f32[]) -> f32[] {", f"  ROOT %t = f32[] negate(%p), {cycles(5)}", "}",
        "%else (p: f32[]) -> f32[] {", f"  ROOT %e = f32[] negate(%p), {cycles(6)}", "}",
        "%callee (p: f32[]) -> f32[] {", f"  %c = f32[] negate(%p), metadata={{op_name=\"losses/x\"}}, {cycles(10)}",
        "  ROOT %gather = (pred[2], s8[3], bf16[4], f64[5,2], u64[<=6], c64[]) all-gather-start(%c)", "}",
        "%body (p: f32[]) -> f32[] {", "  ROOT %call.1 = f32[] call(%p), to_apply=%callee", "}",
        "ENTRY %main (p: f32[]) -> f32[] {",
        "  %if = f32[] conditional(%c, %p, %p), true_computation=%then, false_computation=%else",
        '  ROOT %loop = f32[] while(%p), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}',
        "}",
    ])  # fmt: skip
    program = Program(text)
    assert program.cycles == 6 + 3 * 10 and program.unknown_loops() == 0 and program.donated() == {7}
    assert program.collectives() == {"all-gather": {"count": 3, "bytes": 3 * (2 + 3 + 8 + 80 + 48 + 4)}}
    assert program.refused_features() == ["dynamic size: gather", "float64: gather"]
    assert program.cycles_by(lambda operation: operation.place) == {"": 6, "losses/x": 30}
    assert program.most_expensive(1) == [dict(name="c", place="losses/x", shape="f32[]", cycles=30)]
    assert program.products() == [] and trip_count(program.computations["main"][1]) == 3


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


@pytest.mark.parametrize("name", ["v3", "v3-128x", "v7-8", "v4-0", "v4--8", "v5e-4", "gpu:a100x8", "here", "", "V4-8"])
def test_unknown_slices_are_refused(name):
    with pytest.raises(UserError) as raised:
        find_slice(name)
    assert str(raised.value) == (
        f"Unknown --tpu={name} of a dry run: expected a TPU's type and size as Google Cloud names it, such as v4-32, "
        "of v3, v4, v5litepod, v5p, v6e."
    )


@pytest.mark.parametrize("kind,size,known", [
    ("v3", 4, [8, 32, 128, 256, 512, 1024, 2048]), ("v4", 12, [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]),
    ("v6e", 2, [1, 4, 8, 16, 32, 64, 128, 256]),
])  # fmt: skip
def test_unknown_sizes_are_refused(kind, size, known):
    for number in known:
        assert find_slice(f"{kind}-{number}").replicas == (number // 2 if kind == "v4" else number)
    with pytest.raises(UserError) as raised:
        find_slice(f"{kind}-{size}")
    names = ", ".join(f"{kind}-{number}" for number in known)
    assert str(raised.value) == f"Unknown --tpu={kind}-{size} of a dry run: the slices of a {kind} are {names}."
