"""`--config=FILE.py[:ARGUMENTS]` and its overrides `--config.x.y=…`: reading, checking, finding configurations."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from mural_lite.command_line import BadFlagFile
from mural_lite.config import base_config
from mural_lite.errors import UserError

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
flags.disclaim_key_flags()  # flags that are defined here belong to the module that asks for them
SHOWN = 10  # the most names in a message


def define_config(
    help_text: str = "A configuration by its name or file; --config.x.y=… overrides a field.",
    required: bool = True,
    default: str | None = None,
):
    """Defines `--config=FILE.py[:ARGUMENTS]` and its overrides `--config.x.y=…`, and returns the flag's holder.

    `--config.model=NAME` (a method, or "package.module:Class" of a method from elsewhere) brings the method's fields,
    below `config.method`, so that other flags may override them.

    Args:
      help_text: the flag's line in the help.
      required: whether a command without `--config` is an error.
      default: the name or file of the configuration without `--config`.
    """
    holder = config_flags.DEFINE_config_file("config", None, help_text)
    flags.FLAGS["config"].parser = _ConfigParser(flags.FLAGS["config"].parser)
    if default:
        flags.FLAGS.set_default("config", default)
    if required:
        flags.mark_flag_as_required("config")
    return holder


class _ConfigParser(flags.ArgumentParser):
    """Reads a configuration and mounts the method that the command line names.

    ml_collections looks up the field of each `--config.x` right after `parse`, so the method's fields must be there.
    """

    def __init__(self, reader: flags.ArgumentParser):
        self._reader = reader

    def parse(self, path: str) -> ConfigDict:
        """Returns the configuration of a file; raises `BadFlagFile` with the reason as its cause."""
        try:
            _check_fields(sys.argv[1:])
            config = read_config(find_config(path))
            _mount_method(config, sys.argv[1:])
        except Exception as error:  # absl would print its own message in place of ours
            raise BadFlagFile from error
        config.lock()
        return config

    def flag_type(self) -> str:
        return self._reader.flag_type()


def _mount_method(config: ConfigDict, arguments: Sequence[str]) -> None:
    """Mounts the method of --config.model, or the configuration's own where a --config.method.… overrides a field.

    Without both, the configuration does not change. `arguments` are the command line's.
    """
    name = last_value("config.model", arguments)
    if not name and any(argument.lstrip("-").startswith("config.method.") for argument in arguments):
        name = config.model  # a file need not mount a method whose fields it leaves at their defaults
    if name and (name != config.model or not config.method):
        from mural_tf.models import mount  # imports TensorFlow: only where the command line names a method

        with config.unlocked():
            mount(config, name)


def _check_fields(arguments: Sequence[str]) -> None:
    """Raises `UserError` for a `--config.x.y` that no configuration has, before methods import TensorFlow."""
    all_fields = base_config().to_dict()
    for argument in arguments:
        if re.match("--?config[.]", argument):
            name, _, _ = argument.lstrip("-").partition("=")
            _check_field(name, all_fields)


def _check_field(name: str, fields: Mapping) -> None:
    """Raises `UserError` if `fields`, {name: value or branch}, lack the field of a flag "config.x.y"."""
    _, *parts = name.split(".")  # without "config"
    for part in parts:
        if part == "method" or not isinstance(fields, Mapping) or not fields:
            return  # a method's own field, or an entry of a field that takes any entries: checked later
        if part not in fields:
            similar_fields = difflib.get_close_matches(part, fields, n=1)
            if similar_fields:
                hint = f"; did you mean {similar_fields[0]!r}?"
            else:
                hint = f": expected {', '.join(fields)}."
            raise UserError(f"--{name}: there is no field {part!r}{hint}")
        fields = fields[part]


def read_config(path: str) -> ConfigDict:
    """Runs FILE.py of "FILE.py[:ARGUMENTS]", and returns the result of its `get_config`, called with the arguments.

    They are one string. `find_config` finds a name's file. Raises `UserError` for arguments that `get_config` lacks,
    and for a path that is not a file whose name ends in .py.
    """
    file, colon, arguments = path.partition(":")
    spec = importlib.util.spec_from_file_location("config", file)
    if spec is None or not os.path.isfile(file):
        raise UserError(f"--config={path}: expected an existing Python file, whose name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if colon and not inspect.signature(module.get_config).parameters:
        raise UserError(f"--config={path}: this configuration takes no arguments; give --config={file}.")
    if colon:
        return module.get_config(arguments)
    return module.get_config()


def find_config(path: str) -> str:
    """Returns "FILE.py[:ARGUMENTS]" for a value of `--config`; raises `UserError` where there is no such file.

    The value is a file, or else the name of an installed configuration: "emoji_mural" or "configs/emoji_mural.py".
    """
    file, _, _ = path.partition(":")
    if os.path.exists(file):
        return path
    installed = CONFIGS / f"{pathlib.PurePath(file.removeprefix('configs/')).with_suffix('')}.py"
    if installed.exists():
        return str(installed) + path.removeprefix(file)
    names = sorted(config.stem for config in CONFIGS.glob("[!_]*.py"))
    similar_names = difflib.get_close_matches(pathlib.PurePath(file).stem, names, n=1)
    if similar_names:
        hint = f"; did you mean {similar_names[0]}?"
    else:
        hint = f". They lie in {CONFIGS}: {', '.join(names[:SHOWN])}, …"
    raise UserError(f"--config={path}: there is no such file, and no installed configuration of this name{hint}")


def given_fields() -> frozenset[str]:
    """Returns the fields that the command line overrides: "x.y" for `--config.x.y=…`; outside commands no fields."""
    if "config" not in flags.FLAGS:
        return frozenset()
    return frozenset(config_flags.get_override_values(flags.FLAGS["config"]))


def last_value(flag: str, arguments: Sequence[str]) -> str:
    """Returns the last value of a flag on a command line, in --flag=value or --flag value; "" without the flag."""
    last = ""
    for argument, next_argument in zip(arguments, [*arguments[1:], ""]):
        name, equals, value = argument.partition("=")
        if name in (f"--{flag}", f"-{flag}"):
            last = value if equals else next_argument
    return last
