"""The page with which a run ends: what it shows, that it needs nothing outside it, and odd numbers and names."""

import html.parser
import json
import math
import re
import xml.etree.ElementTree

import pytest
from search_data import ColorEmbedder, png
from toy_data import toy_config

from mural_tf.data import records
from mural_tf.evaluation.retrieval import Evaluation
from mural_tf.runs.report_page import bar_chart, line_chart, ticks, training_seconds, write_report_page

HOSTILE = "<script>alert('x')</script>"


def evaluation(name="retrieval", languages=("de", "en", "sw"), value=20.0):
    numbers = {f"{name}/{language}/mean_recall": value + 10 * i for i, language in enumerate(languages)}
    numbers.update({f"{name}/{language}/text_to_image/recall@1": 1.0 for language in languages})
    numbers.update({f"{name}/well-resourced/mean_recall": value, f"{name}/all/mean_recall": value + 5})
    sizes = {language: {"images": 3, "captions": 3} for language in languages}
    return Evaluation(name, "test", "every caption counted", numbers, sizes, {"well-resourced": ("de", "en")}, [])


@pytest.fixture
def run(tmp_path):
    """A workdir with rows of a run, and its configuration."""
    config = toy_config(tmp_path / "data")
    captions = {"red": (250, 0, 0), "rot": (250, 0, 0), "green": (0, 250, 0), HOSTILE: (0, 0, 250)}
    rows = [
        records.ImageTextRecord(f"i{k}", png(color), [text] * 2, ["en", "sw"], [""] * 2)
        for k, (text, color) in enumerate(captions.items())
    ]
    rows.append(records.ImageTextRecord("bad", b"no picture", ["red"], ["en"], [""]))
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "test", rows)
    described = {
        "name": HOSTILE,
        "license": "CC0-1.0",
        "languages": ["en", "sw"],
        "counts": {"image_text": {"test": 5}},
    }
    (tmp_path / "data/dataset.json").write_text(json.dumps(described))
    (tmp_path / "environment.json").write_text(json.dumps({"packages": {"tensorflow": "2.15.1"}}))
    rows = [
        {"step": 0, **evaluation(value=11.0).metrics},
        {"step": 0, **evaluation("retrieval_dev", value=7.0).metrics},
    ]
    for step in (10, 20, 30):
        rows.append(
            {"step": step, "train/loss": 9.0 / step, "train/loss_text_text": math.nan, "train/seconds_per_step": 2}
        )
        rows.append({"step": step, **evaluation("retrieval_dev", value=8.0 + step).metrics})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path, config


def read_page(path):
    """Returns the text of a page whose tags are closed in order and whose charts are XML."""
    text, open_tags = path.read_text(encoding="utf-8"), []

    class Balanced(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "img", "br"):
                open_tags.append(tag)

        def handle_startendtag(self, tag, attributes):
            pass

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Balanced().feed(text)
    assert not open_tags
    for chart in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        xml.etree.ElementTree.fromstring(chart)
    return text


def test_a_run_ends_with_a_page_that_needs_nothing_else(run):
    workdir, config = run
    seconds = {"training": 5000.0, "evaluation": 33.21}
    text = read_page(write_report_page(workdir, config, evaluation(), ColorEmbedder(), seconds))
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles[:4] == ["Recall", "Loss over the steps", "Recall over the steps", "Recall by language"]
    assert titles[4:] == ["Found and missed", "Data", "Time", "Settings"]
    assert "default-src 'none'" in text and "<script" not in text and "&lt;script&gt;" in text
    fetched = re.findall(r"""(?:src|href)=["']?(.{5})""", text)
    assert fetched and set(fetched) == {"data:"} and "url(" not in text and "@import" not in text
    assert "83 min" in text and "33 s" in text and "2.15.1" in text and "CC0-1.0" in text
    assert "before this run" in text and ">11.0<" in text  # of step 0, in the table
    assert "(+9.0)" in text and "retrieval_dev, step 30" in text and "(+31.0)" in text  # and in the bars
    assert text.count('class="example"') and "among 4 of the 5 of the split" in text
    assert text.count("<li class=right>") == text.count('class="example"')  # each shows the right picture
    assert "the right one has rank" in text and ">found<" in text


def test_a_run_without_images_or_a_source_has_a_shorter_page(run):
    workdir, config = run
    (workdir / "metrics.jsonl").write_text(json.dumps({"step": 5, "train/loss": 1.0}) + "\n")
    (workdir / "environment.json").write_text("{")
    config.data.directory = str(workdir / "elsewhere")
    text = read_page(write_report_page(workdir, config, None, None, {}))
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["Loss over the steps", "Data", "Time", "Settings"]
    text = read_page(write_report_page(workdir, config, evaluation(), ColorEmbedder(), {}))
    assert "before this run" not in text and "Found and missed" not in text  # the data are away


def test_charts_of_odd_numbers():
    assert line_chart({}, "x") == line_chart({"a": [(1, math.nan), (2, math.inf)]}, "x") == ""
    assert bar_chart({"g": []}) == bar_chart({}) == bar_chart({"g": [("en", math.nan, None)]}) == ""
    one = line_chart({"a & b": [(0, 0.0)], "none": []}, "x")
    assert "<circle" in one and "a &amp; b" in one and "none" not in one
    assert "nan" not in line_chart({"a": [(0, -3.0), (5, -3.0), (9, math.nan)]}, "x")
    assert "0.0" in bar_chart({"": [("en", 0.0, 0.0)]})
    long = line_chart({"a": [(step, step % 7) for step in range(100_000)]}, "x")
    assert long.count(",") < 1000 and "628.0," in long  # thinned, and the last point is there


@pytest.mark.parametrize("low, high, expected", [
    (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0, 35, [0, 10, 20, 30]), (0, 1400, [0, 500, 1000]),
    (-3, 4, [-2, 0, 2, 4]), (0, 0.003, [0, 0.001, 0.002, 0.003]),
])  # fmt: skip
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_time_of_training_leaves_out_interruptions():
    rows = [
        {"step": 10, "train/seconds_per_step": 1.0},
        {"step": 10, "a/b": 3},
        {"step": 25, "train/seconds_per_step": 2},
    ]
    assert training_seconds(rows) == 10 * 1.0 + 15 * 2 and training_seconds([]) == 0.0
