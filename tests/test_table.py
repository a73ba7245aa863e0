"""The table of methods: one budget, what is measured, what is written."""

import csv
import dataclasses
import json
import pathlib

import pytest

from benchmarks import table
from benchmarks.table_files import comma_separated, markdown, summarize, write_table
from benchmarks.translation import translation_recall
from mural_tf.config import ConfigurationError
from mural_tf.data import records

ALL = (*table.METHODS, *table.ABLATIONS)


def test_no_method_sees_more_than_the_budget():
    budget = (table.STEPS * table.IMAGE_TEXT, table.STEPS * table.TEXT_TEXT)
    assert table.METHODS[1].name == "MURAL" and table.METHODS[1].pairs(1.0) == budget == (358_400, 716_800)
    for method in ALL:
        captions, texts = method.pairs(1.0)
        assert captions <= budget[0] and texts <= budget[1], method.name
        assert captions > 0.49 * budget[0] or not method.images, method.name
    by_name = {method.name: method.pairs(1.0) for method in ALL}
    assert by_name["MULE"] == budget  # LP's text pairs and the rest
    assert by_name["ETCL"][0] == 1_100 * 256 + 150 * 512


def test_stages_are_what_their_configurations_are():
    for method in ALL:
        for stage in method.stages:
            config = table.load(stage)
            config.update_from_flattened_dict(dict(stage.overrides))
            texts = config.train.text_text_batch
            if stage.config in ("emoji_mural", "emoji_align", "emoji_mule", "emoji_mule_lp", "emoji_embn"):
                trains_texts = config.model in ("mural", "mule") and config.loss.text_text_weight > 0
                assert stage.text_pairs == (texts if trains_texts else 0), method.name
                with_images = stage.config != "emoji_mule_lp"
                assert stage.captions == (config.train.image_text_batch if with_images else 0), method.name
    with pytest.raises(ConfigurationError, match="configs/nothing.py does not exist"):
        table.load(table.Stage("nothing"))


def test_commands_and_names():
    assert len({table.slug(method.name) for method in ALL}) == len(ALL)
    assert table.slug("EmbN, English") == "embn-english"
    first = table.command(table.METHODS[1].stages[0], 2, 0.1, "work", None, "data")
    assert first[1] == "run_pretrain.py" and "--config.seed=2" in first and "--config.train.steps=140" in first
    languages = next(flag for flag in first if "image_text_languages" in flag)
    assert "'en'" in languages and not any(f"'{language}'" in languages for language in table.HELD_OUT)
    later = table.command(table.METHODS[5].stages[1], 0, 1.0, "work", "before", "data")
    assert later[1:3] == ["run_finetune.py", "--from=before"] and "--config.train.text_text_batch=384" in later


def test_rows_share_the_stages_they_begin_with(tmp_path, monkeypatch):
    def run(arguments):  # leaves what a training or a measurement of translation leaves
        ran.append(arguments)
        path = next(a.partition("=")[2] for a in arguments if a.startswith(("--workdir=", "--output=")))
        file = pathlib.Path(path) if path.endswith(".json") else pathlib.Path(path) / "summary.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}", encoding="utf-8")

    ran = []
    monkeypatch.setattr(table, "run", run)
    monkeypatch.setattr(table, "measure", lambda method, *_: method.name)
    for method in (*table.METHODS, *table.ABLATIONS):
        table.run_method(method, 0, 1.0, tmp_path, "data")
    folders = [path.name for path in (tmp_path / "seed0").iterdir()]
    assert {"emoji_mural-1400", "emoji_mural-1400,image_text_languages=en"} <= set(folders)
    assert "emoji_mural-1100,image_text_languages=en+emoji_etcl-150,image_text_languages=en-de-fr-cs-zh-ja" in folders
    assert len([a for a in ran if f"--workdir={tmp_path}/seed0/emoji_mural-1100" in a]) == 1  # of three rows
    stages = {tuple(method.stages[: n + 1]) for method in ALL for n in range(len(method.stages))}
    assert len(folders) == len(stages)  # no two stages in one folder
    before = len(ran)
    table.run_method(table.METHODS[0], 0, 1.0, tmp_path, "data")
    assert len(ran) == before  # nothing twice


def row(**values):
    return {**dict.fromkeys(("well", "under", "none", "en"), 10.0), "parameters": 1000, **values}


def test_summaries_and_files(tmp_path):
    results = {"MURAL": [row(well=40.0), row(well=44.0)], "EmbN": [row(well=None)]}
    pairs = {"MURAL": (100, 200), "EmbN": (100, 0)}
    assert summarize(results["MURAL"], "well") == (42.0, pytest.approx(8**0.5))  # deviations -2 and 2, over 2 - 1
    assert summarize(results["EmbN"], "well") is None and summarize(results["EmbN"], "en") == (10.0, 0.0)
    text = markdown(results, pairs, ["be"])
    assert "| MURAL | 42.0 ± 2.8 |" in text and "| EmbN | – |" in text and "| 1,000 |" in text
    lines = list(csv.DictReader(comma_separated(results, pairs).splitlines()))
    assert [line["well"] for line in lines] == ["40.0", "44.0", ""] and lines[1]["text_pairs"] == "200"
    write_table(tmp_path, "table", results, pairs, ["be"])
    assert json.loads((tmp_path / "table.json").read_text())["results"]["MURAL"][1]["well"] == 44.0
    assert (tmp_path / "table.md").read_text() == text and (tmp_path / "table.csv").exists()


def test_measures_what_a_run_left(tmp_path):
    recalls = {f"emoji/{language}/mean_recall": 20.0 for language in table.CORE}
    recalls.update({f"emoji/{language}/mean_recall": 4.0 for language in table.HELD_OUT})
    recalls["emoji/en/mean_recall"] = 47.0
    (tmp_path / "export").mkdir()
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": recalls}))
    (tmp_path / "export" / "model_card.json").write_text(json.dumps({"parameters": 7}))
    seconds = [{"train/processor_seconds_per_step": s} for s in (9.0, 0.2, 0.4, 0.3)] + [{"emoji/en/mean_recall": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(values) + "\n" for values in seconds))
    languages = [language for language in table.CORE if language != "en"]
    translation = {"default": dict.fromkeys(languages, 50.0), "text_text": dict.fromkeys(languages, 60.0)}
    mural, labse, english = (table.METHODS[i] for i in (1, 2, 6))
    found = table.measure(mural, tmp_path, mural.stages[0], translation)
    assert found["well"] == pytest.approx((8 * 20 + 47) / 9) and found["under"] == 20.0 and found["none"] == 4.0
    assert found["translation_well"] == 50.0 and found["processor_seconds_per_step"] == 0.3 and found["parameters"] == 7
    assert found["text_head_translation_none"] == 60.0
    one_head = dataclasses.replace(mural.stages[0], overrides=(("shared_head", True),))
    assert table.measure(mural, tmp_path, one_head, translation)["text_head_translation_none"] is None
    assert table.measure(labse, tmp_path, labse.stages[0], translation)["well"] is None
    found = table.measure(english, tmp_path, english.stages[0], translation)
    assert found["en"] == 47.0 and found["well"] is None and found["translation_under"] is None


class Parrot:
    """Encodes the last digit of a text, whatever its language."""

    takes_languages = False

    def encode_text(self, texts, progress=None):
        import numpy as np

        return np.eye(10, dtype=np.float32)[[int(text[-1]) for text in texts]]


def test_translation_recall(tmp_path):
    images = [
        records.ImageTextRecord(str(i), b"", [f"en{i}", f"de{i}", f"fr{(i + 1) % 10}"], ["en", "de", "fr"], [""] * 3)
        for i in range(10)
    ]
    records.write_records(tmp_path, records.IMAGE_TEXT, "test", images)
    found = translation_recall(Parrot(), str(tmp_path), "test")
    assert found["de"] == 100.0
    # The right French one ties with eight others behind one that is wrong: mean rank 6, a hit for R@10 alone.
    assert found["fr"] == pytest.approx(100 / 3)
