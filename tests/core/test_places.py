"""Every flag and field that names a file or folder: one of a store, or refused in one line before anything is written.

A new flag or field that takes a text fails here until it says what it is: a place, or one of the texts below.
"""

import pytest
from absl import flags
from ml_collections import ConfigDict
from test_commands import run_here, without_new_flags

from mural_tf.commands import COMMANDS
from mural_tf.config import base_config
from mural_tf.errors import UserError
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.report import evaluate_and_report
from mural_tf.runs.import_pretrained import import_into_workdir
from mural_tf.runs.pretrain import pretrain
from mural_tf.training.prepare import HANDLES, MODELS, PLACES

# Texts that name nothing; `config` is a file of Python, which is run: it must be on this machine.
TEXTS = {"split", "languages", "pivot", "protocol", "tpu", "profile", "beam", "language", "host", "head",
         "translation_languages", "config", "benchmark", "tpu_type", "version", "filter",
         "columns", "where", "fields", "encoding", "rank", "sort", "license"}  # fmt: skip
HERE = {"emoji": {"cache"}}  # on this machine only: npm writes there
WORKS = {
    "pretrain": {"workdir"},
    "finetune": {"workdir", "from"},
    "catalogue": {"images", "output", "from", "translations"},
    "evaluate": {"model", "data_dir", "output"},
    "export": {"model", "output", "own_texts", "data_dir"},
    "embed": {"model", "output"},
    "search export": {"index", "output"},
    "search index": {"model", "output", "embeddings", "queries", "calibrate"},
    "search query": {"index", "model", "images", "image", "queries", "html", "json"},
    "search delete": {"index"},
    "serve": {"export", "index"},
    "analyse languages": {"data_dir", "output", "model"},
    "analyse doctor": {"model", "data_dir"},
    "analyse errors": {"model", "other", "data_dir", "output"},
    "import": {"weights", "workdir", "onto", "golden", "text", "vocabulary"},
    "convert": {"output", "evaluation_images", "exclude_texts", "translations"},
    "vocabulary": {"output"},
    "features": {"data_dir", "output", "encoder"},
    "translate": {"data_dir", "translations", "output"},
    "emoji": {"output"},
    "shapes": {"output"},
    "count": set(),
    "xla_check": set(),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_settled(command):
    with without_new_flags():
        found = text_flags(command)
        here = HERE.get(command, set())
        assert set(found) - TEXTS == WORKS[command] | here, (command, sorted(found))
        for name in set(found) - TEXTS:
            with pytest.raises(UserError, match="hdfx://b/x: no file system is installed that reads it; expected gs:"):
                check(found[name], "hdfx://b/x")
            with pytest.raises(UserError, match="gs:/b/x: expected a local path, or a store's name with two slashes"):
                check(found[name], "gs:/b/x")
            if name in here:
                with pytest.raises(UserError, match="expected a folder of this machine"):
                    check(found[name], "s3://b/x")
            else:
                check(found[name], "s3://b/x")
            check(found[name], ".")


def text_flags(command):
    """Defines a command's flags and returns those that take texts."""
    before = set(flags.FLAGS)
    COMMANDS[command].define()
    kinds = ("string", "multi string", "comma separated list of strings", "")
    found = {name: flags.FLAGS[name] for name in set(flags.FLAGS) - before if "." not in name}
    return {
        name: flag for name, flag in found.items()
        if not isinstance(flag.default, (bool, int, float)) and not isinstance(flag.parser, flags.EnumParser)
        and flag.flag_type() in kinds
    }  # fmt: skip


def check(flag, value):
    for validator in flag.validators:
        validator.checker([value] if flag.flag_type().startswith("multi") else value)


def test_every_field_is_settled():
    texts = {
        "model", "image_tower.name", "image_tower.precision", "text_tower.name",
        "text_tower.precision", "vocabulary.builder", "vocabulary.layout", "vocabulary.prompt", "vocabulary.sha256",
        "optimizer.name", "optimizer.mode", "train.fused", "data.source", "data.emoji_languages", "data.format",
        "data.text_pairs",
        "data.default_language", "data.read", "evaluation.split", "image_tower.batch_norm_group",
        "image_tower.normalization", "image_tower.resize_mode", "image_tower.interpolation", "image_tower.jpeg",
        "image_tower.padding", "image_tower.activation", "image_tower.pooling", "text_tower.activation", "origin",
        "text_tower.attention", "text_tower.language_branches", "text_tower.norm", "text_tower.pooling",
        "text_tower.recurrent",
    }  # fmt: skip
    found = {name for name, value in fields(base_config()) if isinstance(value, str)}
    known = {*PLACES, *HANDLES, *MODELS, "data.download_directory"}
    assert known <= found and found - texts == known, found - texts - known


@pytest.mark.parametrize("name", ["images", "translations"])
def test_options_of_a_protocol_are_settled(tmp_path, name):
    texts = {option for option, value in default_protocol().items() if isinstance(value, str)}
    assert texts == {"images", "translations"}
    protocol = default_protocol()
    protocol[name] = "hdfx://b/x"
    with pytest.raises(UserError, match="hdfx://b/x: no file system is installed"):
        evaluate_and_report("model", str(tmp_path), protocol=protocol, output=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def fields(config, prefix=""):
    for name, value in config.items():
        yield from fields(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else [(f"{prefix}{name}", value)]


@pytest.mark.parametrize("name", [*PLACES, *HANDLES])
def test_fields_are_refused_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    config = base_config()
    branch, key = name.split(".")
    config[branch][key] = "hdfx://b/x"
    with pytest.raises(UserError, match="hdfx://b/x: no file system is installed"):
        pretrain(config, tmp_path / "w")
    with pytest.raises(UserError, match="hdfx://b/x: no file system is installed"):
        import_into_workdir("bert", "weights", tmp_path / "w", config)
    assert not list(tmp_path.iterdir())
    config[branch][key], config.data.download_directory = "", "s3://b/x"
    with pytest.raises(UserError, match="data.download_directory=s3://b/x: expected a folder of this machine"):
        pretrain(config, tmp_path / "w")


@pytest.mark.parametrize("words", [
    ["convert", "records:hdfx://b/x", "--output=out"],
    ["vocabulary", "records:hdfx://b/x", "--output=out.txt"],
    ["embed", "hdfx://b/x", "--model=.", "--output=out"],
    ["search", "index", "hdfx://b/x", "--model=.", "--output=out"],
    ["shapes", "--output=hdfx://b/x"],
])  # fmt: skip
def test_a_command_that_is_refused_writes_nothing(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert run_here(COMMANDS, *words) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "no file system is installed that reads it" in errors, errors
    assert not list(tmp_path.iterdir())
