"""JSON of right syntax that holds something else: whoever reads it names the file and the key; see test_files.py."""

import json

import pytest

from mural_lite import dataset_folder
from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.evaluation.retrieval import language_groups
from mural_tf.evaluation.zero_shot import read_prompts
from mural_tf.export.model_card import _training_data
from mural_tf.export.restore import _numbers_of_card
from mural_tf.pretrained import hugging_face_align, hugging_face_bert, vocabularies, weight_files
from mural_tf.runs import finish


@pytest.mark.parametrize("read, name, values, words", [
    (lambda folder: finish.describe(base_config(), folder), "summary.json", {"table": 3}, "table"),
    (lambda folder: _numbers_of_card(folder / "model_card.json"), "model_card.json",
     {"learned_numbers": {"bias": []}}, "learned_numbers"),
    (dataset_folder.describe, "dataset.json", {"counts": []}, "counts"),
    (dataset_folder.describe, "dataset.json", {"counts": {"image_text": {"dev": {"images": "1"}}}}, "images is '1'"),
    (dataset_folder.describe, "dataset.json", {"counts": {"image_text": {}, "text_pairs": {}}, "languages": 5},
     "languages is 5"),
    (language_groups, "dataset.json", {"language_groups": {"a": "de"}}, "language_groups"),
    (lambda folder: read_prompts(folder, 2, None), "babel_imagenet.json", {"EN": [["0"], ["cat"]]}, "EN"),
    (lambda folder: read_prompts(folder, 2, None), "nllb_dist13b_prompts.json", {"eng_Latn": "a {}"}, "eng_Latn"),
    (lambda folder: hugging_face_align.configure(folder, base_config()), "config.json",
     {"model_type": "align", "projection_dim": "640"}, "projection_dim"),
    (lambda folder: hugging_face_bert.configure(folder, base_config()), "config.json",
     {"num_hidden_layers": 2}, "hidden_size"),
    (weight_files.open_safetensors, "model.safetensors.index.json", {"weight_map": {"a": 1}}, "weight_map"),
    (vocabularies.read_pieces, "tokenizer.json", {"model": {"type": "WordPiece", "vocab": {"a": "0"}}}, "vocab"),
])  # fmt: skip
def test_another_type_is_one_line(tmp_path, read, name, values, words):
    (tmp_path / "class_names.en.txt").write_text("cat\ndog\n")
    (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path)
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("values, words", [
    ([1, 2], "dataset.json"), ({"name": "emoji", "packages": {"x" * 40: "y" * 900}}, "'emoji' instead of 'shapes'"),
])  # fmt: skip
def test_another_description_is_not_overwritten(tmp_path, values, words):
    (tmp_path / "dataset.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=words) as error:
        dataset_folder.is_built(tmp_path, {"name": "shapes", "packages": {"z": "y" * 900}})
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("stored, words", [
    ([["a", 1], ["b", 2]], r"\[\['b', 2\]\] instead of \[\['b', 3\]\]"),
    ([["b", 3], ["a", 1]], r"\[\['b', 3\], \['a', 1\]\] instead of \[\['a', 1\], \['b', 3\]\]"),
])  # fmt: skip
def test_the_files_that_differ_are_named(tmp_path, stored, words):
    (tmp_path / "dataset.json").write_text(json.dumps({"files": stored}))
    with pytest.raises(UserError, match=words):
        dataset_folder.is_built(tmp_path, {"files": [["a", 1], ["b", 3]]})


def test_an_export_does_without_a_damaged_description_and_says_so(tmp_path, caplog):
    config = base_config()
    config.data.directory = str(tmp_path)
    (tmp_path / "dataset.json").write_text('{"languages": 5, "name": "toys"}')
    assert set(_training_data(config)) == {"source", "languages"}
    assert str(tmp_path / "dataset.json") in caplog.text


def test_the_card_of_a_mixture_describes_each_source(tmp_path):
    config = base_config()
    config.data.directory = str(tmp_path / "evaluated")
    descriptions = {
        "evaluated": {"name": "multi30k", "sources": [{"kind": "multi30k"}], "languages": {"fr": 9}},
        "web": {"name": "cc3m", "sources": [{"kind": "tsv"}], "languages": {"en": 9}, "license": "of its owners"},
        "pairs": {"name": "opus", "sources": [{"kind": "opus"}], "languages": {"de en": 5}},
    }
    for name, description in descriptions.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset.json").write_text(json.dumps(description))
    config.data.sources = {name: {"directory": str(tmp_path / name)} for name in ("web", "pairs")}
    card = _training_data(config)
    assert card["sources"] == [{"kind": "opus"}, {"kind": "tsv"}] and card["languages"] == ["de en", "en"]
    assert card["data_sets"]["web"]["license"] == "of its owners" and card["data_sets"]["pairs"]["weight"] == 1
    assert str(tmp_path) not in json.dumps(card)
