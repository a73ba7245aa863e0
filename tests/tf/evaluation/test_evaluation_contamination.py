"""Warnings where the training data's record names a benchmark's images."""

import json
import types

import pytest

from mural_lite.config import base_config
from mural_tf.evaluation.benchmarks import BENCHMARKS, contamination_notes


def model(folder, sources=(), name="converted", path=""):
    (folder / "dataset.json").write_text(json.dumps({"name": name, "sources": list(sources)}))
    config = base_config()
    config.data.directory = str(folder)
    return types.SimpleNamespace(config=config, path=path)


def notes(benchmark, embedder, folder, split="test"):
    return contamination_notes(benchmark, BENCHMARKS[benchmark].image_sources, split, folder, embedder)


COCO_TRAIN = {"kind": "coco", "split": "train", "files": [["/x/dataset_coco.json", 9]]}


@pytest.mark.parametrize(
    "source, contaminated, clean",
    [
        (COCO_TRAIN, ["xtd", "coco_cn"], ["coco", "cxc", "multi30k", "xm3600"]),
        ({**COCO_TRAIN, "split": ["train", "restval"]}, ["xtd", "coco", "cxc"], ["multi30k"]),
        ({"kind": "coco", "files": [["/x/captions_train2014.json", 9]]}, ["xtd"], ["coco"]),
        ({"kind": "coco", "files": [["/x/captions_val2014.json", 9]]}, ["coco", "cxc", "xtd"], ["flickr30k"]),
        ({"kind": "multi30k", "split": "train", "files": []}, [], ["multi30k", "flickr30k", "xtd"]),
        ({"kind": "flickr30k", "files": [["/x/results_20130124.token", 9]]}, ["multi30k", "flickr30k"], ["xtd"]),
        ({"kind": "tsv", "files": [["/x/cc12m.tsv", 9]]}, [], ["xtd", "coco", "multi30k", "xm3600", "wit"]),
    ],
)
def test_sources_and_splits(tmp_path, source, contaminated, clean):
    embedder = model(tmp_path, [source])
    for benchmark in contaminated:
        found = notes(benchmark, embedder, tmp_path / "elsewhere")
        assert found and found[0].startswith("CONTAMINATED"), benchmark
    for benchmark in clean:
        assert not notes(benchmark, embedder, tmp_path / "elsewhere"), benchmark


def test_mscoco_part_of_multi30k_is_of_train2014(tmp_path):
    embedder = model(tmp_path, [COCO_TRAIN])
    assert notes("multi30k", embedder, tmp_path / "x", split="test_2017_mscoco")


def test_evaluating_on_the_training_split_itself(tmp_path):
    embedder = model(tmp_path)
    assert "this very split" in notes("retrieval", embedder, tmp_path, split="train")[0]
    assert not notes("retrieval", embedder, tmp_path, split="test")


def test_sources_of_a_mixture_are_the_training_data_and_the_evaluated_folder_is_not(tmp_path):
    evaluated, captions = tmp_path / "evaluated", tmp_path / "captions"
    for folder, sources in ((evaluated, []), (captions, [COCO_TRAIN])):
        folder.mkdir()
        embedder = model(folder, sources)
    embedder.config.data.directory = str(evaluated)
    embedder.config.data.sources = {"web": {"directory": str(captions)}}
    assert notes("xtd", embedder, evaluated)
    assert "this very split" in notes("retrieval", embedder, captions, split="train")[0]
    assert not notes("retrieval", embedder, evaluated, split="train")


def test_model_card_of_an_export_is_read(tmp_path):
    export, data = tmp_path / "export", tmp_path / "data"
    export.mkdir()
    data.mkdir()
    (export / "model_card.json").write_text(json.dumps({"training_data": {"name": "x", "sources": [COCO_TRAIN]}}))
    embedder = model(data, path=str(export))
    (data / "dataset.json").unlink()  # the data is no longer there
    assert notes("xtd", embedder, tmp_path)


def test_model_without_a_record_gives_no_warning(tmp_path):
    assert not notes("xtd", types.SimpleNamespace(), tmp_path)
