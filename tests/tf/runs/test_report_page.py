"""The page with which a run ends: what it shows, that it needs nothing outside it, and odd numbers and names."""

import json
import math
import re
import types

import numpy as np
import pytest
from ml_collections import ConfigDict
from page_reader import Page
from search_data import ColorEmbedder, png
from toy_data import toy_config, write_toy_data

from mural_lite.config_file import save_config
from mural_tf.data import records
from mural_tf.evaluation.retrieval import Evaluation
from mural_tf.runs import finish, report_page
from mural_tf.runs.line_chart import line_chart, ticks
from mural_tf.runs.report_page import find_examples, training_seconds, write_report_page

HOSTILE = "<script>alert('x')</script>"
CAPTIONS = {"red": (250, 0, 0), "rot": (200, 90, 0), "green": (0, 250, 0), HOSTILE: (0, 0, 250)}


def evaluation(name="retrieval", languages=("de", "en", "sw"), value=20.0):
    numbers = {f"{name}/{language}/mean_recall": value + 10 * i for i, language in enumerate(languages)}
    numbers.update({f"{name}/{language}/text_to_image/recall@1": 1.0 for language in languages})
    numbers.update({f"{name}/well-resourced/mean_recall": value, f"{name}/all/mean_recall": value + 5})
    sizes = {language: {"images": 3, "captions": 3} for language in languages}
    groups, colors = {"well-resourced": ("de", "en")}, [png(color) for color in CAPTIONS.values()]
    pictures = ColorEmbedder().encode_image(colors), np.arange(1, 5)  # picture 0 does not decode
    return Evaluation(name, "test", "every caption counted", numbers, sizes, groups, [], pictures=pictures)


@pytest.fixture
def run(tmp_path):
    """A workdir with rows of a run, and its configuration."""
    config = toy_config(tmp_path / "data")
    shown = [records.ImageTextRecord(f"i{k}", png(color), [text] * 2, ["en", "sw"], [""] * 2)
             for k, (text, color) in enumerate(CAPTIONS.items())]  # fmt: skip
    damaged = records.ImageTextRecord("bad", b"no picture", ["red"], ["en"], [""])
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "test", [damaged, *shown])
    counts = {"image_text": {"test": {"images": 5, "captions": 1234}}, "text_pairs": {"train": 7}}
    described = {"name": HOSTILE, "license": "CC0-1.0", "languages": ["en", "sw"], "counts": counts}
    (tmp_path / "data/dataset.json").write_text(json.dumps(described))
    (tmp_path / "environment.json").write_text(json.dumps({"packages": {"tensorflow": "2.15.1"}}))
    rows = [
        {"step": 0, **evaluation(value=11.0).metrics},
        {"step": 0, **evaluation("retrieval_dev", value=7.0).metrics},
    ]
    for step in (10, 20, 30):
        loss = {"train/loss": 9.0 / step, "train/loss_text_text": math.nan, "train/seconds_per_step": 2}
        rows += [{"step": step, **loss}, {"step": step, **evaluation("retrieval_dev", value=8.0 + step).metrics}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path, config


def titles(page):
    return re.findall("<h2>(.*?)</h2>", page.source)


def test_a_run_ends_with_a_page_that_needs_nothing_else(run):
    workdir, config = run
    seconds, searches = {"training": 5000.0, "evaluation": 33.21}, {"moyo": [("i<0>", png((9, 9, 9)))]}
    path = write_report_page(workdir, config, evaluation(), ColorEmbedder(), seconds, searches)
    page = Page(path.read_text(encoding="utf-8"))
    assert titles(page) == ["Recall", "Loss over the steps", "Recall over the steps", "Recall by language",
                            "Found for a sentence", "Found and missed", "Data", "Time", "Settings"]  # fmt: skip
    for words in ("83 min", "33 s", "2.15.1", "CC0-1.0", "5 images, 1,234 captions", HOSTILE, "before this run",
                  "11.0", "(+9.0)", "retrieval_dev, step 30", "(+31.0)", "moyo", "among 4 of the 5 of the split",
                  "the right one has rank"):  # fmt: skip
        assert words in page.text, words
    examples = [of for of in page.all("div") if of.get("class") == "example"]
    assert examples and [of["alt"] for of in page.all("img")].count("right picture") == len(examples)
    assert [of["class"] for of in page.all("li") if of.get("class")] == ["right"] * len(examples)
    assert {of["alt"] for of in page.all("img")} == {"i<0>", "picture", "right picture"}
    loss, recall = (of["aria-label"] for of in page.all("figure"))
    assert loss == "loss over steps, at last loss 0.3" and recall.endswith("well-resourced 38, retrieval_dev/all 43")
    assert {of["lang"] for of in page.all("span") if "lang" in of} == {"en", "sw"}  # and none of "de" is there


def test_a_run_without_images_or_a_source_has_a_shorter_page(run):
    workdir, config = run
    (workdir / "metrics.jsonl").write_text(json.dumps({"step": 5, "train/loss": 1.0}) + "\n")
    (workdir / "environment.json").write_text("{")
    config.data.directory = str(workdir / "elsewhere")
    page = Page(write_report_page(workdir, config, None, None, {}, {}).read_text())
    assert titles(page) == ["Loss over the steps", "Data", "Time", "Settings"]
    page = Page(write_report_page(workdir, config, evaluation(), ColorEmbedder(), {}, {}).read_text())
    assert "before this run" not in page.text and "Found and missed" not in page.text  # the data are away


def test_what_to_do_next_follows_from_the_model_and_its_export(tmp_path, capsys):
    (tmp_path / "summary.json").write_text('{"table": "", "split": "test", "search": []}')

    def said(method="mural", tower="efficientnet"):
        config = toy_config("data/mine", method)
        config.image_tower.name = tower
        finish.describe(config, tmp_path)
        return capsys.readouterr().out

    where = f"--from={tmp_path} --workdir={tmp_path}_tuned --config.data.directory=data/mine"
    printed = said()
    assert f"--model={tmp_path} --output=my_index" in printed and f"finetune --config=finetune {where}" in printed
    assert "search index" in printed and "search index" not in said(tower="none")  # of pictures
    assert f" --config.other_method=True {where}" in said("translation_distillation")
    (tmp_path / "export").mkdir()
    assert "SavedModels" in said() and "SavedModels" not in printed


@pytest.mark.parametrize("groups", [None, {}, {"new": ("zh",)}])
def test_groups_of_a_configuration_replace_those_of_the_data(groups, tmp_path, monkeypatch):
    write_toy_data(tmp_path)
    config = toy_config(tmp_path)
    if groups is not None:
        config.evaluation.groups = ConfigDict(groups)
    given = []
    monkeypatch.setattr(finish, "measure_retrieval", lambda *_, groups, **__: given.append(groups))
    measured = types.SimpleNamespace(at=None, embedder=lambda step: None)
    finish.SplitEvaluation(measured, config, "train")(3)
    assert given == [groups]


def test_a_finished_run_names_the_data_that_it_measured(tmp_path, capsys):
    summary = {"table": "a table", "split": "dev", "search": [], "data": "data/measured"}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    finish.describe(toy_config("data/now"), tmp_path)
    assert "Mean recall on data/measured, split dev:" in capsys.readouterr().out


def test_an_export_of_another_number_of_steps_is_replaced(tmp_path):
    config = toy_config("data")
    config.train.steps = 4
    assert not finish._is_exported(tmp_path / "export", 4)
    (tmp_path / "export").mkdir()
    assert not finish._is_exported(tmp_path / "export", 5)
    save_config(config, tmp_path / "export/config.json")
    assert [finish._is_exported(tmp_path / "export", steps) for steps in (4, 5)] == [True, False]


def test_examples_are_the_closest_pictures_that_can_be_read(run, monkeypatch):
    _, config = run
    assert find_examples(evaluation(), ColorEmbedder(), config) == {}  # the data have no example queries
    monkeypatch.setitem(report_page.EXAMPLE_QUERIES, config.data.source, ("red", "青い風船"))
    found = find_examples(evaluation(), ColorEmbedder(), config)
    assert {sentence: [name for name, _ in of] for sentence, of in found.items()} == {
        "red": ["i0", "i1", "i2", "i3"], "青い風船": ["i3", "i0", "i1", "i2"],
    }  # fmt: skip
    assert found["red"][0][1] == png((250, 0, 0))


def test_charts_of_odd_numbers():
    assert line_chart({}, "x") is line_chart({"a": [(1, math.nan), (2, math.inf)], "b": []}, "x") is None
    one = line_chart({"a": [(0, 0.0)], "none": []}, "x")
    assert one["lines"] == [{"name": "a", "path": "M0.00,100.00 h0", "single": True}]
    assert "nan" not in str(line_chart({"a": [(0, -3.0), (5, -3.0), (9, math.nan)]}, "x"))
    (line,) = line_chart({"a": [(step, step % 7) for step in range(100_000)]}, "x")["lines"]
    assert line["path"].count(",") < 500 and line["path"].endswith(
        " L100.00,33.33 h0"
    )  # thinned; the last one is there
    odd = evaluation()
    odd.metrics.update({"retrieval/de/mean_recall": math.nan, "retrieval/en/mean_recall": 0.0})
    bars = report_page._bars("retrieval", odd.metrics, {"retrieval/en/mean_recall": 0.0}, odd)
    assert bars["groups"] == {"well-resourced": [("en", 0.0, 0.0)], "other languages": [("sw", 40.0, None)]}
    assert report_page._bars("retrieval", {}, {}, odd)["groups"] == {}


@pytest.mark.parametrize("low, high, expected", [
    (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0, 35, [0, 10, 20, 30]), (0, 1400, [0, 500, 1000]),
    (-3, 4, [-2, 0, 2, 4]), (0, 0.003, [0, 0.001, 0.002, 0.003]),
])  # fmt: skip
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_time_of_training_leaves_out_interruptions():
    of_steps = [{"step": step, "train/seconds_per_step": time} for step, time in ((10, 1.0), (25, 2))]
    assert training_seconds([of_steps[0], {"step": 10, "a/b": 3}, of_steps[1]]) == 10 * 1.0 + 15 * 2
    assert training_seconds([]) == 0.0


def test_counts_of_another_form_are_shown_as_they_are():
    counts = {"image_text": {"test": {}, "train": {"images": 5000, "captions": "many"}}, "text_pairs": {"train": None}}
    assert report_page._entry_lines({"name": 5, "counts": counts, "languages": "all"}) == [
        ("name", "5"),
        ("image_text, test", ""),
        ("image_text, train", "5,000 images, many captions"),
        ("text_pairs, train", "None"),
    ]
    assert report_page._entry_lines({"counts": [5]}) == report_page._entry_lines({"counts": {"image_text": 5}}) == []
