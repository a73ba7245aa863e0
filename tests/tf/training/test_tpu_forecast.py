"""What is done with the compiler's answer: kept, refused, killed, printed; without jax, a program in its place."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import forked
import pytest
import toy_data
from snapshots import assert_snapshot

from mural_lite.errors import UserError
from mural_tf.runs import dry_run as dry_run_module
from mural_tf.runs.dry_run import describe_step, dry_run
from mural_tf.training import tpu_forecast
from mural_tf.training.tpu_forecast import CompiledStep, RefusedStep, as_on_tpu, compile_step, fewest_chunks
from mural_tf.training.tpu_slices import find_slice

needs_compiler = pytest.mark.skipif(not tpu_forecast.has_compiler(), reason="needs the extra tpu_compiler")
SLICE = find_slice("v4-8")
ANSWER = dict(
    arguments=4_000_000_000, outputs=3_000_000_000, aliased=3_000_000_000, temporary=6_000_000_000, program=500_000_000,
    flops=2.75e12, cycles=1_050_000_000, unknown_loops=0, operations=3, cycles_by_part={"text_encoder": 1_050_000_000},
    most_expensive=[dict(name="dot.2", place="text_encoder/matmul", shape="f32[8,8]", cycles=105_000_000)],
    collectives={"all-reduce": {"count": 12, "bytes": 2_000_000_000}}, refused_features=[],
)  # fmt: skip
SHORT = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\n\n  Size: 9.00G\n  Shape: bf16[9]\n  Elsewhere: 1\n"
)


@pytest.fixture
def compiler(monkeypatch):
    """compiler(program) puts a Python program in the compiler's place; `RESULT` is the file of its answer."""
    monkeypatch.setattr(tpu_forecast, "PACKAGES", ("numpy",))
    popen = subprocess.Popen

    def put(program):
        program = f"import json, os, pathlib, sys, time\nRESULT = pathlib.Path(sys.argv[2])\n{program}"
        monkeypatch.setattr(
            tpu_forecast.subprocess, "Popen", lambda command, **o: popen([command[0], "-c", program, *command[3:]], **o)
        )

    return put


def answering(answer) -> str:
    return f"RESULT.write_text({json.dumps(json.dumps(answer))})"


@pytest.mark.parametrize("program,expected", [
    ("os.kill(os.getpid(), 9)", "was killed, as happens where memory runs out"),
    ("sys.exit('No jax here.')", "exit code 1: No jax here."),
])  # fmt: skip
def test_a_compiler_that_ends_early_is_one_line(compiler, program, expected):
    compiler(program)
    with pytest.raises(UserError, match=expected):
        compile_step(b"module", SLICE)


@pytest.mark.parametrize("least,expected,most_calls", [(2, 2, 4), (5, 8, 4), (64, 64, 4), (65, None, 4)])
def test_the_fewest_chunks_are_found_by_bisection(least, expected, most_calls):
    tried = []

    def fits(chunks):
        tried.append(chunks)
        return chunks >= least

    assert fewest_chunks(fits, [2, 4, 8, 16, 32, 64]) == expected
    assert len(tried) == len(set(tried)) <= most_calls
    assert fewest_chunks(fits, []) is None


def test_the_configuration_of_a_run_on_a_tpu():
    config = toy_data.toy_config("/nowhere")
    config.text_tower.precision = "auto"
    changed = as_on_tpu(config)
    assert (changed.train.jit, changed.text_tower.precision) == (True, "mixed_bfloat16")
    assert changed.image_tower.precision == "float32" and config.text_tower.precision == "auto"
    config.text_tower.name = "hub"
    assert as_on_tpu(config).text_tower.precision == "auto"  # a module's own, and the tower refuses any other


# What a dry run prints.


def test_the_lines_of_an_answer():
    config = toy_data.toy_config("/nowhere")
    config.train.micro_batches = 2
    odd = {"unknown_loops": 2, "refused_features": ["float64: x"]}
    assert_snapshot("training_dry_run_tpu", describe_step(CompiledStep(slice=SLICE, **{**ANSWER, **odd}), config))
    assert "must not have" not in describe_step(CompiledStep(slice=SLICE, **ANSWER), config)


@pytest.fixture
def lowered(monkeypatch, compiler):
    """Steps that are lowered in no time: their text is the number of chunks."""
    monkeypatch.setattr(
        dry_run_module, "lower_in_subprocess", lambda config, *sizes: b"%d" % config.train.micro_batches
    )
    monkeypatch.setattr(dry_run_module, "has_compiler", lambda: True)
    return compiler


@pytest.mark.parametrize("method,fields,images", [
    ("mural", {}, 12), ("embn", {"captions_per_image": 3}, 4),
    ("embn", {"captions_per_image": 0}, 12),  # which the method itself refuses, when it is built
])  # fmt: skip
def test_a_replica_s_images_have_all_their_captions(lowered, monkeypatch, method, fields, images):
    """The batch counts captions: 48 of them on four replicas."""
    sizes = []
    monkeypatch.setattr(dry_run_module, "lower_in_subprocess", lambda config, *given: sizes.append(given) or b"1")
    lowered(answering(ANSWER))
    config = toy_data.toy_config("/nowhere", method)
    config.method.update(fields)
    config.train.update(dict(image_text_batch=48, text_text_batch=8))
    dry_run_module.compile_for_slice(config, 77, SLICE)
    assert sizes == [(77, images, 2, 4)]


@pytest.mark.parametrize("least,expected", [
    (4, "--config.train.micro_batches=4 makes it fit."), (99, "No train.micro_batches makes it fit"),
])  # fmt: skip
def test_a_step_without_enough_memory_is_tried_in_more_chunks(lowered, capsys, least, expected):
    answers = f"{json.dumps(ANSWER)!r} if chunks >= {least} else {json.dumps({'refused': SHORT})!r}"
    lowered(f"chunks = int(pathlib.Path(sys.argv[1]).read_bytes()); RESULT.write_text({answers})")
    config = toy_data.toy_config("/nowhere")
    config.train.update(dict(image_text_batch=32, text_text_batch=32))
    dry_run(config, "v4-8")
    out = capsys.readouterr().out
    assert "Dry run of mural on v4-8: 4 replicas." in out and "Nothing is trained" in out
    assert "refuses the step: RESOURCE_EXHAUSTED" in out and expected in out


def test_a_step_that_the_compiler_refuses_ends_the_dry_run(lowered):
    lowered(answering({"refused": "UNIMPLEMENTED: no such operation"}))
    with pytest.raises(RefusedStep, match="no such operation"):
        dry_run(toy_data.toy_config("/nowhere"), "v4-8")


COMMAND = ("run_pretrain.py", "--config=configs/shapes_smoke.py", "--dry_run", "--tpu=v5litepod-4")


@pytest.mark.slow
@needs_compiler
def test_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = forked.run_script(*COMMAND)
    assert done.returncode == 0, done.stderr
    assert "accepts the step for v5e:2x2: 16 image-caption and 16 text pairs per replica" in done.stdout
    assert "must not have" not in done.stdout and "Between chips" in done.stdout


@pytest.mark.slow
@needs_compiler
def test_the_compiler_ends_with_the_process_that_started_it(tmp_path):
    """It waits at the end of a pipe for its module; the process at the pipe's other end is killed."""
    os.mkfifo(tmp_path / "step.hlo")
    compiler = ["-m", "mural_tf.training.tpu_compiler", *(str(tmp_path / name) for name in ("step.hlo", "result"))]
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, *{compiler}, 'v5e:2x2', '1'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\ntime.sleep(600)"
    )
    environment = {**os.environ, **tpu_forecast.ENVIRONMENT, "PYTHONPATH": str(forked.ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True)
    try:
        child = int(parent.stdout.readline())
        time.sleep(15)
        assert _runs(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until = time.monotonic() + 60
    while _runs(child) and time.monotonic() < until:
        time.sleep(0.2)
    assert not _runs(child)


def _runs(process: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
