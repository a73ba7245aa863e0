"""One small export that many tests share, made once a process."""

import atexit
import functools
import json
import pathlib
import shutil
import tempfile
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from toy_data import SIDE, picture, toy_config, toy_tokenizer

from mural_tf.data.images import decode_image, evaluation_image
from mural_tf.export.saved_model import export_model
from mural_tf.models import build_model

TEXTS = ["thing w1", "", "ding v7 ding ding ding ding ding ding ding", "ŋ 日本", "Thing W1"]
METRICS = {"retrieval/en/mean_recall": 41.5, "retrieval/de/mean_recall": float("nan")}


class ToyExport(NamedTuple):
    model: tf.keras.Model
    config: object
    path: pathlib.Path


@functools.cache
def toy_export() -> ToyExport:
    """A MURAL with a lower-casing tokenizer; whose images are cropped, so that the centre matters."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="toy_export_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "data").mkdir()
    config = toy_config(folder / "data")
    config.image_tower.resize = SIDE + 8
    config.vocabulary.lower_case = True
    description = {"name": "toys", "license": "CC0-1.0", "languages": {"en": {}, "de": {}}}
    (folder / "data/dataset.json").write_text(json.dumps(description))
    model = toy_model(config)
    return ToyExport(
        model, config, export_model(model, toy_tokenizer(lower_case=True), config, folder / "export", METRICS)
    )


def toy_model(config, seed=0):
    """A model in which every variable matters: none is 0 or 1, as biases and moving averages are at first."""
    tf.keras.utils.set_random_seed(seed)
    model = build_model(config, toy_tokenizer().vocabulary_size)
    draw = np.random.default_rng(seed)
    for variable in (*model.image_encoder.variables, *model.text_encoder.variables, *model.trainable_variables[-5:]):
        if "moving_variance" in variable.name:
            variable.assign(0.01 * draw.uniform(0.5, 1.5, variable.shape))
        else:
            variable.assign_add(draw.normal(scale=0.02, size=variable.shape))
    model.log_temperature.assign(-2.0)
    return model


def pictures():
    grey = tf.io.encode_png(np.arange(20 * 30, dtype=np.uint8).reshape(20, 30, 1)).numpy()
    return [picture(0), picture(1, side=50, kind="JPEG"), grey, picture(2, side=90)]


def pixels(config):
    side, resize = config.image_tower.image_size, config.image_tower.resize
    return tf.stack([evaluation_image(decode_image(data), resize, side) for data in pictures()])


def difference(a, b):
    """The largest absolute difference of two float32 arrays of one shape."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and a.dtype == b.dtype == np.float32
    return np.abs(a - b).max()
