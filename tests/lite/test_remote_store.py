"""Models, exports, indexes, data sets and pages in an object store in another process, by what users call."""

import os
import pathlib
import subprocess
import sys

import pytest
import store_program
from object_store import object_store, stored
from toy_export import toy_export


@pytest.mark.slow
def test_everything_lies_in_a_store(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_io", reason="s3:// needs tensorflow-io")
    export = toy_export(tmp_path / "toy").path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    with object_store(monkeypatch) as client:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path / "temporary")}
        done = subprocess.run(
            [sys.executable, store_program.__file__, str(export)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0 and "All of it works." in done.stdout, done.stdout + done.stderr
        found = {name: stored(client, name) for name in ("models", "indexes", "results", "pages", "maps", "features")}
    exported = {path.relative_to(export).as_posix() for path in export.rglob("*") if path.is_file()}
    assert {name.removeprefix("export/") for name in found["models"]} == exported
    assert set(found["indexes"]) == {
        f"of shapes/{name}" for name in ("index.sqlite", "vectors.npy", "captions.npy", "skipped.tsv")
    }
    assert b'"path": "s3://bucket/models/export"' in found["indexes"]["of shapes/index.sqlite"]
    results = {"metrics.jsonl", "evaluation/retrieval-test.json", "evaluation/retrieval-dev.json"}
    assert set(found["results"]) == results and found["results"]["metrics.jsonl"].count(b"\n") == 2
    assert set(found["pages"]) == {"a.html", "a.json", "errors.html"}
    assert set(found["maps"]) == {"similarity.csv", "map.csv", "languages.png", "languages.svg"}
    assert "dataset.json" in found["features"] and any(name.endswith(".tfrecord") for name in found["features"])
    assert not [path for path in tmp_path.iterdir() if path.name not in ("toy", "temporary")]
    assert not list(pathlib.Path(tmp_path, "temporary").glob("mural-tf-*"))
