"""benchmarks.photograph_folds: the repositories' forms, and that nothing of a test's photograph is trained on."""

import gzip
import json

import pytest
import tensorflow as tf

from benchmarks import photograph_folds as folds
from mural_lite.errors import UserError
from mural_lite.record_format import parse_record

NUMBERS = [f"10{number}" for number in range(20)]


@pytest.fixture
def data(tmp_path):
    """Twenty photographs, the last without a Multi30K sentence, and a sentence without its photograph."""
    images = tmp_path / "sic_translator/data/images"
    images.mkdir(parents=True)
    lines = ["image,caption"]
    arabic = []
    for number in NUMBERS:
        name = f"{number}_ab.jpg"
        (images / name).write_bytes(number.encode())
        lines += [f"{name},A dog {number} runs .", f'{name},"A ""big"" dog, {number} ."']
        arabic += [f"{name}#0\tكلب {number}"]
    (images.parent / "captions.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    file = tmp_path / "Arabic-Image-Captioning/data/Flickr8k_text/Flickr8k.arabic.full.txt"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(arabic) + "\n", encoding="utf-8")
    task = tmp_path / "dataset/data/task1"
    (task / "image_splits").mkdir(parents=True)
    (task / "raw").mkdir()
    for part, numbers in (("train", [*NUMBERS[:-2], "77"]), ("val", NUMBERS[-2:-1]), ("test_2016_flickr", [])):
        suffix = "#0" if part == "test_2016_flickr" else ""
        (task / f"image_splits/{part}.txt").write_text("".join(f"{n}.jpg{suffix}\n" for n in numbers or ["5"]))
        for language in ("en", *folds.OTHERS):
            texts = [f"A dog {n} runs." if language == "en" else f"{language} {n}" for n in numbers or ["5"]]
            (task / f"raw/{part}.{language}.gz").write_bytes(gzip.compress(("\n".join(texts) + "\n").encode()))
    return tmp_path


def read(folder, pattern, parse):
    files = sorted(map(str, folder.glob(pattern)))
    rows = tf.data.TFRecordDataset(files).as_numpy_iterator()
    return [parse(row, "file", number) for number, row in enumerate(rows)]


def test_the_forms_of_the_repositories(data):
    photographs = folds.read_photographs(data)
    assert sorted(photograph.number for photograph in photographs) == sorted(NUMBERS)
    last = {photograph.number: photograph for photograph in photographs}[NUMBERS[-1]]
    assert last.sentences == {}
    first = {photograph.number: photograph for photograph in photographs}["100"]
    assert first.english == ("A dog 100 runs .", 'A "big" dog, 100 .')
    assert (first.sentences["fr"], first.arabic) == ("fr 100", ("كلب 100",))


@pytest.mark.parametrize("share", [0.0, 1.0, 0.2])
def test_nothing_of_a_tested_photograph_is_trained_on(data, tmp_path, share):
    folder = tmp_path / "fold"
    photographs = folds.read_photographs(data)
    folds.write_fold(photographs, folds.read_sentences(data), folder, 1, share)
    train = read(folder, "image_text/train-*", parse_record)
    test = read(folder, "image_text/test-*", parse_record)
    pairs = read(folder, "text_pairs/train-*", parse_record)
    tested = {record.image_id for record in test}
    assert len(train) + len(test) == len(NUMBERS) and tested.isdisjoint(record.image_id for record in train)
    assert all(folds.fold_of(number) == 1 for number in tested)
    assert not tested & {pair.group_id.partition(":")[0] for pair in pairs}
    assert {"77", "5"} <= {pair.group_id.partition(":")[0] for pair in pairs}
    with_others = [record for record in train if "de" in record.languages]
    translated = sum(record.image_id != NUMBERS[-1] for record in train)
    assert len(with_others) == round(share * translated)
    assert all("ar" not in record.languages for record in train) and all("ar" in record.languages for record in test)
    for record in with_others:  # a caption, its sentence and their translations are one group
        groups = dict(zip(record.languages[::-1], record.caption_groups[::-1]))
        assert groups["de"] == groups["cs"] == record.caption_groups[0] == f"{record.image_id}:multi30k"


def test_photographs_without_a_caption_and_damaged_lines_are_left_out_and_reported(data, capsys):
    (data / "sic_translator/data/images/999_ab.jpg").write_bytes(b"999")
    with open(data / "Arabic-Image-Captioning/data/Flickr8k_text/Flickr8k.arabic.full.txt", "a") as file:
        file.write("no tab\n")
    assert len(folds.read_photographs(data)) == len(NUMBERS)
    reported = capsys.readouterr().out
    assert "photograph without an English caption" in reported and "arabic.full.txt:21" in reported


def test_a_missing_repository_is_one_line(tmp_path):
    with pytest.raises(UserError, match="captions.txt does not exist: clone"):
        folds.read_photographs(tmp_path)


def test_a_row_whose_first_model_was_removed_trains_it_again(tmp_path, monkeypatch):
    """A table of an earlier call may have ALIGN's line, though its models are gone."""
    runs = []

    def write_summary(config, *places):
        folder = places[-1]
        runs.append((config.model, *(str(place) for place in places)))
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps({"metrics": {"loss": len(runs)}}))

    monkeypatch.setattr("mural_tf.runs.finetune.finetune", write_summary)
    monkeypatch.setattr("mural_tf.runs.pretrain.pretrain", write_summary)
    (stage,) = [row for row in folds.ROWS if row.name == "ALIGN, then the stage"]
    for _ in range(2):
        assert folds.train(stage, "e5", tmp_path / stage.name, tmp_path, tmp_path, 0) == {"loss": 2}
    assert [run[1:] for run in runs] == [(f"{tmp_path}/ALIGN",), (f"{tmp_path}/ALIGN", f"{tmp_path}/{stage.name}")]
