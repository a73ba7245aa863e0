"""config.json of workdirs and exports: a resolved configuration as JSON, written and read back, every value checked."""

from __future__ import annotations

import difflib
import json
import os
import pathlib

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.files import as_path, check_json, read_json, write_whole


def save_config(config: ConfigDict, path: str | pathlib.Path) -> None:
    """Writes the resolved configuration as JSON."""
    write_whole(path, json.dumps(config.to_dict(), indent=2, default=list) + "\n")


def load_config(path: str | os.PathLike) -> ConfigDict:
    """Reads what `save_config` wrote; `method` holds what the file has.

    Raises `UserError` for a missing, broken or foreign file, or a value of another type than its field.
    """
    path = as_path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: {path.parent} is not a workdir or an export.")
    return parse_config(read_json(path), path)


def parse_config(values: dict, where: object) -> ConfigDict:
    """Returns the configuration that `save_config` wrote; raises as `load_config`, with `where` as the source."""
    config = base_config()
    config.evaluation.groups = ConfigDict()  # the given groups, in place of the defaults
    _update(config, values, "", where)
    return config


def _update(config: ConfigDict, values: dict, prefix: str, path: object) -> None:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if prefix == "evaluation.groups.":
            check_json(value, list[str], name, path)
        elif prefix == "data.sources.":  # whose values `training_sources` checks
            check_json(value, dict, name, path)
        elif key in config:
            check_json(value, field_kind(config[key]), name, path)
        elif prefix != "method.":  # whose keys are the method's
            near = difflib.get_close_matches(key, list(config.keys()), n=1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else "."
            raise UserError(f"Unknown configuration key {name} in {path}{hint}")
        if isinstance(value, dict) and key in config:
            _update(config[key], value, f"{name}.", path)
        else:
            config[key] = tuple(value) if isinstance(value, list) else value


def field_kind(default: object) -> type:
    """Returns the kind of JSON value (`files.json_field`) that a field with this default is stored as."""
    if isinstance(default, ConfigDict):
        return dict
    if isinstance(default, (tuple, list)):
        return list[type(default[0]) if default else str]
    return type(default)
