"""Stored configurations do not choose code: classes to import, TF-Hub modules to fetch."""

import pathlib
import sys

import pytest

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.trust import check_stored, names_code, settle_handles, trusting

PATH = pathlib.Path("somewhere/config.json")
CLASS, HANDLE = "nobody_s.method:Own", "https://example.org/encoder/1"


def stored(model="mural", handle=""):
    config = base_config()
    config.model = model
    if handle:
        config.text_tower.update(dict(name="hub", handle=handle))
    return config


@pytest.mark.parametrize("config, what", [(stored(CLASS), f"model='{CLASS}'"),
                                          (stored(handle=HANDLE), f"text_tower.handle='{HANDLE}'")])  # fmt: skip
def test_code_from_elsewhere_needs_trust(config, what):
    with pytest.raises(UserError) as error:
        check_stored(config, PATH)
    assert f"{PATH} names {what}" in str(error.value) and "--trust" in str(error.value)
    with trusting():
        check_stored(config, PATH)
        with trusting(False):  # a call within does not take it back
            check_stored(config, PATH)
    with pytest.raises(UserError), trusting(False):
        check_stored(config, PATH)
    check_stored(config, PATH, given=config)  # the user's own configuration names it too
    with pytest.raises(UserError):
        check_stored(config, PATH, given=stored("nobody_s.method:Another", HANDLE + "0"))


def test_what_comes_with_the_package_or_is_not_used_needs_none():
    config = stored("siglip")
    config.text_tower.handle = HANDLE  # of a tower that is no TF-Hub module
    check_stored(config, PATH)
    assert not names_code(config)


def test_a_module_that_is_imported_already_runs_nothing_more(monkeypatch):
    monkeypatch.setitem(sys.modules, "nobody_s.method", object())
    check_stored(stored(CLASS), PATH)
    assert names_code(stored(CLASS))  # for the next process


def test_what_a_user_names_is_stored_as_a_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = stored(handle="modules/labse")
    check_stored(config, PATH, given=config)
    settle_handles(config)
    assert config.text_tower.handle == str(tmp_path / "modules/labse") and config.image_tower.handle == ""
    check_stored(config, PATH)
    for handle in ("", "https://tfhub.dev/google/LaBSE/2", "/data/labse"):
        config.text_tower.handle = handle
        settle_handles(config)
        assert config.text_tower.handle == handle
