"""The table of methods: one budget, what is measured, what is written."""

import dataclasses
import json
import sys
import threading

import pytest
from snapshots import assert_snapshot

from benchmarks import table, table_rows
from benchmarks.results import table as rendered
from benchmarks.translation import recall_between_styles, translation_recall, write_in_english
from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.demo.emoji import UNDER_RESOURCED
from mural_tf.evaluation.retrieval import HELD_OUT

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
    for methods in table_rows.ROWS.values():
        for method in methods:
            for stage in method.stages:
                config = table_rows.load(stage)
                config.update_from_flattened_dict(dict(stage.overrides))  # an unknown field is an error
                if stage.config in WITH_COUNTED_BATCHES and method in ALL:
                    trains_texts = config.model in ("mural", "mule") and config.loss.text_text_weight > 0
                    assert stage.text_pairs == (config.train.text_text_batch if trains_texts else 0), method.name
                    with_images = stage.config != "emoji:mule_lp"
                    assert stage.captions == (config.train.image_text_batch if with_images else 0), method.name
    with pytest.raises(UserError, match="configs/nothing.py does not exist"):
        table_rows.load(table_rows.Stage("nothing"))


CHOSEN = (table_rows.METHODS[1], table_rows.METHODS[5], table_rows.TRANSLATED_CAPTIONS[1], table_rows.UNSEEN_STYLE[2])
CHOSEN += (table_rows.TRANSLATED[-1], table_rows.BRIDGE[5], table_rows.BRIDGE_REAL[5])
CHOSEN += tuple(method for method in table_rows.TRANSLATED if method.stages[-1].words)[:1]


def test_commands_of_runs(tmp_path):
    """Which run starts from which, and its whole command; its workdir follows from its stages."""
    lines = []
    for method in CHOSEN:
        lines.append(f"{method.name}, {table.slug(method.name)}, {table_rows.default_seeds(method)} seeds")
        for run in table.runs_of(method.stages, 2, 0.1, tmp_path / "runs"):
            models = {name: workdir.name for name, workdir in run.models.items()}
            lines.append(f"  from {run.source}, models {models}")
            lines += [f"    {argument}" for argument in table.command(run, 0.1, "data", True)]
    assert_snapshot("commands_of_the_table", "\n".join(lines), folder=tmp_path, python=sys.executable)
    assert len({table.slug(method.name) for method in ALL}) == len(ALL)


def test_a_bridge_waits_for_its_pictures_and_its_student(tmp_path):
    runs = table.runs_of(table_rows.BRIDGE[5].stages, 0, 1.0, tmp_path)
    pictures, student, head = (run.workdir for run in runs)
    ended = []
    table.execute(reversed(runs), 1, lambda run: ended.append(run.workdir), lambda: None)
    assert sorted(ended[:2]) == sorted([pictures, student]) and ended[2] == head


def test_captions_in_the_tests_style(tmp_path):
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
    table.measure_translation(run, "data")
    assert called == [("run_pretrain.py", "emoji_align-1400.log"), ("-m", "emoji_align-1400.log")]
    table.translation_file(run.workdir).parent.mkdir(parents=True)
    for file in (run.workdir / "summary.json", table.translation_file(run.workdir)):
        file.write_text("{}", encoding="utf-8")
    table.train(run, 1.0, "data")
    table.measure_translation(run, "data")
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
    one_head = table_rows.mural("MURAL, one head", ("shared_head", True))
    in_english = {"metrics": {**recalls, **{f"emoji/{language}/mean_recall": 8.0 for language in table.HELD_OUT}}}
    table.english_report(tmp_path).parent.mkdir(parents=True)
    table.english_report(tmp_path).write_text(json.dumps(in_english))
    found = {
        "MURAL": table.measure(mural, [tmp_path]),
        "asked in English": table.measure(dataclasses.replace(mural, asked_in_english=True), [tmp_path]),
        "one head": table.measure(one_head, [tmp_path]),
        "LaBSE": table.measure(labse, [tmp_path]),
        "English": table.measure(english, [tmp_path]),
    }
    recalls.update({f"emoji/{language}/{HELD_OUT}": 6.0 for language in UNDER_RESOURCED})
    (tmp_path / "summary.json").write_text(json.dumps({"metrics": recalls, "parameters": 7, "step": 100}))
    found["two stages, held-out names"] = table.measure(mural, [tmp_path, tmp_path])
    (tmp_path / "metrics.jsonl").write_text("")
    table.translation_file(tmp_path).unlink()
    found["no logs, no translation"] = table.measure(mural, [tmp_path])
    lines = []
    for name, values in found.items():
        values.pop("languages")
        lines += [name, f"    {dict(sorted(values.items()))}"]
    assert_snapshot("measures_of_the_table", "\n".join(lines))


def test_folders_of_runs_have_names_that_file_systems_take(tmp_path):
    """And of their own: settings that are cut off the name are in its end."""
    names = {}
    for method in (method for methods in table_rows.ROWS.values() for method in methods):
        for count in range(1, len(method.stages) + 1):
            stages = method.stages[:count]
            name = table.runs_of(stages, 0, 1.0, tmp_path)[-1].workdir.name
            assert len(f"{name}.log".encode()) <= 255 and names.setdefault(name, stages) == stages
    assert any(len(name) == 213 for name in names)  # cut off


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
