"""config.json of workdirs and exports: a resolved configuration as JSON, written and read back, every value checked."""

from __future__ import annotations

import copy
import difflib
import json
import os
import pathlib

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.files import as_path, check_json, read_json, write_whole

# {branch: {field: the constant that replaced it}} of fields of earlier commits, which stored configurations still hold.
# `ANY`: no trained model depends on the field, such as the number of checkpoints to keep.
ANY = None
FORMER: dict[str, dict] = {
    "data": dict(download_directory=ANY, emoji_held_out_names=ANY),
    "evaluation": dict(batch_size=ANY),
    "optimizer": dict(beta_1=0.9, image_tower_rate=1.0),
    "text_tower": dict(recurrent="lstm"),
    "train": dict(compiled_lengths=ANY, keep_checkpoints=ANY, max_skipped_steps=ANY),
}
_OF_STEPS = dict.fromkeys(("cached", "loss", "softmax_temperature", "trained"), ANY)
FORMER_OF_METHODS: dict[str, dict] = {
    "globetrotter": dict(alpha_margin=0.4, cloze_share=0.15, view_anchors="both"),
    "linear": _OF_STEPS,
    "mule": dict(word_vectors_weight=5e-7),
    "neighbours": dict(_OF_STEPS, heads_of=ANY, student_hidden=0),
    "translation_distillation": dict(softmax_temperature=0.05),
}
JOINED = {  # (branch, field): the two fields of earlier commits that it holds
    ("optimizer", "decay"): ("decay_rate", "decay_steps"),
    ("method", "factors"): ("sentence_factor", "structure_factor"),
}


def save_config(config: ConfigDict, path: str | pathlib.Path) -> None:
    """Writes the resolved configuration as JSON."""
    write_whole(path, json.dumps(config.to_dict(), indent=2, default=list) + "\n")


def load_config(path: str | os.PathLike) -> ConfigDict:
    """Returns the configuration in a file that `save_config` wrote; `method` has the fields that the file gives it.

    Raises `UserError` for a missing or damaged file, an unknown field, or a value of another type than its field.
    """
    path = as_path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: {path.parent} is not a workdir or an export.")
    return parse_config(read_json(path), path)


def parse_config(values: dict, where: object) -> ConfigDict:
    """Returns the configuration of {branch: {field: value}}; raises as `load_config`, with `where` as the file."""
    config = base_config()
    config.evaluation.groups = ConfigDict()  # so that only the file's groups remain, without the defaults
    _update(config, _without_former(values, where), "", where)
    return config


def _without_former(values: dict, where: object) -> dict:
    """Returns a copy of the values with only today's fields; raises `UserError` for a former field of another value."""
    joined = _join_fields(values)
    former_fields = {**FORMER, "method": FORMER_OF_METHODS.get(str(joined.get("model")), {})}
    for branch, former in former_fields.items():
        if not isinstance(joined.get(branch), dict):
            continue
        for name, constant in former.items():
            value = joined[branch].pop(name, constant)
            if constant is not ANY and value != constant:
                raise UserError(
                    f"{branch}.{name}={value!r} in {where}: the field is gone and always {constant!r}; use the commit "
                    "that wrote the file."
                )
    return joined


def _join_fields(values: dict) -> dict:
    """Returns a copy of the values in which fields of earlier commits are the fields that they became.

    These are the pairs of `JOINED`, the two fields that became `data.emoji`, and `text_tower.pooler`.
    """
    values = copy.deepcopy(values)
    for (branch, field), former_names in JOINED.items():
        fields = values.get(branch)
        if isinstance(fields, dict) and all(name in fields for name in former_names):
            fields[field] = [fields.pop(name) for name in former_names]
    data = values.get("data")
    if isinstance(data, dict) and "emoji_languages" in data:
        _join_emoji(data)
    tower = values.get("text_tower")
    if isinstance(tower, dict) and "pooler" in tower:
        _join_pooler(tower)
    return values


def _join_emoji(data: dict) -> None:
    """Replaces `emoji_languages` and the bool `emoji_locale_names` by `emoji`, "core" or "core_names" for "core".

    The bool said whether names of languages and places belong to the data.
    """
    languages = data.pop("emoji_languages")
    with_locale_names = data.pop("emoji_locale_names", True)
    data["emoji"] = languages if with_locale_names else f"{languages}_names"


def _join_pooler(tower: dict) -> None:
    """Replaces the bool `pooler` of a text tower by `pooler_size`, the pooler's width, 0 without a pooler.

    With `pooler: true`, a `pooler_size` that is 0 or missing meant the width of the tower.
    """
    has_pooler = tower.pop("pooler")
    if has_pooler:
        tower["pooler_size"] = tower.get("pooler_size") or tower.get("hidden_size")
    else:
        tower["pooler_size"] = 0


def _update(config: ConfigDict, values: dict, prefix: str, path: object) -> None:
    """Sets a branch's fields, whose full names begin with `prefix`, to a file's values; raises as `load_config`."""
    for key, value in values.items():
        _check_field(config, key, value, prefix, path)
        if isinstance(value, dict) and key in config:
            _update(config[key], value, f"{prefix}{key}.", path)
        else:
            config[key] = tuple(value) if isinstance(value, list) else value


def _check_field(config: ConfigDict, key: str, value: object, prefix: str, path: object) -> None:
    """Raises `UserError` if the branch `config` has no field `key`, or `value` is not of the field's type.

    Any key may be in `evaluation.groups` (lists of texts), `data.sources` (objects) and `method`, which checks its own.
    """
    name = f"{prefix}{key}"
    if prefix == "evaluation.groups.":
        check_json(value, list[str], name, path)
    elif prefix == "data.sources.":  # `training_sources` checks the values
        check_json(value, dict, name, path)
    elif key in config:
        check_json(value, field_kind(config[key]), name, path)
    elif prefix != "method.":
        near = difflib.get_close_matches(key, list(config.keys()), n=1)
        hint = f"; did you mean {prefix}{near[0]}?" if near else "."
        raise UserError(f"Unknown configuration key {name} in {path}{hint}")


def field_kind(default: object) -> type:
    """Returns the JSON type (of `files.json_field`) of a field with this default: `list[float]` for (0.5, 0.5)."""
    if isinstance(default, ConfigDict):
        return dict
    if isinstance(default, (tuple, list)):
        item_type = type(default[0]) if default else str
        return list[item_type]
    return type(default)
