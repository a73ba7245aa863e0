"""The program that compiles for a TPU, with made-up modules of jax: what it asks of them, keeps and answers."""

import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

from mural_lite.errors import UserError
from mural_tf.training import tpu_forecast
from mural_tf.training.tpu_slices import find_slice

NAMES = (
    "jax", "jax.experimental", "jax.experimental.topologies", "jax._src", "jax._src.compiler",
    "jax._src.interpreters", "jax._src.interpreters.mlir", "jax._src.lib", "jax._src.lib.xla_client", "jaxlib",
    "jaxlib._jax", "jaxlib.mlir", "jaxlib.mlir.ir", "jaxlib.mlir.dialects", "jaxlib.mlir.dialects.stablehlo",
)  # fmt: skip
TEXT = 'ENTRY %main (p: f32[]) -> f32[] {\n  ROOT %x = f32[] copy(%p), {"estimated_cycles":"7"}\n}'
FIGURES = {
    "arguments": 1, "outputs": 2, "aliased": 3, "temporary": 4, "program": 5, "flops": 6.0, "cycles": 7,
    "unknown_loops": 0, "operations": 1, "cycles_by_part": {"the rest": 7}, "collectives": {}, "refused_features": [],
    "most_expensive": [{"name": "x", "place": "", "shape": "f32[]", "cycles": 7}],
}  # fmt: skip


@pytest.fixture
def program(monkeypatch):
    """The module `tpu_compiler` with stand-ins for jax, which note what they are asked."""
    stubs = {name: types.ModuleType(name) for name in NAMES}
    for name, module in stubs.items():
        monkeypatch.setitem(sys.modules, name, module)
        package, _, last = name.rpartition(".")
        if package:
            setattr(stubs[package], last, module)
    monkeypatch.delitem(sys.modules, "mural_tf.training.tpu_compiler", raising=False)
    program = importlib.import_module("mural_tf.training.tpu_compiler")
    memory = types.SimpleNamespace(
        argument_size_in_bytes=1, output_size_in_bytes=2, alias_size_in_bytes=3, temp_size_in_bytes=4,
        generated_code_size_in_bytes=5,
    )  # fmt: skip
    executable = types.SimpleNamespace(
        get_compiled_memory_stats=lambda: memory, cost_analysis=lambda: {"flops": 6.0},
        hlo_modules=lambda: [types.SimpleNamespace(to_string=lambda: TEXT)],
    )  # fmt: skip
    program.asked = []

    def compile_it(*arguments):
        program.asked.append(arguments)
        if arguments[0] == "refused":
            raise RuntimeError("RESOURCE_EXHAUSTED: no room")
        return executable

    devices = [
        types.SimpleNamespace(id=10 + number, client=types.SimpleNamespace(compile=compile_it)) for number in range(4)
    ]

    def topology(**options):
        program.asked.append(options)
        return types.SimpleNamespace(devices=devices)

    stubs["jax.experimental.topologies"].get_topology_desc = topology
    stubs["jax._src.compiler"].get_compile_options = lambda **options: options
    stubs["jax._src.lib.xla_client"].DeviceList = lambda devices: [device.id for device in devices]
    yield program
    sys.modules.pop("mural_tf.training.tpu_compiler", None)


@pytest.mark.parametrize("topology,chip", [("v4:2x2x1", {"chip_config_name": "megacore"}), ("v5e:2x2", {})])
def test_the_first_devices_of_a_slice(program, topology, chip):
    program.compile_module("module", topology, 3)
    described, (module, devices, options) = program.asked
    assert described == {"platform": "tpu", "topology_name": topology, **chip}
    assert (module, devices) == ("module", [10, 11, 12])
    assert (options["num_replicas"], options["num_partitions"]) == (3, 1)
    assert np.array_equal(options["device_assignment"], [[10], [11], [12]])


def test_figures_text_and_refusals(program, tmp_path, monkeypatch):
    times = iter([5.0, 7.5, 9.0])
    monkeypatch.setattr(program, "time", types.SimpleNamespace(monotonic=lambda: next(times)))
    usage = types.SimpleNamespace(ru_maxrss=9)
    stub = types.SimpleNamespace(RUSAGE_SELF="self", getrusage=lambda who: {"self": usage}[who])
    monkeypatch.setattr(program, "resource", stub)
    answer = program.compile_for("module", "v5e:2x2", 4, tmp_path / "text")
    assert answer == {**FIGURES, "seconds": 2.5, "peak_bytes": 9 * 1024}
    assert (tmp_path / "text").read_text() == TEXT
    assert program.compile_for("refused", "v5e:2x2", 4, None) == {"refused": "RESOURCE_EXHAUSTED: no room"}


def test_answers_are_kept_by_module_slice_replicas_and_versions(program, tmp_path, monkeypatch):
    versions = {"jax": "1", "libtpu": "2"}
    monkeypatch.setattr(program.importlib.metadata, "version", lambda name: versions[name])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = [program.cache_file(*key) for key in (("a", "b", 1), ("a", "b", 2), ("a", "c", 1), ("x", "b", 1))]
    versions["libtpu"] = "3"
    paths.append(program.cache_file("a", "b", 1))
    assert len(set(paths)) == 5 and {path.parent for path in paths} == {tmp_path / "cache/mural_tf/tpu_compiler"}
    assert all(path.suffix == ".json" and len(path.stem) == 32 for path in paths)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert program.cache_file("a", "b", 1) == tmp_path / ".cache/mural_tf/tpu_compiler" / paths[4].name


def test_the_program_answers_from_what_it_kept(program, tmp_path, monkeypatch):
    compiled = []

    def compile_for(module, topology, replicas, text_path):
        compiled.append((module, topology, replicas, text_path))
        return {"answer": len(compiled)}

    ended = []
    monkeypatch.setattr(program, "compile_for", compile_for)
    monkeypatch.setattr(program, "read_module", lambda path: path.name)
    monkeypatch.setattr(
        program, "cache_file", lambda *key: tmp_path / "kept/below" / "-".join(map(str, key)).replace(":", "")
    )
    monkeypatch.setattr(program, "_end_with_standard_input", lambda: ended.append("with its input"))
    monkeypatch.setattr(program.os, "_exit", ended.append)
    arguments = [str(tmp_path / "step.hlo"), str(tmp_path / "result"), "v4:2x2x1", "4"]
    for extra, answer in (([], 1), ([], 1), ([str(tmp_path / "text")], 2), ([], 2)):
        program.main([*arguments, *extra])
        assert json.loads((tmp_path / "result").read_text()) == {"answer": answer}
    assert compiled == [("step.hlo", "v4:2x2x1", 4, None), ("step.hlo", "v4:2x2x1", 4, tmp_path / "text")]
    assert [path.name for path in (tmp_path / "kept/below").iterdir()] == ["step.hlo-v42x2x1-4"]  # nothing half written
    assert ended == ["with its input", 0] * 4


def test_the_program_ends_with_its_input(program, monkeypatch):
    calls = []
    monkeypatch.setattr(program.sys, "stdin", types.SimpleNamespace(read=lambda: calls.append("read")))
    monkeypatch.setattr(program.os, "_exit", calls.append)
    program._end_with_standard_input()
    assert calls == ["read", 1]


def test_the_words_of_a_compiler_that_ends():
    end = tpu_forecast._end_of_compiler
    assert end(-9, "x") == (
        "The TPU's compiler was killed, as happens where memory runs out: a large model needs up to 20 GB."
    )
    assert end(1, "first\nlast\n \n") == "The TPU's compiler ended with exit code 1: last"
    assert end(-15, " \n") == "The TPU's compiler ended with exit code -15: it said nothing"
    lines = ["  first  ", "", *(f"{word} {k}" for k in range(9) for word in ("Size:", "Operator:", "Other:", "Shape:"))]
    found = tpu_forecast._brief_reason("\n".join(lines))
    assert found == "first " + " ".join(f"Size: {k} Operator: {k} Shape: {k}" for k in range(5))
    assert tpu_forecast._brief_reason("x" * 2000) == "x" * 1500


@pytest.mark.parametrize("text_file", ["", "text"])
def test_how_the_compiler_is_started(text_file, monkeypatch, tmp_path):
    calls = []

    class Process:
        returncode = 1

        def __init__(self, command, **options):
            calls.append((command, options))
            assert pathlib.Path(command[3]).read_bytes() == b"module"
            pathlib.Path(command[4]).write_text('{"answer": 1}')
            self.waits = [subprocess.TimeoutExpired("x", 20), None]

        def wait(self, timeout=None):
            calls.append(timeout)
            failure = self.waits.pop(0) if self.waits else None
            if failure is not None:
                raise failure

        def kill(self):
            calls.append("kill")

    monkeypatch.setattr(tpu_forecast.subprocess, "Popen", Process)
    monkeypatch.setattr(tpu_forecast, "announce", lambda line: calls.append(line.split(" s")[0].rstrip("0123456789")))
    monkeypatch.setenv("PYTHONPATH", "mine")
    slice_ = find_slice("v4-8")
    assert tpu_forecast._run_compiler(b"module", slice_, text_file) == {"answer": 1}
    begin, (command, options), *rest = calls
    assert begin.startswith("The compiler of v4-8 begins")
    assert rest == [
        20.0,
        "The compiler works … ",
        20.0,
        "kill",
        None,
    ]
    assert command[:3] == [sys.executable, "-m", "mural_tf.training.tpu_compiler"]
    assert command[5:] == ["v4:2x2x1", "4", *[text_file] * bool(text_file)]
    root = str(pathlib.Path(tpu_forecast.__file__).parents[2])
    assert options["env"]["PYTHONPATH"] == os.pathsep.join([root, "mine"])
    assert options["env"].items() >= tpu_forecast.ENVIRONMENT.items() and "PATH" in options["env"]
    assert (options["stdin"], options["stdout"]) == (subprocess.PIPE, subprocess.DEVNULL)


def test_the_answer_of_a_compiler(monkeypatch):
    slice_ = find_slice("v4-8")
    monkeypatch.setattr(tpu_forecast, "has_compiler", lambda: True)
    answers = iter([{**FIGURES, "seconds": 1.0}, {"refused": "no\nmore"}, {"refused": "RESOURCE_EXHAUSTED: x"}])
    asked = []
    monkeypatch.setattr(tpu_forecast, "_run_compiler", lambda *arguments: asked.append(arguments) or next(answers))
    step = tpu_forecast.compile_step(b"m", slice_, "text")
    assert asked == [(b"m", slice_, "text")] and (step.slice, step.cycles, step.program) == (slice_, 7, 5)
    assert step.memory == 1 + 2 - 3 + 4 + 5 and step.seconds == 7 / 1.05e9
    assert step.utilisation == pytest.approx(6.0 / (7 / 1.05e9 * 275e12))
    for short in (False, True):
        with pytest.raises(tpu_forecast.RefusedStep) as raised:
            tpu_forecast.compile_step(b"m", slice_)
        assert raised.value.is_out_of_memory == short
        first = "RESOURCE_EXHAUSTED: x" if short else "no"
        assert str(raised.value) == f"The compiler of v4-8 refuses the step: {first}"
    assert raised.value.reason == "RESOURCE_EXHAUSTED: x"
    monkeypatch.setattr(tpu_forecast, "has_compiler", lambda: False)
    with pytest.raises(UserError, match="^The TPU's own compiler is not here, so memory and time are not known: pip "):
        tpu_forecast.compile_step(b"m", slice_)


def test_whether_the_compiler_is_here(monkeypatch):
    found = {"jax": None, "libtpu": "here"}
    monkeypatch.setattr(tpu_forecast.importlib.util, "find_spec", found.get)
    assert not tpu_forecast.has_compiler()
    found["jax"] = "here"
    assert tpu_forecast.has_compiler()
