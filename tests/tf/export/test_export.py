"""Exports: equal to the model in memory, usable without this library, never half written."""

import base64
import errno
import functools
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from toy_data import toy_tokenizer
from toy_export import TEXTS, difference, pictures, pixels, toy_model

import mural_tf
from mural_lite import versions
from mural_lite.config_file import load_config, save_config
from mural_lite.errors import UserError
from mural_tf.data.images import decode_image, evaluation_image
from mural_tf.encoders import build_text_encoder
from mural_tf.encoders.towers import preparation
from mural_tf.export import restore, saved_model, serving
from mural_tf.export.model_card import describe_model
from mural_tf.export.restore import restore_from_export
from mural_tf.export.saved_model import export_model, variables_of
from mural_tf.export.workdir import export_workdir
from mural_tf.text.vocabulary_file import digest, load_vocabulary

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def loaded(export):
    """Both encoders, loaded by TensorFlow alone."""
    return {name: tf.saved_model.load(str(export / name / "1")) for name in ("image_encoder", "text_encoder")}


def test_images_equal_the_model_in_memory(loaded, model, config):
    signatures = loaded["image_encoder"].signatures
    expected = model.embed_images(pixels(config)).numpy()
    assert np.abs(expected[0] - expected[1]).max() > 100 * TOLERANCE  # different images differ
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1.0, atol=1e-5)
    embedding = signatures["serving_default"](image_bytes=tf.constant(pictures()))["embedding"]
    assert difference(embedding, expected) <= TOLERANCE
    image = tf.cast(pixels(config), tf.float32) / 255.0
    assert difference(signatures["image"](image=image)["embedding"], expected) <= TOLERANCE
    assert signatures["serving_default"].structured_outputs["embedding"].shape.as_list() == [None, 80]


def test_texts_equal_the_model_in_memory(loaded, model):
    loaded = loaded["text_encoder"]
    tokens = toy_tokenizer(lower_case=True)(tf.constant(TEXTS))
    expected = model.embed_texts(tokens).numpy()
    assert np.abs(expected[0] - expected[2]).max() > 100 * TOLERANCE
    embedding = loaded.signatures["serving_default"](text=tf.constant(TEXTS))["embedding"]
    assert difference(embedding, expected) <= TOLERANCE
    assert difference(embedding[0], embedding[4]) == 0.0  # casing travels with the export
    assert difference(loaded.signatures["tokens"](**tokens)["embedding"], expected) <= TOLERANCE
    text_text = loaded.signatures["text_text"](text=tf.constant(TEXTS))["text_text_embedding"]
    assert difference(text_text, model.embed_texts(tokens, "text_text")) <= TOLERANCE
    assert difference(text_text, expected) > 100 * TOLERANCE


WITHOUT_THE_LIBRARY = """
import base64, json, sys
import numpy as np, tensorflow as tf, tensorflow_text
root = sys.argv[1]
vectors = {}
for name, key in (("image_encoder", "image_bytes"), ("text_encoder", "text")):
    request = json.load(open(f"{root}/serving/{name}_request.json"))
    values = [instance[key] for instance in request["instances"]]
    values = [base64.b64decode(value["b64"]) if isinstance(value, dict) else value for value in values]
    loaded = tf.saved_model.load(f"{root}/{name}/1")
    signature = loaded.signatures[request["signature_name"]]
    vectors[name] = signature(**{key: tf.constant(values)})["embedding"].numpy().tolist()
assert not [name for name in sys.modules if name.startswith("mural_tf")]
print(json.dumps(vectors))
"""


@pytest.mark.slow  # the same answers in this process: above
def test_a_process_without_the_library_answers_the_example_requests(export, model, config, tmp_path):
    command = [sys.executable, "-c", WITHOUT_THE_LIBRARY, str(export)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    vectors = json.loads(run.stdout)
    request = json.loads((export / "serving/image_encoder_request.json").read_text())
    data = base64.b64decode(request["instances"][0]["image_bytes"]["b64"])
    image = evaluation_image(decode_image(data), config.image_tower)
    assert np.abs(np.array(vectors["image_encoder"]) - model.embed_images(image[None]).numpy()).max() <= TOLERANCE
    texts = [i["text"] for i in json.loads((export / "serving/text_encoder_request.json").read_text())["instances"]]
    expected = model.embed_texts(toy_tokenizer(lower_case=True)(tf.constant(texts))).numpy()
    assert np.abs(np.array(vectors["text_encoder"]) - expected).max() <= TOLERANCE


def test_description(export, model, config):
    card = json.loads((export / "model_card.json").read_text(encoding="utf-8"))
    assert card["metrics"] == {"retrieval/en/mean_recall": 41.5, "retrieval/de/mean_recall": None}
    assert card["training_data"]["license"] == "CC0-1.0" and card["training_data"]["languages"] == ["de", "en"]
    assert preparation(config.image_tower).items() <= card["image"].items()
    assert card["embedding_size"] == 80 and card["parameters"] == sum(map(tf.size, model.trainable_variables))
    assert abs(card["temperature"] - np.exp(-2.0)) < 1e-6
    expected = config.copy_and_resolve_references()
    expected.vocabulary.sha256 = digest(toy_tokenizer().vocabulary)
    assert load_config(export / "config.json").to_dict() == expected.to_dict()
    assert load_vocabulary(export / "vocabulary.txt") == toy_tokenizer().vocabulary
    assert str(config.data.directory) not in json.dumps(card["training_data"])


def test_what_is_there_is_kept(export, model, config, tmp_path):
    tokenizer = toy_tokenizer()
    before = {path: path.stat().st_mtime_ns for path in export.rglob("*")}
    with pytest.raises(UserError, match="holds an export already: add a version to it with --version=auto, "):
        export_model(model, tokenizer, config, export)
    with pytest.raises(UserError, match="is an export already: name the workdir that it was made of"):
        export_workdir(export, tmp_path / "copy")
    assert {path: path.stat().st_mtime_ns for path in export.rglob("*")} == before
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is not an export"):
        export_model(model, tokenizer, config, foreign, overwrite=True)
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
    with pytest.raises(UserError, match="Cannot write the export"):
        export_model(model, tokenizer, config, foreign / "thesis.txt" / "export")


@pytest.mark.parametrize("error, shown", [
    (KeyboardInterrupt(), ""),
    (OSError(errno.ENOSPC, "No space left on device"), "Cannot write the export .*No space left on device"),
    (tf.errors.ResourceExhaustedError(None, None, "variables; No space left"), "Cannot write the .*No space left"),
])  # fmt: skip
def test_a_failed_export_leaves_the_old_one(model, config, tmp_path, monkeypatch, error, shown):
    def failing(*_):
        raise error

    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "model_card.json").write_text("{}")
    monkeypatch.setattr(saved_model, "_write", failing)
    with pytest.raises(UserError if shown else KeyboardInterrupt, match=shown):
        export_model(model, toy_tokenizer(), config, folder, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".export.lock", "export"]
    assert [path.name for path in folder.iterdir()] == ["model_card.json"]
    assert (folder / "model_card.json").read_text() == "{}"
    monkeypatch.setattr(saved_model, "_write", lambda *a: (a[3] / "model_card.json").write_text('{"new": 1}'))
    export_model(model, toy_tokenizer(), config, folder, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".export.lock", "export"]
    assert (folder / "model_card.json").read_text() == '{"new": 1}'


def test_one_process_exports_to_a_folder(model, config, tmp_path, monkeypatch):
    def meanwhile(*_):  # as another process would, in the midst of the first one's work
        export_model(model, toy_tokenizer(), config, tmp_path / "export")

    monkeypatch.setattr(saved_model, "_write", meanwhile)
    with pytest.raises(UserError, match="Another process is exporting to .*export: wait for it"):
        export_model(model, toy_tokenizer(), config, tmp_path / "export")


def values(model):
    return [variable.numpy() for part in model.weights_by_part().values() for variable in variables_of(part)]


def test_weights_come_back_out_of_an_export(export, model, config, monkeypatch):
    monkeypatch.setattr(restore, "load_saved_model", functools.cache(restore.load_saved_model))
    other, expected = toy_model(config, seed=1), values(model)
    assert sum((ours != theirs).any() for ours, theirs in zip(values(other), expected)) > 40
    other.log_temperature.assign(-1.0)

    wide, fitting = config.copy_and_resolve_references(), other.text_encoder
    wide.text_tower.feed_forward_size = 128
    other.text_encoder = build_text_encoder(wide.text_tower, toy_tokenizer().vocabulary_size)
    before = values(other)
    with pytest.raises(UserError, match="another architecture or vocabulary: layer_0/intermediate/kernel:0"):
        restore_from_export(other, export)
    assert all(np.array_equal(*both) for both in zip(values(other), before))  # nothing, unless all of it fits
    other.text_encoder = fitting
    restore_from_export(other, export)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(values(other), expected))


def test_workdir_exports_its_checkpoint_with_its_evaluation(model, config, tmp_path, monkeypatch):
    save_config(config, tmp_path / "config.json")
    toy_tokenizer().save(tmp_path / "vocabulary.txt")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        export_workdir(tmp_path)
    tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoints/model"))
    rows = [{"step": 1, "a/mean_recall": 1.0}, {"step": 2, "a/mean_recall": 2.0}, {"step": 3, "train/loss": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    calls = []
    monkeypatch.setattr(saved_model, "_write", lambda *arguments: calls.append(arguments))
    assert export_workdir(tmp_path) == tmp_path / "export"
    restored, tokenizer, _, _, (metrics, evaluations), license = calls[0]
    assert license == ""
    assert metrics == {"a/mean_recall": 1.0}  # of the checkpoint's step
    assert evaluations == {"a": {"data": "", "split": "", "step": 1, "languages": []}}
    assert tokenizer.vocabulary == toy_tokenizer().vocabulary
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(values(restored), values(model)))


def test_a_card_names_what_was_evaluated_without_the_machines_folders(model, config):
    found = {"emoji": {"data": "/home/me/emoji_core/", "split": "test", "step": 9, "languages": ["en"]}}
    card = describe_model(model, config, {"emoji/all/mean_recall": 1.0}, found)
    assert card["evaluations"] == {"emoji": {**found["emoji"], "data": "emoji_core"}}


@pytest.mark.parametrize("name", ["image_encoder", "text_encoder"])
def test_encoders_are_saved_without_gradients_which_would_never_be_freed(export, name):
    graph = serving._graph(export / name / "1")
    nodes = list(serving.nodes_of(graph))
    assert nodes and not [node.name for node in nodes if "_gradient_op_type" in node.attr]
    assert not graph.library.registered_gradients


def test_versions_are_added_and_nothing_else_changes(model, config, tmp_path, monkeypatch):
    def write(model, tokenizer, config, directory, evaluated, license, number=0):
        described = directory / f"versions/{number}" if number else directory
        for name in ("image_encoder", "text_encoder"):
            (directory / name / str(number or 1)).mkdir(parents=True)
            (directory / name / str(number or 1) / "saved_model.pb").write_text(str(number))
        described.mkdir(parents=True, exist_ok=True)
        (described / "model_card.json").write_text("{}")

    monkeypatch.setattr(saved_model, "_write", write)
    folder, arguments = tmp_path / "export", (model, toy_tokenizer(), config, tmp_path / "export")
    export_model(*arguments)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert export_model(*arguments, version="auto") == folder / "versions/2"
    assert export_model(*arguments, version="7") == folder / "versions/7"
    assert export_model(*arguments, version="auto") == folder / "versions/8"
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert versions.models_of(folder) == {"image_encoder": [1, 2, 7, 8], "text_encoder": [1, 2, 7, 8]}
    assert {path.name for path in folder.iterdir()} == {"image_encoder", "text_encoder", "versions", "model_card.json"}
    for options, words in (
        ({"overwrite": True}, "holds versions: add one with --version=auto"),
        ({"overwrite": True, "version": "auto"}, "--overwrite, which replaces an export, or --version, which adds"),
        ({}, "holds versions: add one with --version=auto"),
    ):
        with pytest.raises(UserError, match=words):
            export_model(*arguments, **options)
    export_model(*arguments[:3], tmp_path / "new", version="auto")
    assert versions.newest_description(tmp_path / "new") == tmp_path / "new/versions/1"


def test_the_loaded_export_names_unusable_images_and_has_both_heads(export, model):
    embedder = mural_tf.load(export)
    good = pictures()[0]
    huge = good[:16] + b"\x7f\xff\xff\xff" * 2 + good[24:]  # a PNG that says it is 2 billion pixels wide
    embeddings, kept = embedder.encode_image([huge, good, b"no image"], on_error="skip")
    np.testing.assert_array_equal(kept, [1])
    assert abs(np.linalg.norm(embeddings[0]) - 1.0) < TOLERANCE
    expected = model.embed_texts(toy_tokenizer(lower_case=True)(TEXTS), head="text_text").numpy()
    assert difference(embedder.with_text_head("text_text").encode_text(TEXTS), expected) < TOLERANCE
