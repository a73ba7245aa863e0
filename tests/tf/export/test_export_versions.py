"""Versions of an export: one that appears or is killed on its way is passed over; in a store, and on its way here."""

import json
import pathlib
import shutil

import fsspec
import numpy as np
import pytest

import mural_tf
from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.versions import models_of, newest_description, newest_version
from mural_tf.export import versions as published
from mural_tf.export.versions import add_version, choose_number


def make(folder, number, content="x"):
    """The files of a version as an export writes them, in small."""
    names = [f"{name}/{number}/{file}" for name in ("image_encoder", "text_encoder")
             for file in ("saved_model.pb", "variables/variables.index")]  # fmt: skip
    names += [f"versions/{number}/{file}" for file in ("config.json", "hub/text_encoder/saved_model.pb")]
    for name in [*names, "serving/models.config"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "versions" / str(number) / "model_card.json").write_text(json.dumps({"version": number}))


def test_a_version_that_is_killed_while_it_appears_is_passed_over(tmp_path, monkeypatch):
    export, calls = tmp_path / "export", []
    make(tmp_path / "1", 1)
    add_version(tmp_path / "1", export, 1)
    steps = ("publish", "write_whole")
    originals = {name: getattr(published, name) for name in steps}
    for killed_at in range(4):  # versions/, two encoders, the card
        number = int(choose_number(export, "auto"))
        assert number == killed_at + 2 - (killed_at > 0 and not (export / f"versions/{killed_at + 1}").exists())
        calls.clear()

        def step(name, *arguments, killed_at=killed_at):
            calls.append(name)
            if len(calls) > killed_at:
                raise KeyboardInterrupt
            originals[name](*arguments)

        for name in steps:
            monkeypatch.setattr(published, name, lambda *arguments, name=name: step(name, *arguments))
        make(tmp_path / f"killed-{killed_at}", number)
        with pytest.raises(KeyboardInterrupt):
            add_version(tmp_path / f"killed-{killed_at}", export, number)
        assert models_of(export) == {"image_encoder": [1], "text_encoder": [1]}
        assert newest_version(export, ("image_encoder", "text_encoder")) == 1
        assert newest_description(export) == export / "versions/1"
        monkeypatch.undo()
    make(tmp_path / "again", number, "new")
    add_version(tmp_path / "again", export, number)  # the same number again
    assert models_of(export)["text_encoder"] == [1, number]
    assert (export / f"text_encoder/{number}/variables/variables.index").read_text() == "new"
    with pytest.raises(UserError, match=f"has a version {number} already, and a served version never changes"):
        choose_number(export, str(number))
    with pytest.raises(UserError, match="expected auto or a number from 1 on"):
        choose_number(export, "next")


def test_a_store_gets_the_graphs_and_the_card_last(tmp_path, monkeypatch):
    fsspec.filesystem("memory").store.clear()
    store, order = as_path("memory://bucket/export"), []
    copy = published.copy_file
    monkeypatch.setattr(published, "copy_file", lambda a, b: (order.append(str(b)), copy(a, b))[1])
    for number in (1, 2):
        make(tmp_path / str(number), number, str(number))
        add_version(tmp_path / str(number), store, number)
        assert (store / "serving/models.config").read_text() == "1"  # the first version's, which all versions share
        assert [name.split("/")[-1] for name in order[-2:]] == ["saved_model.pb"] * 2
        card = json.loads((store / f"versions/{number}/model_card.json").read_text())
        assert card == {"version": number} and not any("model_card" in name for name in order)
        assert models_of(store)["text_encoder"] == list(range(1, number + 1))
        assert newest_description(store) == store / f"versions/{number}"
        order.clear()


def test_an_export_with_versions_loads_as_its_newest(export, tmp_path):
    folder = tmp_path / "export"
    shutil.copytree(export, folder)  # version 1, described at the top
    for name in ("image_encoder", "text_encoder"):
        shutil.copytree(export / name / "1", folder / name / "3")
    (folder / "versions/3").mkdir(parents=True)
    for name in ("config.json", "vocabulary.txt", "model_card.json"):
        assert name == "config.json" or newest_version(folder, ("image_encoder", "text_encoder")) == 1  # no card yet
        shutil.copy(export / name, folder / "versions/3" / name)
    (folder / "config.json").unlink()  # of the first
    embedder = mural_tf.load(folder)
    assert np.isfinite(embedder.encode_text("thing")).all() and choose_number(folder, "auto") == 4
    shutil.rmtree(folder / "image_encoder")
    with pytest.raises(UserError, match="image_encoder has no version: expected a SavedModel in .*image_encoder/1"):
        newest_version(folder, ("image_encoder", "text_encoder"))


def test_a_version_that_appears_during_a_look_is_not_complete(tmp_path, monkeypatch):
    """Taken for one without a card, it was served before the card came, and taken back until then."""
    look, export = pathlib.Path.glob, tmp_path / "export"
    make(tmp_path / "1", 1)
    add_version(tmp_path / "1", export, 1)

    def appears(folder, pattern, **options):
        found = list(look(folder, pattern, **options))
        if pattern.startswith("versions") and not (export / "versions/2").exists():
            make(export, 2)
            (export / "versions/2/model_card.json").unlink()
        return iter(found)

    monkeypatch.setattr(pathlib.Path, "glob", appears)
    assert models_of(export) == {"image_encoder": [1], "text_encoder": [1]}
    assert (export / "text_encoder/2/saved_model.pb").exists()
