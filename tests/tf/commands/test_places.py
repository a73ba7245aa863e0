"""Every flag and field that takes a text is a place, refused in one line where no file system knows it, or listed here.

A new flag or field that takes a text fails here until it says which of the two it is.
"""

import functools

import pytest
from absl import flags
from ml_collections import ConfigDict
from test_commands import run_here, without_new_flags

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.commands import COMMANDS
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.report import evaluate_and_report
from mural_tf.runs.import_pretrained import import_into_workdir
from mural_tf.runs.pretrain import pretrain
from mural_tf.training.prepare import check_places

# Texts that name nothing; `config` is a file of Python, which is run: it must be on this machine.
TEXTS = {"split", "languages", "pivot", "protocol", "tpu", "profile", "beam", "language", "host",
         "translation_languages", "config", "benchmark", "version", "filter",
         "columns", "where", "fields", "title", "encoding", "rank", "sort", "license", "weights", "color", "hide",
         "link", "hosts", "immich"}  # fmt: skip
FIELDS = """model origin text_pairs source emoji format default_language read split name precision builder
         layout prompt sha256 mode fused batch_norm_group normalization resize_mode interpolation jpeg padding
         activation pooling attention language_branches norm""".split()
UNKNOWN = "hdfx://b/x: no file system is installed that reads it; expected gs:"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_settled(command):
    def check(flag, value):
        for validator in flag.validators:
            validator.checker([value] if flag.flag_type().startswith("multi") else value)

    with without_new_flags():
        before = set(flags.FLAGS)
        COMMANDS[command].define()
        for name in set(flags.FLAGS) - before - TEXTS:
            flag = flags.FLAGS[name]
            if isinstance(flag.default, (bool, int, float)) or isinstance(flag.parser, flags.EnumParser) or "." in name:
                continue
            check(flag, ".")
            for value, words in (("hdfx://b/x", UNKNOWN), ("gs:/b/x", "expected a local path, or a store's name")):
                with pytest.raises(UserError, match=words):
                    check(flag, value)
            if (command, name) == ("emoji", "cache"):  # npm writes there
                with pytest.raises(UserError, match="expected a folder of this machine"):
                    check(flag, "s3://b/x")
            else:
                check(flag, "s3://b/x")


def text_fields(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from text_fields(value, f"{prefix}{name}.")
        elif isinstance(value, str) and name not in FIELDS:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("name", text_fields(base_config()))
def test_every_field_is_settled(name):
    config = base_config()
    *branches, field = name.split(".")
    functools.reduce(getattr, branches, config)[field] = "hdfx://b/x"
    with pytest.raises(UserError, match="hdfx://b/x"):
        check_places(config)


def test_what_is_refused_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config, protocol = base_config(), default_protocol()
    config.vocabulary.file = "hdfx://b/x"
    assert {option for option, value in protocol.items() if isinstance(value, str)} == {"images", "translations"}
    calls = [lambda: pretrain(config, tmp_path / "w"), lambda: import_into_workdir("bert", "x", tmp_path / "w", config)]
    for option in ("images", "translations"):
        changed = {**protocol, option: "hdfx://b/x"}
        calls += [functools.partial(evaluate_and_report, "model", str(tmp_path), protocol=changed, output="out")]
    for call in calls:
        with pytest.raises(UserError, match="hdfx://b/x: no file system is installed"):
            call()
    for words in (
        ["convert", "records:hdfx://b/x", "--output=out"],
        ["vocabulary", "records:hdfx://b/x", "--output=out.txt"],
        ["embed", "hdfx://b/x", "--model=.", "--output=out"],
        ["emoji", "--output=hdfx://b/x"],
    ):
        assert run_here(COMMANDS, *words) == 1
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1 and "no file system is installed that reads it" in errors, errors
    assert not list(tmp_path.iterdir())
