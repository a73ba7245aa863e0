"""`benchmarks.photographs`: the lines of its tables, and going on where it stopped."""

import csv
import types

import pytest

from benchmarks import photographs
from mural_lite.errors import UserError
from mural_tf.evaluation.retrieval import Evaluation

XTD = photographs.DATA_SETS[-1]


def evaluation(name, metrics, **options):
    languages = dict.fromkeys(key.split("/")[1] for key in metrics)
    return Evaluation(name, "test", "protocol", metrics, {language: {} for language in languages}, **options)


def xtd_texts(first, second):
    metrics = {}
    for language, number in (("de", first), ("en", second)):
        metrics |= {f"xtd_texts/{language}/to_others/recall@1": number, f"xtd_texts/{language}/mean_recall": number}
    return evaluation("xtd_texts", metrics)


def test_cells_are_the_groups_mean_and_the_languages():
    cells = XTD.cells(xtd_texts(10.0, 20.5))
    assert cells["mean of 2, R@1 to others"] == "15.25" and cells["en, mean recall"] == "20.50"
    assert list(cells)[0].startswith("mean of 2") and len(cells) == 6


def test_published_lines_have_no_commit():
    made = evaluation("babel_imagenet", {"babel_imagenet/de/accuracy@1": 1.0})
    made.groups = {photographs.MANY_CLASSES: ("de",)}
    made.published = {"de": {"rival": 50.0}, photographs.MANY_CLASSES: {"rival": 40.0}}
    (line,) = photographs.published_rows(made)
    assert line["model"] == "rival (published)" and line["commit"] == ""
    assert (line["mean of 1, accuracy@1"], line["de, accuracy@1"]) == ("40.00", "50.00")


def test_lines_that_a_table_has_are_kept(tmp_path, monkeypatch):
    measured = []

    def measure(data_set, embedder, folder):
        measured.append((embedder.path, embedder.config.seed))
        return xtd_texts(*([float(len(measured))] * 2))

    def load(path):
        return types.SimpleNamespace(path=path, config=types.SimpleNamespace(seed=int(path[-1])))

    monkeypatch.setattr(photographs, "measure", measure)
    monkeypatch.setattr(photographs.mural_tf, "load", load)
    monkeypatch.setattr(photographs, "commit", lambda: "abc")
    for models in (["MURAL=run0"], ["MURAL=run0", "MURAL=run1", "ALIGN=run0"]):
        photographs.measure_models(models, tmp_path, tmp_path, ["xtd_texts"])
    assert measured == [("run0", 0), ("run1", 1), ("run0", 0)]
    with open(tmp_path / "photographs_xtd_texts.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kept = [(row["model"], row["seed"], row["commit"], row["de, mean recall"]) for row in rows]
    assert kept == [("MURAL", "0", "abc", "1.00"), ("MURAL", "1", "abc", "2.00"), ("ALIGN", "0", "abc", "3.00")]


def test_models_need_names(tmp_path):
    with pytest.raises(UserError, match="--models=workdirs/emoji: expected NAME=MODEL"):
        photographs.measure_models(["workdirs/emoji"], tmp_path, tmp_path, [])
