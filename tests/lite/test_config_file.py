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
