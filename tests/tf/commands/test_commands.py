"""The front of all commands: finding one, its flags and help, mistakes, and `--config.model`."""

import contextlib
import errno
import io
import json
import runpy
import subprocess
import sys

import forked
import pytest
import tensorflow as tf
from absl import flags
from snapshots import assert_snapshot

import mural_tf
from mural_lite import command_line as cli
from mural_lite import progress
from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.trust import check_class
from mural_tf.commands import COMMANDS, config_arguments

# Calls all commands as __main__ in one process, each after the other's flags are gone, and prints {name: help}.
ALL_HELP = """
import contextlib, io, json, runpy, sys, time
from absl import flags
from mural_tf.commands import COMMANDS
texts = {}
for name in ["", *COMMANDS]:
    for flag in list(flags.FLAGS):
        if flags.FLAGS.find_module_defining_flag(flag) in ("mural_tf.commands", "mural_lite.command_line"):
            delattr(flags.FLAGS, flag)
    sys.argv = ["mural_tf", *name.split(), "--help"]
    printed, begun = io.StringIO(), time.process_time()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_module("mural_tf", run_name="__main__")
    except SystemExit as end:
        assert end.code == 0, end
    texts[name] = printed.getvalue()
    seconds = time.process_time() - begun
    assert seconds < 1.0, (name, seconds)
    assert not {"tensorflow", "aiohttp"} & sys.modules.keys(), name
print(json.dumps(texts))
"""


def run(*arguments):
    done = subprocess.run([sys.executable, *arguments], cwd=forked.ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@contextlib.contextmanager
def without_new_flags():
    before = set(flags.FLAGS)
    try:
        yield
    finally:
        flags.FLAGS.unparse_flags()
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)


@pytest.fixture
def no_flags():
    """Flags that a test defines are gone after it."""
    with without_new_flags():
        yield


@contextlib.contextmanager
def no_exit():
    """Commands run in this process: absl's `run` would end it."""
    with pytest.MonkeyPatch.context() as patch, without_new_flags():
        patch.setattr(cli.app, "run", lambda main, flags_parser: sys.exit(main(flags_parser(sys.argv))))
        patch.setattr(sys, "argv", ["program"])
        yield


def run_here(commands, *arguments):
    """Runs a command in this process and returns its exit code; a process would import everything again."""
    with no_exit(), pytest.raises(SystemExit) as end:
        cli.run_command(commands, arguments, "mural")
    return end.value.code or 0


def test_help_of_every_command_is_quick_and_as_it_was():
    done = run("-c", ALL_HELP)
    assert done.returncode == 0, done.stderr
    for name, text in json.loads(done.stdout).items():
        assert_snapshot(f"help/{name or 'mural_tf'}".replace(" ", "_"), text, version=mural_tf.__version__)


@pytest.mark.parametrize("arguments", [["--version"], ["pretrain", "--version"]])
def test_the_version_is_answered(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.run_command(COMMANDS, arguments, "mural")
    assert ended.value.code == 0 and capsys.readouterr().out == f"mural_tf {mural_tf.__version__}\n"


def test_a_line_without_a_command_lists_what_would_do(capsys):
    assert run_here(COMMANDS, "--config=emoji_mural") == 1
    assert capsys.readouterr().err.endswith("\nError: No command is given after 'mural': expected one of these.\n")
    assert run_here(COMMANDS, "search") == 1
    printed = capsys.readouterr().err
    assert "search query" in printed and "pretrain" not in printed and "after 'mural search'" in printed


@pytest.mark.parametrize("arguments, found", [
    (["serve", "--port=1"], ("serve", ["--port=1"])),
    (["search", "query", "query"], ("search query", ["query"])),
    (["search", "--top=3", "query", "red"], ("search query", ["--top=3", "red"])),
    (["import", "align", "--weights=x"], ("import", ["align", "--weights=x"])),
    (["search", "--help"], ("search", ["--help"])),
    ([], ("", [])),
])  # fmt: skip
def test_the_command_is_found(arguments, found):
    assert cli.find_command(COMMANDS, arguments) == found


@pytest.mark.parametrize("arguments, message", [
    (["pretain"], "Unknown command 'pretain'; did you mean 'pretrain'?"),
    (["search", "inde"], "Unknown command 'inde'; did you mean 'index'?"),
    (["search", "photos"], "Unknown command 'photos': expected index, query, delete, export, and then 'photos'."),
    (["sear"], "did you mean 'search'?"),
])  # fmt: skip
def test_unknown_commands_name_the_nearest(arguments, message):
    with pytest.raises(UserError) as raised:
        cli.find_command(COMMANDS, arguments)
    assert message in str(raised.value)


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "No space left on device", "/data/report.json"),
    tf.errors.ResourceExhaustedError(None, None, "/data/report.json; No space left on device"),
    UserError("Cannot write to /data/report.json:\nNo space left on device"),
])  # fmt: skip
def test_a_full_disk_is_one_line_wherever_a_command_writes(error):
    line = cli._message_for_user(error)
    assert "No space left on device" in line and "/data/report.json" in line and "\n" not in line


@pytest.mark.parametrize("arguments, message", [
    (["serv"], "Error: Unknown command 'serv'; did you mean 'serve'?"),
    (["serve", "--prt=3"], "Error: Unknown command line flag 'prt'"),
    (["serve"], "Error: Nothing to serve: give --index=INDEX. "),
    (["serve", "--export=.", "again"], "Error: Unexpected argument 'again'"),
    (["emoji", "--languages=few"], "Error: flag --languages=few: value should be one of <core|all>"),
    (["vocabulary", "records:x", "--output=x", "--size=0"], "Error: flag --size=0: 0 is not "),
    (["serve", "--export=x", "--port=70000"], "Error: flag --port=70000: 70000 is not "),
    (["pretrain", "--config=configs/finetune.py", "--config.train.steps=x"], "Error: flag --config.train.steps=x"),
    (["pretrain", "--config=configs/finetune.py", "--config.trian.steps=1"], "Error: --config.trian.steps: "),
    (["pretrain", "--config=configs/finetune.py"], "Error: --workdir is missing"),
    (["pretrain", "--config=configs/finetune.py", "--tpu_type=v4-8"], "Error: Unknown command line flag 'tpu_type'"),
    (["pretrain", "--config=configs/none.py"], "Error: --config=configs/none.py: there is no such file, and no "),
    (["pretrain", "--config=nothing"], "Error: --config=nothing: there is no such file, and no installed "),
    (["pretrain", "--config=emoji_murl"], "Error: --config=emoji_murl: there is no such file, and no installed "),
    (["pretrain", "--config=configs/etcl_finetune.py:coco"], "Error: Unknown "),
    (["pretrain", "--config=configs/mural_base.py:coco"], "Error: --config=configs/mural_base.py:coco: this con"),
])  # fmt: skip
def test_mistakes_are_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(forked.ROOT)
    assert run_here(COMMANDS, *arguments) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(message) and printed.count("\n") == 1 and len(printed) < 400


def test_a_mistake_in_traced_code_is_one_line():
    """TensorFlow wraps it once for every function that it has rewritten."""

    def check(x):
        raise UserError(f"train.micro_batches=3 does not divide\n the {x.shape[0]} examples.")

    @tf.function
    def step(x):
        return check(x)

    with pytest.raises(Exception, match="in user code") as raised:
        step(tf.ones([64]))
    assert cli._message_for_user(raised.value) == "train.micro_batches=3 does not divide the 64 examples."


@pytest.mark.parametrize("full", [
    tf.errors.ResourceExhaustedError(None, None, "failed to allocate memory\n[Op:MatMul]"),
    tf.errors.InternalError(None, None, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
])  # fmt: skip
def test_a_device_without_memory_is_one_line(full):
    message = cli._message_for_user(full)
    assert message.endswith("--batch_size=N.") and "too little memory" in message


def test_a_terminal_may_know_ascii_alone(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert run_here({"say": cli.command()(lambda: print("… 心", flush=True))}, "say") == 0
    assert sys.stdout.buffer.getvalue() == b"\\u2026 \\u5fc3\n"


def test_commands_say_what_they_wait_for_and_the_library_does_not(capsys):
    progress.announce("Loading …")
    assert run_here({"say": cli.command()(lambda: progress.announce("Loading …"))}, "say") == 0
    progress.announce("Loading …")
    assert capsys.readouterr() == ("", "Loading …\n")


def test_bars_in_log_files_are_lines(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with progress.announcing():
        for _ in progress.tqdm(range(3), desc="Reading"):
            pass
    lines = capsys.readouterr().err
    assert "\r" not in lines and lines.count("\n") == len(lines.splitlines()) >= 3
    assert lines.startswith("Reading:   0%") and "3/3" in lines.splitlines()[-1]
    for _ in progress.tqdm(range(3), desc="Reading"):
        pass
    assert capsys.readouterr().err.startswith("\rReading:")


def test_a_mistake_is_one_line_of_a_process():
    done = run("-m", "mural_tf", "pretrain", "--config=configs/finetune.py", "--config.trian.steps=1")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr == "Error: --config.trian.steps: there is no field 'trian'; did you mean 'train'?\n"


@pytest.mark.parametrize("body", ["return int('many')", "return 1 + 'a'", "return {}.a", "raise OSError('no disk')"])
def test_a_mistake_in_a_configuration_file_keeps_its_stack_trace(body, tmp_path):
    (tmp_path / "broken.py").write_text(f"def get_config():\n    {body}\n")
    with pytest.raises((ValueError, TypeError, AttributeError, OSError)) as error, no_exit():
        cli.run_command(COMMANDS, ["pretrain", f"--config={tmp_path / 'broken.py'}"], "mural")
    assert error.traceback[-1].path == tmp_path / "broken.py" and not isinstance(error.value, UserError)


@pytest.mark.parametrize("name", ["pretrain", "finetune", "evaluate", "export", "search"])
def test_scripts_run_the_commands(name, monkeypatch):
    called = []
    monkeypatch.setattr(cli, "run_command", lambda commands, arguments, program: called.append(arguments))
    monkeypatch.setattr(sys, "argv", ["program", "--top=3"])
    runpy.run_path(str(forked.ROOT / f"run_{name}.py"), run_name="__main__")
    assert called == [[name, "--top=3"]]


def test_a_command_gets_its_flags_and_arguments(capsys):
    @cli.command(positional=True, times=(1, "Factor."))
    def add_up(numbers, times):
        """Adds up."""
        return times * sum(map(int, numbers))

    commands = {"add up": add_up}
    assert run_here(commands, "add", "--times=2", "up", "3", "4") == 14
    assert run_here(commands, "add") == 1
    assert "mural COMMAND … [--help]\n\n  add up  Adds up." in capsys.readouterr().err


@pytest.mark.parametrize("trust", [False, True])
def test_the_flag_trust_holds_while_the_command_runs(trust, capsys):
    @cli.command()
    def load():
        """Loads."""
        check_class("nobody_s.method:Own", "config.json")

    code = run_here({"load": load}, "load", *(["--trust"] if trust else []))
    assert code == (0 if trust else 1) and ("names model=" in capsys.readouterr().err) != trust


@pytest.mark.parametrize("arguments, value", [
    (["--config=a.py", "--config.model=b:C"], "b:C"),
    (["--config.model", "x", "--config.model=y"], "y"),
    (["--config.models=b", "-config.model", "z"], "z"),
    (["--config.model"], ""),
    ([], ""),
])  # fmt: skip
def test_the_last_value_of_a_flag(arguments, value):
    assert config_arguments.last_value("config.model", arguments) == value


def parsed_config(monkeypatch, tmp_path, *arguments):
    """What `--config` gives for a command line."""
    (tmp_path / "made.py").write_text("from mural_lite.config import base_config as get_config\n")
    monkeypatch.setattr(sys, "argv", ["program", f"--config={tmp_path / 'made.py'}", *arguments])
    config = config_arguments.define_config(required=False)
    cli._parse_flags(sys.argv)
    return config.value


def test_a_method_brings_its_fields_before_they_are_overridden(no_flags, monkeypatch, tmp_path):
    config = parsed_config(
        monkeypatch, tmp_path, "--config.method.margin=0.1", "--config.model=mule", "--config.seed=3"
    )
    assert (config.model, config.seed, config.method.margin, config.method.top) == ("mule", 3, 0.1, 10)
    with pytest.raises(AttributeError):
        config.method.another = 1  # locked, as always


def test_the_file_s_own_method_keeps_the_file_s_fields(no_flags, monkeypatch, tmp_path):
    config = parsed_config(monkeypatch, tmp_path, f"--config.model={base_config().model}")
    assert {**config.to_dict(), "method": {}} == base_config().to_dict()


@pytest.mark.parametrize("arguments, message", [
    (["--config.model=mule", "--config.method.margn=1"], "^Unknown field.*margn"),
    (["--config.model=clip"], "^Unknown model 'clip'"),
])  # fmt: skip
def test_unknown_methods_and_fields_are_mistakes(arguments, message, no_flags, monkeypatch, tmp_path):
    with pytest.raises(UserError, match=message):
        parsed_config(monkeypatch, tmp_path, *arguments)
