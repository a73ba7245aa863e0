"""config.json of earlier commits: fields that are constants now, or that became one field with another."""

import json

import pytest

from mural_lite.config import base_config
from mural_lite.config_file import FORMER, FORMER_OF_METHODS, JOINED, parse_config
from mural_lite.errors import UserError


def stored(model="mural", **branches):
    values = {**base_config().to_dict(), "model": model}
    for branch, fields in branches.items():
        values[branch] = {**values[branch], **fields}
    return json.loads(json.dumps(values))


@pytest.mark.parametrize("model", FORMER_OF_METHODS)
def test_fields_that_are_constants_now_are_left_out(model):
    values = stored(model, **FORMER, method=FORMER_OF_METHODS[model])
    expected = stored(model)
    assert parse_config(values, "config.json").to_dict() == parse_config(expected, "config.json").to_dict()


@pytest.mark.parametrize("branch,field,value", [("optimizer", "beta_1", 0.8), ("text_tower", "recurrent", "gru")])
def test_another_value_is_refused(branch, field, value):
    with pytest.raises(UserError, match=f"{branch}.{field}={value!r} in config.json: the field is gone and always"):
        parse_config(stored(**{branch: {field: value}}), "config.json")


@pytest.mark.parametrize("branch,field", JOINED)
def test_two_fields_become_one(branch, field):
    first, second = JOINED[branch, field]
    assert parse_config(stored(**{branch: {first: 0.5, second: 3}}), "config.json")[branch][field] == (0.5, 3)


@pytest.mark.parametrize("pooler,size,expected", [(False, 0, 0), (False, 512, 0), (True, 0, 768), (True, 512, 512)])
def test_a_pooler_is_as_wide_as_the_tower_or_as_it_was_said(pooler, size, expected):
    config = parse_config(stored(text_tower=dict(pooler=pooler, pooler_size=size)), "config.json")
    assert config.text_tower.pooler_size == expected and "pooler" not in config.text_tower


@pytest.mark.parametrize("languages,with_names,expected", [("all", True, "all"), ("core", False, "core_names")])
def test_the_build_of_the_emoji_benchmark_keeps_its_name(languages, with_names, expected):
    values = stored(data=dict(emoji_languages=languages, emoji_locale_names=with_names, emoji_held_out_names=True))
    del values["data"]["emoji"]
    assert parse_config(values, "config.json").data.emoji == expected
