"""`Embedder` and `load`: in memory, from a workdir, from an export; and every way in which a folder can be wrong."""

import copy
import doctest
import functools
import io
import json
import os
import pathlib
import pickle
import shutil
import sys

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from odd_pictures import png_of_size
from PIL import Image
from refusals import assert_refused
from toy_data import ONE_LAYER, toy_tokenizer

import mural_lite.embedder
import mural_tf
from mural_lite import models
from mural_lite.config import base_config
from mural_lite.config_file import save_config
from mural_lite.errors import UserError
from mural_tf.encoders import saved_models
from mural_tf.models.embedder import embedder_of
from mural_tf.text.vocabulary_file import digest

LETTERS = "abcdefghij"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS), "bad", "cab"]
COLORS = {"red": (250, 0, 0), "green": (0, 250, 0), "blue": (0, 0, 250)}


def small_config():
    config = base_config()
    config.image_tower.precision = config.text_tower.precision = "float32"
    config.image_tower.update(dict(ONE_LAYER, image_size=32, resize=36))
    config.embedding_size = 80  # the width of that image tower
    config.text_tower.update(dict(layers=1, hidden_size=16, heads=2, feed_forward_size=32, max_length=12))
    return config


def png(color, size=(8, 8)):
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, format="PNG")
    return buffer.getvalue()


class ColorModel:
    """Maps an image to its mean colour and a text to its numbers of r, g and b, L2-normalised."""

    batches = []  # the shapes of what was encoded
    embedding_size = 3

    def embed_images(self, images):
        return tf.math.l2_normalize(tf.reduce_mean(tf.cast(images, tf.float32), [1, 2]), axis=-1)

    def embed_texts(self, tokens):
        tf.numpy_function(lambda ids: self.batches.append(ids.shape) or ids, [tokens["input_word_ids"]], tf.int32)
        letters = tf.stack(
            [tf.reduce_sum(tf.cast(tokens["input_word_ids"] == ord(c), tf.float32), -1) for c in "rgb"], 1
        )
        return tf.math.l2_normalize(letters + 1e-4, axis=-1)


def byte_tokenizer(texts, pad):
    assert pad == "longest"
    return {"input_word_ids": tf.cast(tf.io.decode_raw(texts, tf.uint8, fixed_length=_longest(texts)), tf.int32)}


def _longest(texts):
    return tf.maximum(tf.reduce_max(tf.strings.length(texts)), 1)


@pytest.fixture(scope="module")
def color_embedder():
    embedder = embedder_of(ColorModel(), byte_tokenizer, small_config())
    embedder.encode_text("traced")
    return embedder


def test_unusable_images_are_named(color_embedder, tmp_path):
    """`test_embedder_contract.py` skips bytes that are no picture, and says their number."""
    broken, missing, pipe = (tmp_path / name for name in ("broken.jpg", "missing.jpg", "pipe.jpg"))
    broken.write_bytes(png(COLORS["red"])[:30])
    os.mkfifo(pipe)
    bomb = png_of_size(16_385, 16_385)
    images = [bomb, broken, missing, png(COLORS["red"]), pipe, np.zeros((4, 4, 2), np.uint8)]
    embeddings, kept = color_embedder.encode_image(images, batch_size=1, on_error="skip")
    np.testing.assert_array_equal(kept, [3])
    np.testing.assert_array_equal(embeddings, [[1, 0, 0]])
    for image, words in (
        (bomb, "Image 0 cannot be used: image of more than 268,435,456 pixels"),
        (broken, "broken.jpg cannot be used: file that is not an image"),
        (missing, "missing.jpg cannot be read: No such file"), (pipe, "pipe.jpg cannot be used: not a regular file"),
    ):  # fmt: skip
        assert_refused(color_embedder.encode_image, [words], [image])


def test_files_tensors_grey_and_transparent_arrays_are_images(color_embedder, tmp_path):
    data, pixels = png(COLORS["red"], (8, 6)), np.full((6, 8, 3), COLORS["red"], np.uint8)
    (tmp_path / "red.png").write_bytes(data)
    clear = np.concatenate([pixels, np.zeros((6, 8, 1), np.uint8)], axis=2)
    with open(tmp_path / "red.png", "rb") as file:
        images = [io.BytesIO(data), file, tf.constant(pixels), np.full((6, 8), 90, np.uint8), clear]
        embeddings = color_embedder.encode_image(images)
    white = np.full(3, 3**-0.5)
    np.testing.assert_allclose(embeddings, [[1, 0, 0]] * 3 + [white, white], atol=1e-6)
    np.testing.assert_allclose(color_embedder.encode_image(tf.constant(pixels)), [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(color_embedder.encode_image(io.BytesIO(data)), [1, 0, 0], atol=1e-6)
    assert color_embedder.encode_image(tf.constant(np.stack([pixels, pixels]))).shape == (2, 3)
    with open(tmp_path / "red.png", encoding="latin-1") as file, pytest.raises(TypeError, match="mode 'rb'"):
        color_embedder.encode_image([file])


def test_texts_may_be_tensors_or_columns(color_embedder):
    class Column:  # what a Series of pandas is to those who read it
        def __iter__(self):
            return iter(["r", "b"])

    expected = color_embedder.encode_text(["r", "b"])
    for texts in (tf.constant(["r", "b"]), Column()):
        np.testing.assert_array_equal(color_embedder.encode_text(texts), expected)
    np.testing.assert_array_equal(color_embedder.encode_text(tf.constant("r")), expected[0])


def test_examples_in_docstrings(color_embedder):
    results = doctest.testmod(mural_lite.embedder, extraglobs={"embedder": color_embedder, "np": np})
    assert results.attempted == 25 and not results.failed


def test_classes_are_normalised_means_of_normalised_prompts(color_embedder):
    templates = ["{}", "a photo of something {c}, at night"]
    classes = []
    for label in COLORS:
        prompts = color_embedder.encode_text([label, f"a photo of something {label}, at night"])
        mean = sum(prompts) / 2
        classes.append(mean / np.sqrt((mean**2).sum()))
    assert np.abs(color_embedder.encode_labels([*COLORS], templates) - classes).max() < 1e-6
    images = color_embedder.encode_image(list(map(png, COLORS.values())))
    for labels in ([*COLORS], np.array(classes, np.float32)):
        best, cosines = color_embedder.classify(images, labels, *[templates] * isinstance(labels, list))
        np.testing.assert_array_equal(best, [0, 1, 2])
        assert np.abs(cosines - images @ np.array(classes).T).max() < 1e-6
    best, cosines = color_embedder.classify([], ["red"])
    assert best.shape == (0,) and cosines.shape == (0, 1)


def test_pickles_and_copies_load_again(color_embedder, monkeypatch):
    loaded = copy.copy(color_embedder)
    loaded.text_heads = {"other": loaded._encoders.embed_images}
    loaded.reload = reload_it
    RELOADED.append(loaded)
    for again in (pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded)):
        assert again is loaded
    assert pickle.loads(pickle.dumps(loaded.with_text_head("other")))._head == "other"


RELOADED = []


def reload_it():
    return RELOADED[-1]


def test_error_of_a_generator_reaches_the_caller(color_embedder):
    def images():
        yield png(COLORS["red"])
        raise UserError("the file is truncated")

    with pytest.raises(UserError, match="the file is truncated"):
        color_embedder.encode_image(images())


def test_texts_keep_their_order_and_are_batched_by_length(color_embedder):
    texts = ["b" * 9, "r", "g" * 5, "", "r", "r" * 8, "ü b", "gg"]
    ColorModel.batches.clear()
    embeddings = color_embedder.encode_text(texts, batch_size=3)
    r, g, b = np.eye(3)
    assert np.abs(embeddings - [b, r, g, np.full(3, 3**-0.5), r, r, b, g]).max() < 1e-3
    # "r" once, sorted by bytes: "", r, gg | ü b (4 bytes), ggggg, rrrrrrrr | bbbbbbbbb
    assert ColorModel.batches == [(3, 2), (3, 8), (1, 9)]


def test_batches_hold_a_bounded_number_of_tokens():
    """Three long texts among many short ones took 5.6 GB, as all of them were one batch as wide as the longest."""
    config = small_config()
    config.text_tower.max_length = 512
    embedder = embedder_of(ColorModel(), byte_tokenizer, config)
    embedder.encode_text("traced")
    texts = ["rg" * (1 + i % 7) + "b" * i for i in range(200)] + ["r" * 400 + "g" * i for i in range(1, 20)]
    ColorModel.batches.clear()
    embeddings = embedder.encode_text(texts)
    assert sum(rows for rows, _ in ColorModel.batches) == len(set(texts))
    assert all(rows * (width + 2) <= 4096 and rows <= 64 for rows, width in ColorModel.batches)
    assert max(rows for rows, _ in ColorModel.batches) > 50  # short ones are many
    singles = np.array([embedder.encode_text(text) for text in texts[::20]])
    assert np.abs(embeddings[::20] - singles).max() < 1e-6
    ColorModel.batches.clear()
    embedder.encode_text(["a" * 100_000, "b" * 200_000])  # no token is beyond the tower's length
    assert len(ColorModel.batches) == 1


def test_a_single_item_gives_a_vector(color_embedder, tmp_path):
    text = color_embedder.encode_text("a red balloon")
    assert np.array_equal(text, color_embedder.encode_text(["a red balloon"])[0])
    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), np.uint8)
    picture = PIL.Image.fromarray(pixels)
    picture.save(tmp_path / "a.png")
    encoded = (tmp_path / "a.png").read_bytes()
    for image in (pixels, picture, encoded, tmp_path / "a.png", str(tmp_path / "a.png")):
        assert np.array_equal(color_embedder.encode_image(image), color_embedder.encode_image([pixels])[0])
    clear = PIL.Image.new("RGBA", (8, 8), (9, 9, 9, 0))  # transparent: on white
    assert np.allclose(color_embedder.encode_image(clear), 3**-0.5, atol=1e-3)
    with pytest.raises(ValueError, match="for several images"):
        color_embedder.encode_image(pixels, on_error="skip")


RED = png(COLORS["red"])
REFUSED = [  # what is asked of an embedder, the error, the words that must occur
    *(
        (lambda e, texts=texts: e.encode_text(texts), TypeError, words)
        for texts, words in (
            (None, "None"),
            (b"a", "b'a'"),
            (3, "3"),
            (["a", None], "number 1 is None"),
            ([b"a"], "number 0 is b'a'"),
            ({"a": 1}, "strings"),
            (["a", float("nan")], "strings"),
            (tf.constant([1.0]), "strings"),
        )
    ),
    (lambda e: e.encode_image(None), TypeError, "a path, an open file, encoded bytes, .* None"),
    (lambda e: e.encode_image([np.zeros((2, 2, 3), np.uint8), None]), TypeError, "Image 1 is None.* a path"),
    (lambda e: e.encode_image([RED, b""]), UserError, "Image 1 .*empty image file"),
    (lambda e: e.encode_image([np.zeros((4, 4, 2), np.uint8)]), UserError, r"Image 0: .*\[H, W, 3\].*\[4, 4, 2\]"),
    (lambda e: e.encode_text(["a"], batch_size=0), ValueError, "batch_size is 0.* at least 1"),
    (lambda e: e.encode_image([RED], batch_size=0), ValueError, "batch_size is 0.* at least 1"),
    (lambda e: e.similarity(np.full((1, 3), np.nan, np.float32), ["a"]), ValueError, "NaN"),
    (lambda e: e.encode(["a"], normalize_embeddings=True), AttributeError, "encode_text and encode_image"),
    (pickle.dumps, TypeError, "model in memory"),
    (lambda e: e.classify([RED], ["red"], ["{}", "a photo"]), ValueError, "'a photo' has no place for the label"),
    (lambda e: e.classify([RED], []), ValueError, "labels is empty"),
    (lambda e: e.classify([RED], ["red"], []), ValueError, "templates is empty"),
    (lambda e: e.classify([RED], "red"), TypeError, "labels must be a list of str"),
    (lambda e: e.similarity(np.ones((2, 5), np.float32), ["red"]), ValueError, "5 wide, this model's 3"),
    (lambda e: e.search([RED], "red", k=0), ValueError, "k is 0: expected at least 1"),
    (lambda e: e.encode_text("a", prompt="query"), UserError, "no prompt 'query': expected one of none at all"),
]


@pytest.mark.parametrize("call, error, words", REFUSED, ids=[f"{words}-{n}" for n, (*_, words) in enumerate(REFUSED)])
def test_what_cannot_be_done_is_said_in_a_line(color_embedder, call, error, words):
    with pytest.raises(error, match=words):
        call(color_embedder)
    assert not hasattr(color_embedder, "something")


def test_lone_surrogates_do_not_crash(color_embedder):
    assert color_embedder.encode_text(["\udcff a"]).shape == (1, 3)  # what Python makes of a badly encoded argument


def test_diverged_model_is_named():
    class Diverged(ColorModel):
        def embed_images(self, images):
            return super().embed_images(images) * np.nan

    embedder = embedder_of(Diverged(), byte_tokenizer, small_config(), path="some/workdir")
    with pytest.raises(UserError, match="some/workdir maps 1 of 1 images to NaN"):
        embedder.encode_image([png(COLORS["red"])])


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    from mural_tf.models.build import build_model

    path = tmp_path_factory.mktemp("workdir")
    config = small_config()
    save_config(config, path / "config.json")
    (path / "vocabulary.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    model = build_model(config, len(VOCABULARY))
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:  # as initialised, the tower maps all texts to nearly one point
        variable.assign_add(random.normal(0, 0.2, variable.shape))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(path / "checkpoints"), 2)
    manager.save(checkpoint_number=42)
    return path, model


def test_workdir_equals_the_model_in_memory(workdir):  # traced, as users have it
    from mural_tf.data.images import decode_image, evaluation_image
    from mural_tf.text.word_pieces import WordPieceTokenizer

    path, model = workdir
    embedder = mural_tf.load(path)
    assert embedder.step == 42 and embedder.path == str(path)
    image = png((10, 200, 90), size=(50, 30))
    expected = model.embed_images(evaluation_image(decode_image(image), embedder.config.image_tower)[None]).numpy()
    assert np.abs(embedder.encode_image([image]) - expected).max() < 1e-6
    tokenizer = WordPieceTokenizer(VOCABULARY, max_length=12, lower_case=False, strip_accents=False)
    texts = ["bad cab", "", "a face", "漢字 नमस्ते 🙂", "cab " * 50]
    expected = model.embed_texts(tokenizer(tf.constant(texts), pad="max_length")).numpy()
    encoded = embedder.encode_text(texts, batch_size=2)
    assert np.abs(encoded - expected).max() < 1e-5
    assert encoded.shape == (5, embedder.embedding_size)
    assert np.abs(np.linalg.norm(encoded, axis=1) - 1).max() < 1e-5
    assert np.abs(encoded[0] - encoded[2]).max() > 1e-3  # different texts, different vectors


def test_the_example_of_load_runs(workdir, eager):
    results = doctest.testmod(models, extraglobs={"folder": workdir[0]})
    assert results.attempted == 2 and not results.failed


def damaged(workdir, tmp_path, change):
    copy = tmp_path / "copy"
    shutil.copytree(workdir[0], copy)
    change(copy)
    return copy


def with_config(path, branch="text_tower", **fields):
    config = json.loads((path / "config.json").read_text())
    (config[branch] if branch else config).update(fields)
    (path / "config.json").write_text(json.dumps(config))


def with_digest_of_another_order(path):
    with_config(path, "vocabulary", sha256=digest(VOCABULARY))
    (path / "vocabulary.txt").write_text("\n".join([*VOCABULARY[:-2], "cab", "bad"]) + "\n")


def other(branch="text_tower", **fields):
    return lambda path: with_config(path, branch, **fields)


@pytest.mark.parametrize("change, words", [
    (lambda p: (p / "vocabulary.txt").write_text("\n".join([*VOCABULARY, "more"]) + "\n"), ["vocabulary"]),
    (lambda p: (p / "vocabulary.txt").unlink(), ["vocabulary.txt"]),
    (with_digest_of_another_order, ["vocabulary.txt is not the model", f"expected {digest(VOCABULARY)}"]),
    (lambda p: shutil.rmtree(p / "checkpoints"), ["no checkpoint"]),
    (lambda p: (p / "config.json").write_text("{"), ["config.json", "not valid JSON"]),
    (lambda p: (p / "config.json").unlink(), ["neither a workdir", "nor an export"]),
    (lambda p: shutil.rmtree(p), ["does not exist"]),
    (other(hidden_size=32), ["does not fit"]),
    (other("", model=":"), ["config.json names model=':'"]),
    (other("method", margin=1), ["Unknown configuration key method.margin"]),
    (other("image_tower", width=float("inf")), ["image_tower.width=inf: expected 0.01 to 100"]),
    (other("image_tower", image_size=0), ["image_tower.image_size=0: expected 1 to 4096"]),
    (other(layers=10**6), ["text_tower.layers=1000000: expected 1 to 1000"]),
    (other("loss", temperature=0.0), ["loss.temperature=0.0", "expected numbers above 0"]),
    (other("loss", temperature_range=[0.1]), ["temperature_range=(0.1,): expected"]),
], ids=lambda value: value[-1] if isinstance(value, list) else "")  # fmt: skip
def test_broken_workdirs_are_named(workdir, tmp_path, change, words):
    assert_refused(mural_tf.load, words, damaged(workdir, tmp_path, change))


def test_a_stored_class_is_imported_only_with_trust(workdir, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "outside_method", raising=False)  # of another test
    copy = damaged(workdir, tmp_path, lambda p: with_config(p, "", model="outside_method:WideAlign"))
    with pytest.raises(UserError, match="config.json names model='outside_method:WideAlign'.*--trust"):
        mural_tf.load(copy)
    assert "outside_method" not in sys.modules
    assert mural_tf.load(copy, trust=True).config.model == "outside_method:WideAlign"


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    path = tmp_path_factory.mktemp("export")
    save_config(small_config(), path / "config.json")

    class ImageEncoder(tf.Module):
        def __init__(self):
            super().__init__()
            self.scale = tf.Variable([1.0, 1.0, 1.0])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
        def serve(self, image_bytes):
            def mean_color(data):
                image = tf.io.decode_image(data, channels=3, expand_animations=False)
                return tf.reduce_mean(tf.cast(image, tf.float32), [0, 1])

            colors = tf.map_fn(mean_color, image_bytes, fn_output_signature=tf.TensorSpec([3], tf.float32))
            return {"embedding": tf.math.l2_normalize(colors * self.scale, axis=-1)}

    class TextEncoder(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def serve(self, text):
            lengths = tf.cast(tf.strings.length(text), tf.float32)
            return {"embedding": tf.math.l2_normalize(tf.stack([lengths, 0 * lengths, 0 * lengths + 3], 1), axis=-1)}

    for name, module in (("image_encoder", ImageEncoder()), ("text_encoder", TextEncoder())):
        tf.saved_model.save(module, str(path / name / "1"), signatures={"serving_default": module.serve})
    return path


def test_export_is_loaded(export, monkeypatch):
    loaded, load_saved_model = [], saved_models.load_saved_model
    monkeypatch.setattr(saved_models, "load_saved_model", lambda path: loaded.append(path) or load_saved_model(path))
    embedder = mural_tf.load(str(export))
    assert embedder.embedding_size == 3 and embedder.encode_text("a").shape == (3,)
    assert [path.parent.name for path in loaded] == ["text_encoder"]  # of pictures only when the first one comes
    images = [png(COLORS["green"]), b"no image", np.full((9, 5, 3), COLORS["blue"], np.uint8)]
    embeddings, kept = embedder.encode_image(images, on_error="skip")
    np.testing.assert_array_equal(kept, [0, 2])
    assert np.abs(embeddings - [[0, 1, 0], [0, 0, 1]]).max() < 1e-6
    assert np.abs(embedder.encode_text(["abcd", ""]) - [[0.8, 0, 0.6], [0, 0, 1]]).max() < 1e-6  # (4, 0, 3) / 5


def test_broken_exports_are_named(export, tmp_path):
    copy = pathlib.Path(shutil.copytree(export, tmp_path / "copy"))
    texts, version = copy / "text_encoder", copy / "text_encoder/1"
    for change, words in (
        (lambda: (version / "saved_model.pb").write_bytes(b"damaged"), f"{version} is not a SavedModel or is damaged"),
        (lambda: shutil.rmtree(version), f"{texts} has no version"),
        (lambda: shutil.copytree(copy / "image_encoder/1", version), "no signature from 'text' to 'embedding'"),
    ):
        change()
        assert_refused(mural_tf.load, [words], copy)


@pytest.mark.parametrize("is_left_behind", [False, True])
def test_a_workdir_is_asked_by_its_export(tmp_path, monkeypatch, is_left_behind):
    """Which loads in a fraction of the time; a workdir that was trained on is another model than its export."""
    monkeypatch.setattr("mural_lite.models.importlib.util.find_spec", lambda name: None)  # of LiteRT
    export, loaded = tmp_path / "export", []
    assert models.export_of(tmp_path) == tmp_path
    (export / "text_encoder").mkdir(parents=True)
    assert models.export_of(export) == export and models.export_of(str(tmp_path)) == str(export)

    def open_model(path):
        loaded.append(os.fspath(path))
        return loaded[-1]

    def check(embedder):
        if is_left_behind and embedder == str(export):
            raise UserError("another model")

    monkeypatch.setattr(models, "open_model", open_model)
    model = models.open_to_ask(tmp_path, check)
    assert model == str(tmp_path if is_left_behind else export) and loaded == [str(export), model][: 1 + is_left_behind]
    if is_left_behind:
        with pytest.raises(UserError, match="another model"):
            models.open_to_ask(export, check)


def test_hub_modules_are_loaded(toy, tmp_path, monkeypatch):
    shutil.copytree(toy.path / "hub", tmp_path / "hub")
    shutil.copyfile(toy.path / "config.json", tmp_path / "config.json")
    monkeypatch.setattr(saved_models, "load_saved_model", functools.cache(saved_models.load_saved_model))
    embedder = mural_tf.load(tmp_path / "hub")
    texts, images = ["thing w1", "", "ding v7"], [png((10, 200, 90), size=(50, 30)), b"no image", png(COLORS["red"])]
    expected = toy.model.embed_texts(toy_tokenizer(lower_case=True)(tf.constant(texts)))
    assert np.abs(embedder.encode_text(texts) - expected).max() < 1e-5
    encoded, kept = embedder.encode_image(images, on_error="skip")
    np.testing.assert_array_equal(kept, [0, 2])
    colors = np.array([(10, 200, 90), COLORS["red"]], np.uint8)[:, None, None]  # every crop is the same
    readable = toy.model.embed_images(tf.constant(np.broadcast_to(colors, [2, 32, 32, 3])))
    assert np.abs(encoded - readable).max() < 1e-5
    assert embedder.config.image_tower.resize == 40
    (tmp_path / "config.json").unlink()
    assert mural_tf.load(tmp_path / "hub").config.image_tower.resize == 40  # the module says so itself
    (tmp_path / "hub/image_encoder/assets/settings.json").unlink()  # from elsewhere: resized to what the module takes
    assert mural_tf.load(tmp_path / "hub").config.image_tower.resize == 32
    shutil.copytree(tmp_path / "hub", tmp_path / "other", ignore=lambda *_: ["image_encoder"])
    with pytest.raises(UserError, match="image_encoder is not a SavedModel or is damaged"):
        mural_tf.load(tmp_path / "other")
