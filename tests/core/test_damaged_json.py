"""JSON of right syntax that holds something else: one line that names the file, the key and what was expected."""

import json
import pathlib

import pytest

from mural_tf.config import base_config
from mural_tf.data import dataset_folder
from mural_tf.errors import UserError
from mural_tf.evaluation.retrieval import language_groups
from mural_tf.evaluation.zero_shot import read_prompts
from mural_tf.export.hub_modules import _numbers_of_card
from mural_tf.export.model_card import _training_data
from mural_tf.pretrained import hugging_face_align, hugging_face_bert, vocabularies, weight_files
from mural_tf.runs import finish

ALIGN = {"model_type": "align"}
BERT = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8,
        "max_position_embeddings": 64}  # fmt: skip
DATASET = {"counts": {"image_text": {"dev": {"images": 1, "captions": 2}}, "text_pairs": {}}, "languages": {}}
SUMMARY = {"table": "", "split": "dev", "search": []}


def summary(folder):
    return finish.describe(base_config(), folder)


def align(folder):
    return hugging_face_align.configure(folder, base_config())


def bert(folder):
    return hugging_face_bert.configure(folder, base_config())


def card(folder):
    return _numbers_of_card(folder / "model_card.json")


def prompts(folder):
    return read_prompts(folder, 2, None)


@pytest.mark.parametrize("read, name, values, message", [
    (summary, "summary.json", {**SUMMARY, "table": 3}, "table is 3, expected a text"),
    (summary, "summary.json", {}, "summary.json has no table"),
    (card, "model_card.json", {"learned_numbers": {"bias": []}}, "learned_numbers is .*of numbers"),
    (dataset_folder.describe, "dataset.json", {**DATASET, "counts": []}, r"counts is \[\], expected an object"),
    (dataset_folder.describe, "dataset.json", {**DATASET, "counts": {"image_text": {"dev": {"images": "1"}}}},
     "images is '1', expected a whole number"),
    (dataset_folder.describe, "dataset.json", {**DATASET, "skipped": {"x": {"count": None}}}, "count is None"),
    (dataset_folder.describe, "dataset.json", {**DATASET, "languages": 5}, "languages is 5, expected an object"),
    (language_groups, "dataset.json", {"language_groups": {"a": "de"}}, "language_groups is .*object of lists"),
    (prompts, "babel_imagenet.json", {"EN": [["0"], ["cat"]]}, "EN is .*whole numbers"),
    (prompts, "babel_imagenet.json", {"EN": [[0]]}, "EN has 1 lists"),
    (prompts, "nllb_dist13b_prompts.json", {"eng_Latn": "a {}"}, "eng_Latn is 'a {}', expected a list of texts"),
    (align, "config.json", {**ALIGN, "vision_config": {"width_coefficient": "2"}}, "width_coefficient is '2'"),
    (align, "config.json", {**ALIGN, "projection_dim": "640"}, "projection_dim is '640', expected a whole number"),
    (bert, "config.json", {**BERT, "hidden_size": [8]}, r"hidden_size is \[8\], expected a whole number"),
    (bert, "config.json", {"num_hidden_layers": 2}, "config.json has no hidden_size"),
    (weight_files.open_safetensors, "model.safetensors.index.json", {"weight_map": {"a": 1}}, "weight_map is .*texts"),
    (vocabularies.read_pieces, "tokenizer.json", {"model": {"type": "WordPiece", "vocab": {"a": "0"}}}, "vocab is"),
])  # fmt: skip
def test_another_type_is_one_line(tmp_path, read, name, values, message):
    (tmp_path / "class_names.en.txt").write_text("cat\ndog\n")
    (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path)
    assert str(tmp_path / name) in str(error.value) and "\n" not in str(error.value)


def test_a_damaged_description_is_not_overwritten(tmp_path):
    (tmp_path / "dataset.json").write_text("[1, 2]")
    with pytest.raises(UserError, match="is damaged: .*dataset.json holds a list: expected a JSON object. Remove"):
        dataset_folder.is_built(tmp_path, {"name": "shapes"})


def test_another_data_set_is_named_in_a_sentence(tmp_path):
    (tmp_path / "dataset.json").write_text(json.dumps({"name": "emoji", "packages": {"x" * 40: "y" * 900}}))
    with pytest.raises(UserError, match="holds another data set, with name 'emoji' instead of 'shapes': choose") as one:
        dataset_folder.is_built(tmp_path, {"name": "shapes", "packages": {"z": "y" * 900}})
    assert len(str(one.value)) < 300


@pytest.mark.parametrize("text", ["[]", "{", '{"languages": 5, "name": "toys"}'])
def test_an_export_does_without_a_damaged_description_and_says_so(tmp_path, text, caplog):
    config = base_config()
    config.data.directory = str(tmp_path)
    assert set(_training_data(config)) == {"source", "languages"} and not caplog.records  # there is none
    pathlib.Path(tmp_path / "dataset.json").write_text(text)
    assert set(_training_data(config)) == {"source", "languages"}
    assert str(tmp_path / "dataset.json") in caplog.text
