"""The retrieval protocol with an embedder whose vectors are known, so that every number can be derived by hand."""

import json

import pytest
from fake_embedder import FakeEmbedder

from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.evaluation import report, tables
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import HELD_OUT, measure_retrieval

E0, E1, E2, E3 = "1 0 0 0", "0 1 0 0", "0 0 1 0", "0 0 0 1"


def write(directory, rows, split="test"):
    """rows: (image_id, image, [(language, caption)])."""
    made = [
        records.ImageTextRecord(i, image.encode(), [c for _, c in pairs], [x for x, _ in pairs], [""] * len(pairs))
        for i, image, pairs in rows
    ]
    records.write_records(directory, records.IMAGE_TEXT, split, made)


@pytest.fixture
def data_dir(tmp_path):
    directory = tmp_path / "data"
    write(
        directory,
        [
            ("image0", E0, [("en", E0), ("de", E3)]),
            ("image0", E0, [("en", E1), ("en", " ")]),  # the same image again, in a record of its own
            ("image4", "bad", [("en", E0), ("de", E0), ("fr", E0)]),
            ("image1", E1, [("en", E1)]),
            ("image2", E2, [("en", E2)]),
            ("image3", E3, [("de", E0)]),
        ],
    )
    (directory / "dataset.json").write_text(json.dumps({"language_groups": {"first": ["en", "cs"], "none": ["pl"]}}))
    return directory


# en: images 0, 1, 2; captions c0 = E0 and c1 = E1 of image 0, c2 = E1 of image 1, c3 = E2 of image 2.
# image to text: image 0 finds c0 first: 1; image 1 finds c1 and c2 tied, only c2 is its own: 1 + 1/2; image 2: 1.
# text to image: c0: 1; c1 means image 0 (score 0), image 1 is above, image 2 is tied: 1 + 1 + 1/2; c2: 1; c3: 1.
EN = {
    "image_to_text/recall@1": 200 / 3,
    "image_to_text/recall@5": 100,
    "image_to_text/recall@10": 100,
    "image_to_text/mean_rank": 3.5 / 3,
    "image_to_text/median_rank": 1,
    "text_to_image/recall@1": 75,
    "text_to_image/recall@5": 100,
    "text_to_image/recall@10": 100,
    "text_to_image/mean_rank": 5.5 / 4,
    "text_to_image/median_rank": 1,
    "mean_recall": (200 / 3 + 75 + 400) / 6,
}
# de: images 0 and 3 have each other's caption: every rank is 2.
DE_MEAN_RECALL = 400 / 6


def test_every_number_by_hand(data_dir):
    embedder = FakeEmbedder()
    metrics = measure_retrieval(embedder, data_dir, "test", name="toy").metrics
    for key, value in EN.items():
        assert metrics[f"toy/en/{key}"] == pytest.approx(value, abs=1e-9), key
    assert metrics["toy/de/image_to_text/mean_rank"] == metrics["toy/de/text_to_image/median_rank"] == 2
    assert metrics["toy/de/text_to_image/recall@1"] == 0
    assert metrics["toy/de/mean_recall"] == pytest.approx(DE_MEAN_RECALL, abs=1e-9)
    assert metrics["toy/first/mean_recall"] == metrics["toy/en/mean_recall"]  # no Czech in the data
    assert metrics["toy/all/mean_recall"] == pytest.approx((EN["mean_recall"] + DE_MEAN_RECALL) / 2, abs=1e-9)
    assert not any("/none/" in key or "/fr/" in key for key in metrics)  # no Polish; French has the bad image only
    assert len(metrics) == 2 * len(EN) + 2
    assert embedder.images_encoded == 5  # image0 once


def test_sizes_and_protocol_say_what_was_counted(data_dir):
    evaluation = measure_retrieval(FakeEmbedder(), data_dir, "test")
    assert evaluation.sizes == {
        "de": {"images": 2, "captions": 2, "repeated_captions": 0},
        "en": {"images": 3, "captions": 4, "repeated_captions": 2},  # E1 is a caption of image 0 and of image 1
    }
    assert "4 of 5 images" in evaluation.protocol
    assert "6 captions in 2 languages" in evaluation.protocol
    assert "2 captions repeat" in evaluation.protocol
    assert "1 empty caption" in evaluation.protocol


def test_languages_can_be_chosen(data_dir):
    embedder = FakeEmbedder()
    metrics = measure_retrieval(embedder, data_dir, "test", languages=["de"]).metrics
    assert {key.split("/")[1] for key in metrics} == {"de", "all"}
    assert metrics["retrieval/all/mean_recall"] == pytest.approx(DE_MEAN_RECALL, abs=1e-9)
    assert embedder.images_encoded == 3  # images 0, 3 and 4 have German captions


def test_groups_fall_back_to_the_configuration(data_dir):
    (data_dir / "dataset.json").unlink()
    metrics = measure_retrieval(FakeEmbedder(), data_dir, "test").metrics
    expected = (EN["mean_recall"] + DE_MEAN_RECALL) / 2  # both are well-resourced in the paper
    assert metrics["retrieval/well-resourced/mean_recall"] == pytest.approx(expected, abs=1e-9)
    assert "retrieval/under-resourced/mean_recall" not in metrics


def test_held_out_names_are_measured_apart_among_all_images(data_dir):
    def metrics_with(*ids):
        description = {"language_groups": {"first": ["en"]}, "held_out_names": ids}
        (data_dir / "dataset.json").write_text(json.dumps(description))
        return measure_retrieval(FakeEmbedder(), data_dir, "test").metrics

    metrics = metrics_with("image0")  # en: c0 is first, c1 at 2.5; de: image 0's caption is second
    assert metrics[f"retrieval/en/{HELD_OUT}"] == metrics[f"retrieval/first/{HELD_OUT}"] == pytest.approx(250 / 3)
    assert metrics[f"retrieval/de/{HELD_OUT}"] == pytest.approx(200 / 3)
    assert metrics[f"retrieval/all/{HELD_OUT}"] == pytest.approx(75)
    assert "first          1         90.3            83.3" in tables.group_table(
        metrics, "retrieval", {"first": [""]}, 2
    )
    table = tables.group_table({**metrics, "retrieval/others/mean_recall": 1.0}, "retrieval", {"others": ["xh"]}, 2)
    assert "others          1          1.0               –" in table  # measured on data without held-out names
    alone = metrics_with("image1")  # no German caption: no mean over languages
    assert alone[f"retrieval/en/{HELD_OUT}"] == 100 and f"retrieval/all/{HELD_OUT}" not in alone
    assert not any(HELD_OUT in key for key in metrics_with("image4"))  # which does not decode


def test_one_pool_of_all_languages(tmp_path):
    pairs = [[("en", E0), ("en", E0), ("en", "2 0 0 0"), ("de", E0)], [("en", "3 0 0 0"), ("de", "0 2 0 0")]]
    write(tmp_path, [("0", E0, pairs[0]), ("1", "1 2 0 0", pairs[1])])
    protocol = default_protocol()
    protocol.mixed_pool = True
    request = Request(FakeEmbedder(), tmp_path, "test", protocol)
    (found,) = request.measure_records("toy")
    # Image 0 finds all of en and its de: 4 of 5 its own. Image 1 finds de's 4 first, then 3, 2 and, of three equal
    # ones, de's, which comes first, and one of en. So 4 + 3 of 10 are in en, and 4 + 2 of 10 are right.
    assert found.metrics["toy/en/mixed_pool/share@5"] == 70 and found.metrics["toy/de/mixed_pool/share@5"] == 30
    assert found.metrics["toy/all/mixed_pool/precision@5"] == 60 and any("70.0% in en" in note for note in found.notes)
    assert not any("mixed_pool" in key for key in measure_retrieval(FakeEmbedder(), tmp_path, "test").metrics)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(split="test", languages=["en", "xx"]), "No captions in xx.*its languages: de, en, fr"),
        (dict(split="dev"), "No image_text records of split 'dev'"),
        (dict(split="test", languages=["fr"]), "None of the 1 images"),  # French has the bad image only
    ],
)
def test_mistakes_are_named(data_dir, arguments, message):
    embedder = FakeEmbedder()
    with pytest.raises(UserError, match=message):
        measure_retrieval(embedder, data_dir, **arguments)
    assert embedder.images_encoded <= 1  # a mistake in the command costs no time


def lenient():
    """The protocol that accepts one image of five that does not decode."""
    protocol = default_protocol()
    protocol.max_missing = 0.2
    return protocol


def test_too_many_images_that_do_not_decode_end_the_evaluation(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "open_model", lambda path, checkpoint: FakeEmbedder())
    with pytest.raises(UserError, match="1 of 5 images.*image4.*max_missing=0.05"):
        report.evaluate_and_report(str(tmp_path), str(data_dir), "test")


def test_report_prints_a_table_and_keeps_the_numbers(data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "open_model", lambda path, checkpoint: FakeEmbedder())
    workdir = tmp_path / "workdir"
    (workdir / "checkpoints").mkdir(parents=True)
    for _ in range(2):
        report.evaluate_and_report(str(workdir), str(data_dir), "test", benchmark="emoji", protocol=lenient())
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == "en 3 4 66.7 100.0 100.0 75.0 100.0 100.0 90.3".split() for line in lines)
    assert any(line.split() == "first 1 90.3".split() for line in lines)
    assert any(line.split() == "all 2 78.5".split() for line in lines)  # (90.28 + 66.67) / 2
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[0] == rows[1] and rows[0]["step"] == 7
    assert rows[0]["emoji/en/text_to_image/recall@1"] == 75
    kept = json.loads((workdir / "evaluation" / "emoji-test.json").read_text())
    assert kept["split"] == "test" and "4 of 5 images" in kept["protocol"] and kept["sizes"]["en"]["captions"] == 4
    assert rows[0]["evaluated"] == {"emoji": {"data": str(data_dir), "split": "test"}}
    assert rows[0]["checkpoint"] == "latest"  # the workdir has no result of its own
    others = ("step", "evaluated", "checkpoint")
    assert kept["metrics"] == {key: value for key, value in rows[0].items() if key not in others}
    assert kept["model"] == str(workdir) and kept["step"] == 7


def test_numbers_go_to_the_own_workdir_however_it_is_spelt_and_to_no_other(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "open_model", lambda path, checkpoint: FakeEmbedder())
    workdir = tmp_path / "workdir"
    for folder in (workdir, tmp_path / "other"):
        (folder / "checkpoints").mkdir(parents=True)
    output = f"{workdir}/../workdir"
    report.evaluate_and_report(str(workdir), str(data_dir), "test", output=output, protocol=lenient())
    (row,) = (workdir / "metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["checkpoint"] == "latest"
    with pytest.raises(UserError, match="is a workdir, whose card shows the numbers in it: .*name another folder"):
        report.evaluate_and_report(str(workdir), str(data_dir), "test", output=str(tmp_path / "other"))


def test_export_is_left_alone_without_output(data_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "open_model", lambda path, checkpoint: FakeEmbedder())
    export = tmp_path / "export"
    export.mkdir()
    report.evaluate_and_report(str(export), str(data_dir), "test", protocol=lenient())
    assert not any(export.iterdir()) and "--output" in capsys.readouterr().out
    report.evaluate_and_report(str(export), str(data_dir), "test", output=str(tmp_path / "numbers"), protocol=lenient())
    assert (tmp_path / "numbers" / "metrics.jsonl").exists() and not any(export.iterdir())
