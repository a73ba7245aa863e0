"""Running benchmarks by name, one or all of a folder; options; what is printed and kept."""

import json

import pytest
from fake_embedder import FakeEmbedder, one_hot

from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.evaluation import benchmarks, report
from mural_tf.evaluation.protocol import CHOICES, changed_options, check_protocol, default_protocol


def write_records(folder, languages=("en", "tg")):
    rows = [
        records.ImageTextRecord(
            f"i{i}", one_hot(i).encode(), [one_hot(i)] * len(languages), languages, ["g"] * len(languages)
        )
        for i in range(4)
    ]
    records.write_records(folder, records.IMAGE_TEXT, "test", rows)


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """A folder with WIT records, Tatoeba, and STS files that are damaged."""
    monkeypatch.setattr(report, "open_model", lambda path, checkpoint: FakeEmbedder())
    root = tmp_path / "downloads"
    write_records(root / "wit")
    (root / "tatoeba").mkdir()
    for side in ("deu", "eng"):
        (root / "tatoeba" / f"tatoeba.deu-eng.{side}").write_text("\n".join(one_hot(i) for i in range(3)) + "\n")
    return root


def evaluate(root, tmp_path, benchmark="all", **options):
    return report.evaluate_and_report("model", str(root), benchmark=benchmark, output=str(tmp_path / "out"), **options)


def test_all_runs_what_is_there_and_names_what_is_not(downloads, tmp_path, capsys):
    made = evaluate(downloads, tmp_path)
    assert {one.name for one in made} == {"wit", "tatoeba"}
    printed = capsys.readouterr().out
    assert "Running wit, tatoeba." in printed
    assert f"No xtd: {downloads} lacks XTD10/test_image_names.txt" in printed and "git clone" in printed
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[0]["wit/under-resourced/mean_recall"] == 100
    kept = json.loads((tmp_path / "out" / "evaluation" / "tatoeba-test.json").read_text())
    assert kept["model"] == "model" and kept["split"] == "test" and kept["sizes"]["deu"] == {"sentences": 3}
    assert kept["options"]["coco"]["one_k"] == "folds" and "accuracy" in kept["protocol"]


def test_one_failing_benchmark_does_not_keep_the_others_from_running(downloads, tmp_path, capsys):
    (downloads / "sts2017").mkdir()
    (downloads / "sts2017" / "STS.en-en.txt").write_text("only one column\n")
    with pytest.raises(UserError, match="1 of 3 benchmarks failed, see above: sts2017"):
        evaluate(downloads, tmp_path)
    assert "sts2017 failed:" in capsys.readouterr().out
    assert (tmp_path / "out" / "evaluation" / "tatoeba-test.json").exists()


def test_compare_prints_the_papers_numbers(downloads, tmp_path, capsys):
    evaluate(downloads, tmp_path, "wit", published=True)
    printed = capsys.readouterr().out
    assert "MURAL Table 3" in printed and "46.4 (+53.6)" in printed and "35.3 (+64.7)" in printed
    evaluate(downloads, tmp_path, "tatoeba", published=True)
    assert "ETCL Table 12" in capsys.readouterr().out
    report._print_published([], "emoji", default_protocol())
    assert "No paper's table holds numbers of emoji." in capsys.readouterr().out


@pytest.mark.parametrize("key", CHOICES)
def test_a_value_that_is_not_a_choice_is_named(key):
    protocol = default_protocol()
    for choice in CHOICES[key]:
        protocol.update_from_flattened_dict({key: choice})
        check_protocol(protocol)
    protocol.update_from_flattened_dict({key: "other"})
    with pytest.raises(UserError, match=f"{key}='other': choose"):
        check_protocol(protocol)


def test_default_protocol_passes_and_changes_are_found():
    protocol = default_protocol()
    check_protocol(protocol)
    assert changed_options(protocol) == {}
    protocol.cxc.draws = 5
    protocol.images = "x"
    assert changed_options(protocol) == {"cxc.draws": 5, "images": "x"}


def test_every_benchmark_is_measured_and_every_option_read():
    assert all(callable(entry.measure) for entry in benchmarks.BENCHMARKS.values())
    options = {key for key, value in default_protocol().items() if hasattr(value, "items")}
    assert {
        option for entry in benchmarks.BENCHMARKS.values() for option in entry.options
    } == options  # none is read by nobody
