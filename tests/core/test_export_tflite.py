"""Smaller variants: equal to the model within their precision, smaller, and measured."""

import json

import numpy as np
import pytest
import tensorflow as tf
from toy_data import image_text_records, toy_config, toy_tokenizer
from toy_export import TEXTS, pixels, toy_model

from mural_tf.config_file import save_config
from mural_tf.data import records
from mural_tf.data.images import decode_image
from mural_tf.errors import UserError
from mural_tf.runs.variants import (
    LiteEncoder,
    _convert,
    convert_image_encoder,
    convert_text_encoder,
    describe,
    export_variants,
)


@pytest.fixture(scope="module")
def small():
    """A configuration and its model: a ResNet of four blocks has half as many layers to convert."""
    config = toy_config("")
    config.image_tower.update(dict(name="resnet", width=80 / 512, depth=0.5))
    return config, toy_model(config)


def test_variants_equal_the_model_within_their_precision(small):
    config, model = small
    images = tf.cast(pixels(config), tf.float32) / 255.0
    tokens = {name: ids.numpy() for name, ids in toy_tokenizer()(tf.constant(TEXTS)).items()}
    expected = {"image": model.embed_images(images).numpy(), "text": model.embed_texts(tokens).numpy()}
    sizes = {}
    for kind, worst in (("float32", 1e-5), ("float16", 5e-3), ("int8", 1.0)):
        image, text = convert_image_encoder(model, kind), convert_text_encoder(model, 8, kind)
        sizes[kind] = len(image), len(text)
        found = {"image": LiteEncoder(image)(image=images.numpy()), "text": LiteEncoder(text)(**tokens)}
        for name, rows in found.items():
            assert np.abs(rows - expected[name]).max() < worst, (kind, name)
            nearest = (rows @ expected[name].T).argmax(axis=1)
            np.testing.assert_array_equal(nearest, np.arange(len(rows)), err_msg=f"{kind} {name}")
    assert sizes["int8"] < sizes["float16"] < sizes["float32"]


def test_what_tensorflow_lite_lacks_is_named():
    decode = tf.function(lambda data: decode_image(data), [tf.TensorSpec([], tf.string)], autograph=False)
    with pytest.raises(UserError, match="TensorFlow Lite has no .*DecodeImage.*, which this toy needs"):
        _convert(decode, "float32", "toy")
    tokenize = tf.function(lambda texts: toy_tokenizer()(texts), [tf.TensorSpec([None], tf.string)], autograph=False)
    with pytest.raises(UserError, match="WordpieceTokenizeWithOffsets"):
        _convert(tokenize, "float32", "toy")


def test_a_workdirs_variants_are_written_with_a_report(small, tmp_path):
    config, model = small[0].copy_and_resolve_references(), small[1]
    config.data.directory = str(tmp_path / "data")
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "test", image_text_records(12))
    save_config(config, tmp_path / "config.json")
    toy_tokenizer().save(tmp_path / "vocabulary.txt")
    tf.train.Checkpoint(model=tf.train.Checkpoint(**model.weights_by_part())).write(
        str(tmp_path / "checkpoints/ckpt-1")
    )
    (tmp_path / "export").mkdir()
    report = export_variants(tmp_path, tmp_path / "export", ["float16"], languages=["en"])
    assert {path.name for path in (tmp_path / "export/tflite").iterdir()} == {
        "image_encoder_float16.tflite", "text_encoder_float16.tflite", "report.json",
    }  # fmt: skip
    assert json.loads((tmp_path / "export/tflite/report.json").read_text()) == report
    assert set(report) == {"float32", "float16"} and report["float32"]["mean_recall_lost"] == 0.0
    for encoder in ("image_encoder", "text_encoder"):
        assert report["float16"]["bytes"][encoder] < report["float32"]["bytes"][encoder]
        assert report["float16"]["milliseconds"][encoder] > 0.0
    assert 0.0 <= report["float16"]["mean_recall"] <= 100.0
    assert "float16" in describe(report)
    with pytest.raises(UserError, match="Unknown variants int4"):
        export_variants(tmp_path, tmp_path / "export", ["int4"])
