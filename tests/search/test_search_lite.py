"""Search on a `lite/`: one index for it and the model that it was made of, and no TensorFlow."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from toy_data import picture

import mural_tf
from mural_search import runs as commands
from mural_search.index import load_index
from mural_search.queries import Query

pytest.importorskip("ai_edge_litert", reason="needs LiteRT: pip install -e '.[lite]'")

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


QUERY = """
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "tensorflow_text", "keras", "tf_keras"), None))  # as if not installed
from mural_tf.commands import run
run()
"""


def test_a_question_needs_no_tensorflow(export, index):
    """The index was made by the workdir; its export's lite/ is asked, by the export's name."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", QUERY, "search", "query", "thing w1", f"--index={index}", "--json=-"]
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
