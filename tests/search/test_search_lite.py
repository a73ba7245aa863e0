"""Search on a `lite/`: one index for it and the model that it was made of, and no TensorFlow."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
from refusals import assert_refused
from table_data import columns
from toy_data import picture

import mural_tf
from mural_lite.models import encoder_of
from mural_search import catalogue, known_model
from mural_search import runs as commands
from mural_search.index import described, load_index, model_of
from mural_search.queries import Query
from mural_tf.commands.training import CatalogueTrainer

pytest.importorskip("ai_edge_litert", reason="needs LiteRT: pip install -e '.[lite]'")

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITHOUT_TENSORFLOW = """
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "tensorflow_text", "keras", "tf_keras"), None))  # as if not installed
from mural_tf.commands import run
run()
"""


@pytest.fixture(scope="module")
def export(lite_toy):
    return lite_toy / "workdir/export"


@pytest.fixture(scope="module")
def index(export, tmp_path_factory):
    """An index that the workdir's own model made, in TensorFlow."""
    folder = tmp_path_factory.mktemp("index")
    (folder / "pictures").mkdir()
    for number in range(5):
        (folder / f"pictures/{number}.png").write_bytes(picture(number))
    commands.index([str(folder / "pictures")], str(folder / "index"), model=str(export.parent))
    return folder / "index"


def test_one_index_for_the_model_and_its_small_encoders(export, index, tmp_path):
    lite, whole = mural_tf.load(export / "lite"), mural_tf.load(export.parent)
    opened = load_index(index)
    opened.check_model(lite)
    opened.check_model(whole)
    commands.index([str(index.parent / "pictures")], str(tmp_path / "index"), model=str(export / "lite"))
    load_index(tmp_path / "index").check_model(whole)


def test_an_index_goes_on_with_the_encoders_that_made_it(export, index, tmp_path, monkeypatch):
    """Pictures by the export and by its `lite/` have vectors that differ, and never come into one index."""
    monkeypatch.setattr(known_model, "KnownModel", lambda path, recorded, folder: path)
    assert encoder_of(export / "lite").startswith("LiteRT ") and encoder_of(export) == encoder_of(export.parent) == ""
    pictures, small = [str(index.parent / "pictures")], str(export / "lite")
    assert_refused(commands.index, ["was made by", "go on with the encoders"], pictures, str(index), model=small)
    assert known_model.known_model(str(export), index) == str(export)
    assert known_model.known_model(str(export), tmp_path / "new") == export / "lite"
    commands.index(pictures, str(tmp_path / "index"), model=small)
    for model in (str(export), small):
        assert str(known_model.known_model(model, tmp_path / "index")) == small
    recorded = model_of(tmp_path / "index")
    for encoder, is_kept in ((recorded.encoder, True), ("LiteRT 1+2", False)):  # of the same model, in another kind
        asked = types.SimpleNamespace(fingerprint=dataclasses.replace(recorded, encoder=encoder), is_open=False)
        assert catalogue._is_index_of(tmp_path / "index", asked) == is_kept
    catalogue._empty(tmp_path / "index", asked)
    assert model_of(tmp_path / "index") is None


def test_captions_are_read_alike(export):
    """By the small encoders' pieces and by the graph's tokenizer."""
    trainer = CatalogueTrainer("", "", None)
    lite = mural_tf.load(export / "lite")
    for texts in (["w1 w2", "жжж w3"], ["thing " * 99, "w1"], ["", "w1"]):
        assert tuple(lite.reading(texts)) == pytest.approx(tuple(trainer.reading(export.parent, texts))), texts


def test_a_table_is_indexed_and_followed_without_tensorflow(export, tmp_path):
    make = functools.partial(columns, ["id", "image", "title_en", "price"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*rows):
        ids, names, titles, prices = zip(*rows)
        table = make(ids, names, titles, prices, names=names)(tmp_path)
        where = [str(table), f"--output={tmp_path}/out", f"--from={export}", "--train=no"]
        command = [sys.executable, "-c", WITHOUT_TENSORFLOW, "catalogue", *where]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout, "Loading" in done.stderr

    rows = [(f"S{i}", f"p{i}.jpg", f"thing w{i}", "1.50") for i in range(3)]
    printed, is_loaded = run(*rows)
    assert "3 images in" in printed and "lite at step 1" in printed and is_loaded
    assert not run(*rows)[1]
    printed, is_loaded = run(*rows, ("S3", "p3.jpg", "thing w3", "1.50"))
    assert "1 new, 3 as before" in printed and is_loaded
    assert described(tmp_path / "out/index")["product"] == "id"  # also where every product has one picture


def test_a_question_needs_no_tensorflow(export, index):
    """The index was made by the workdir; its export's lite/ is asked, by the export's name."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, "search", "query", "thing w1", f"--index={index}", "--json=-"]
    done, refused = (
        subprocess.run([*command, f"--model={model}"], capture_output=True, text=True, env=environment)
        for model in (export, export.parent)
    )
    assert done.returncode == 0, done.stderr
    hits = json.loads(done.stdout)["results"][0]["hits"]
    (expected,) = commands.query(str(index), [Query("thing w1")], model=str(export), top=10)
    assert [hit["name"] for hit in hits] == [hit.name for hit in expected.hits]
    assert refused.returncode == 1 and "needs TensorFlow, which is not installed here" in refused.stderr
    assert "Traceback" not in refused.stderr
