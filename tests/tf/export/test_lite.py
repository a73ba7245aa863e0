"""The `lite/` of a model: equal to it within each kind's precision, read without TensorFlow, refused in a line."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from toy_data import toy_tokenizer
from toy_export import TEXTS, pictures, pixels, small_toy

import mural_tf
from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_lite.fingerprint import TOLERANCE, take_fingerprint
from mural_tf.models.embedder import embedder_of

pytest.importorskip("ai_edge_litert", reason="needs LiteRT: pip install -e '.[lite]'")
from mural_lite.litert.model import LiteModel
from mural_lite.litert.runtime import Encoder
from mural_tf.encoders.kernels import ACTIVATIONS
from mural_tf.export.int8 import layers_of, to_float16, to_int8
from mural_tf.export.lite_encoders import _convert
from mural_tf.runs import lite as runs_lite
from mural_tf.runs.lite import Choice, choices, describe, export_lite

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def small():
    """A configuration and its model: a ResNet of four blocks has half as many layers to convert."""
    return small_toy()


@pytest.fixture(scope="module")
def files(lite_toy):
    """Both float32 files."""
    return {name: (lite_toy / f"{name}.tflite").read_bytes() for name in ("image", "text")}


@pytest.fixture(scope="module")
def workdir(lite_toy):
    """A workdir with data, its configuration, and its export's lite/ with the report."""
    folder = lite_toy / "workdir"
    return folder, load_config(folder / "config.json"), json.loads((folder / "export/lite/report.json").read_text())


def run(content, path, **inputs):
    path.write_bytes(content)
    encoder = Encoder(path)
    rows = [encoder({name: values[i : i + 1] for name, values in inputs.items()}) for i in range(len(inputs["image"]))]
    return np.concatenate([row["embedding"] for row in rows])


def test_files_equal_the_model_within_their_precision(small, files, tmp_path):
    config, model = small
    images = (tf.cast(pixels(config), tf.float32) / 255.0).numpy()
    expected = model.embed_images(images).numpy()
    sizes = {}
    for kind, worst in (("float32", 1e-5), ("float16", 5e-3), ("int8", 0.2)):
        content = Choice(kind).apply(files["image"])
        assert np.abs(run(content, tmp_path / kind, image=images) - expected).max() < worst, kind
        sizes[kind] = len(content)
    assert sizes["int8"] < sizes["float16"] < sizes["float32"]


def test_a_text_costs_its_own_length_and_every_head_answers(small, files, tmp_path):
    _, model = small
    tokens = {name: ids.numpy() for name, ids in toy_tokenizer()(tf.constant(TEXTS)).items()}
    expected = {"embedding": model.embed_texts(tokens).numpy()}
    expected["text_text_embedding"] = model.embed_texts(tokens, "text_text").numpy()
    for kind, worst in (("float32", 1e-5), ("float16", 5e-3), ("int8", 0.1)):
        (tmp_path / kind).write_bytes(Choice(kind).apply(files["text"]))
        encoder = Encoder(tmp_path / kind)
        for row in range(len(TEXTS)):
            length = int(tokens["input_mask"][row].sum())
            for width in (length, 8):  # padded or not is the same
                found = encoder({name: ids[row : row + 1, :width] for name, ids in tokens.items()})
                for name, values in expected.items():
                    assert np.abs(found[name][0] - values[row]).max() < worst, (kind, name, row, width)


def test_int8_is_by_channel_and_what_is_named_stays_float(files):
    """A row of weights of one scale for all would lose the small rows."""
    layers = layers_of(files["text"])
    assert layers[0] == "table" and len(layers) > 3
    assert 0.9 < len(to_int8(files["text"], layers)) / len(files["text"]) < 1.1
    sizes = [len(to_int8(files["text"], layers[:count])) for count in range(3)]
    assert sizes == sorted(set(sizes))
    tried = [str(choice) for choice in choices(files["text"], "")]
    assert tried[0] == "int8" and tried[1] == "int8, table in float32" and tried[-2:] == ["float16", "float32"]
    assert len(tried) == 6 and choices(files["text"], "float16") == [Choice("float16")]
    assert len(to_float16(files["text"])) < 0.7 * len(files["text"])


def test_int8_products_by_hand(tmp_path):
    """Rows of scales 1e-3 and 1e3: by one scale the first row would be 0."""
    kernel = np.concatenate([np.full([64, 8], 1e-3), np.full([64, 8], 1e3)], axis=1).astype(np.float32) * np.linspace(
        -1, 1, 64, dtype=np.float32
    ).reshape(64, 1)
    matrix = tf.Variable(np.tile(kernel, [1, 2]))

    @tf.function(input_signature=[tf.TensorSpec([1, 64], tf.float32, name="image")])
    def product(image):
        return {"embedding": tf.matmul(image, matrix)}

    x = np.random.default_rng(0).normal(size=[1, 64]).astype(np.float32)
    found = run(to_int8(_convert(product, [matrix], "toy")), tmp_path / "a", image=x)
    expected = x @ matrix.numpy()
    assert np.abs(found / expected - 1.0).max() < 0.05


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_a_product_under_an_activation_is_computed_once(name, tmp_path):
    """The converter puts constants of an activation into copies of the product's weights."""
    draw = np.random.default_rng(0)
    matrix, bias = (tf.Variable(draw.normal(0.0, 0.3, size).astype(np.float32)) for size in ([64, 32], [32]))

    @tf.function(input_signature=[tf.TensorSpec([1, 64], tf.float32, name="image")], autograph=False)
    def activated(image):
        return {"embedding": ACTIVATIONS[name](tf.nn.bias_add(tf.matmul(image, matrix), bias), training=False)}

    content = _convert(activated, [matrix, bias], "toy")
    assert len(layers_of(content)) == 1 and len(content) < 1.5 * 4 * 64 * 32
    x = draw.normal(size=[3, 64]).astype(np.float32)
    expected = ACTIVATIONS[name](x @ matrix.numpy() + bias.numpy(), training=False)
    assert np.abs(run(content, tmp_path / "a", image=x) - expected).max() < 1e-5


def test_what_tensorflow_lite_lacks_is_named():
    decode = tf.function(lambda data: tf.io.decode_jpeg(data), [tf.TensorSpec([], tf.string)], autograph=False)
    with pytest.raises(UserError, match="TensorFlow Lite has no .*DecodeJpeg.*, which this toy needs"):
        _convert(decode, [], "toy")


def test_a_workdirs_lite_is_the_model_and_says_what_it_costs(workdir, small, eager):
    folder, config, report = workdir
    assert {path.name for path in (folder / "export/lite").iterdir()} == {
        "config.json", "image_encoder.tflite", "lite.json", "model_probes.npy", "report.json", "text_encoder.tflite",
        "vocabulary.txt",
    }  # fmt: skip
    assert set(report["mean_recall"]) == {"en", "de"}
    for name, rows in report["encoders"].items():
        chosen = rows[-1]
        assert chosen["chosen"] and not any(row["chosen"] for row in rows[:-1])
        assert max(chosen["lost"].values()) <= 0.5 or chosen["kind"] == "float32"
        assert all(max(row["lost"].values()) > 0.5 for row in rows[:-1])
        assert chosen["milliseconds"] > 0.0 and 0.9 < chosen["smallest_cosine"] <= chosen["mean_cosine"] < 1.0 + 1e-6
        assert chosen["bytes"] == (folder / f"export/lite/{name}.tflite").stat().st_size
    assert "<- chosen" in describe(report)
    lite, model = mural_tf.load(folder / "export/lite"), embedder_of(small[1], toy_tokenizer(), config, step=1)
    assert lite.step == 1 and lite.embedding_size == model.embedding_size and lite.prompts == {"query": "thing "}
    for ours, theirs in (
        (lite.encode_text(TEXTS), model.encode_text(TEXTS)),
        (lite.encode_image(pictures()), model.encode_image(pictures())),
        (lite.encode_text(["w1"], prompt="query"), model.encode_text(["thing w1"])),
        (lite.with_text_head("text_text").encode_text(TEXTS), model.with_text_head("text_text").encode_text(TEXTS)),
    ):
        assert np.sum(ours * theirs, axis=1).min() > 0.98
    embeddings, kept = lite.encode_image([b"no picture", pictures()[0]], on_error="skip")
    assert kept.tolist() == [1] and embeddings.shape == (1, model.embedding_size)


def test_texts_have_no_padding_and_equal_lengths_follow_each_other(workdir):
    model = LiteModel(workdir[0] / "export/lite")
    texts = [b"w1 w2 w3 w1 w2 w3 w1", b"w1", b"w2 w3", b"w3"]
    expected = [model.text_function()([text])[0] for text in texts]
    lengths = []

    def encode(inputs, whole=model._texts):
        assert all(ids.shape == inputs["input_mask"].shape and inputs["input_mask"].all() for ids in inputs.values())
        lengths.append(inputs["input_mask"].size)
        return whole(inputs)

    model._texts = encode
    np.testing.assert_array_equal(model.text_function()(texts), expected)
    assert lengths == sorted(len(ids) for ids, _ in model._pieces.rows(texts)) and lengths[0] == lengths[1]


def test_the_lite_model_has_its_models_fingerprint(workdir, small, tmp_path):
    folder, config, report = workdir
    lite = mural_tf.load(folder / "export/lite")
    whole = take_fingerprint(embedder_of(small[1], toy_tokenizer(), config))
    assert str(take_fingerprint(lite)) == str(whole) and take_fingerprint(lite).distance(whole) < 1e-5
    assert TOLERANCE <= report["bound"] < 0.1
    other = shutil.copytree(folder / "export/lite", tmp_path / "other")
    probes = np.load(other / "model_probes.npy")
    np.save(other / "model_probes.npy", probes[:, ::-1])
    with pytest.raises(UserError, match="are not the encoders of the model that they name: 1 - cosine is"):
        take_fingerprint(mural_tf.load(other))


def test_the_bound_covers_the_probes(workdir, tmp_path, monkeypatch):
    """Also where the data has no pictures to compare: without it such a `lite/` was never opened again."""
    probes = np.tile(np.eye(3, dtype=np.float32), [3, 1])
    turned = np.roll(probes, 1, axis=1) * np.float32(0.1)
    monkeypatch.setattr(
        runs_lite, "encode_probes", lambda embedder: probes + (0.0 if embedder.original is None else turned)
    )
    report = export_lite(workdir[0], tmp_path, precision="float32")
    assert report["bound"] == pytest.approx(2.0 * (1.0 - 1.0 / np.sqrt(1.01)), rel=1e-3)
    assert report["mean_recall"] == {}  # a given kind is not tried on the data, which takes minutes


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "tensorflow_text", "keras", "tf_keras"), None))  # as if not installed
import mural_tf, numpy as np
lite, black = mural_tf.load(sys.argv[1]), np.zeros((9, 7, 3), np.uint8)
np.savez(sys.argv[2], texts=lite.encode_text(["thing w1", ""]), images=lite.encode_image([black]))
from mural_tf.commands import run
from mural_search import commands, server
assert not [name for name, module in sys.modules.items() if module and name.split(".")[0] in ("tensorflow", "keras")]
"""


def test_it_needs_no_tensorflow(workdir, tmp_path):
    folder, *_ = workdir
    command = [sys.executable, "-c", WITHOUT, folder / "export/lite", tmp_path / "found.npz"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": path})
    lite, found = mural_tf.load(folder / "export/lite"), np.load(tmp_path / "found.npz")
    np.testing.assert_array_equal(found["texts"], lite.encode_text(["thing w1", ""]))
    np.testing.assert_array_equal(found["images"], lite.encode_image([np.zeros((9, 7, 3), np.uint8)]))


def _cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def _describe(**values):
    def change(folder):
        path = folder / "lite.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def _garbage(folder):
    path = folder / "text_encoder.tflite"
    path.write_bytes(b"\0" * path.stat().st_size)


REFUSALS = {
    "a file cut off": (lambda folder: _cut(folder / "text_encoder.tflite"), ["text_encoder.tflite", "bytes, expected"]),
    "a file that is missing": (lambda folder: (folder / "vocabulary.txt").unlink(), ["vocabulary.txt", "no bytes"]),
    "another format": (_describe(format=9), ["lite.json", "format 9", "expected 1"]),
    "other pieces": (_describe(text={"kind": "letters"}), ["lite.json", "'letters'", "word_pieces"]),
    "no encoder": (_garbage, ["text_encoder.tflite", "ai-edge-litert", "damaged"]),
    "another vocabulary": (lambda folder: _swap(folder / "vocabulary.txt"), ["vocabulary.txt", "SHA-256"]),
    "no description": (lambda folder: (folder / "lite.json").write_text("{"), ["lite.json"]),
}


def _swap(path):
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:5], *lines[6:8], lines[5], *lines[8:]]))


@pytest.mark.parametrize("name", REFUSALS)
def test_damage_is_refused_in_a_line(workdir, tmp_path, name):
    folder = shutil.copytree(workdir[0] / "export/lite", tmp_path / "lite")
    damage, words = REFUSALS[name]
    damage(folder)
    with pytest.raises(UserError) as error:
        mural_tf.load(folder).encode_text(["a"])
    message = str(error.value)
    assert all(word in message for word in words) and "\n" not in message, message


def test_an_unknown_kind_is_refused(workdir):
    with pytest.raises(UserError, match="Unknown kind 'int4' of lite encoders: expected one of int8, float16, float32"):
        export_lite(workdir[0], workdir[0] / "export", precision="int4")
