"""One small export that many tests share, made by whichever process of a session comes first."""

import contextlib
import fcntl
import functools
import json
import pathlib
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from toy_data import ONE_LAYER, SIDE, image_text_records, picture, toy_config, toy_tokenizer

from mural_lite.config_file import save_config
from mural_tf.backend import keras
from mural_tf.data import records
from mural_tf.data.images import decode_image, evaluation_image
from mural_tf.export.saved_model import export_model
from mural_tf.models.build import build_model

TEXTS = ["thing w1", "", "ding v7 ding ding ding ding ding ding ding", "ŋ 日本", "Thing W1"]
METRICS = {"retrieval/en/mean_recall": 41.5, "retrieval/de/mean_recall": float("nan")}


@contextlib.contextmanager
def held(folder: pathlib.Path):
    """Holds a folder that the workers of a session share; the first one fills it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class ToyExport(NamedTuple):
    model: keras.Model
    config: object
    path: pathlib.Path


def toy_export(folder: pathlib.Path) -> ToyExport:
    """A MURAL with a lower-casing tokenizer; whose images are cropped, so that the centre matters.

    Every process builds the model, with the same weights; the first one exports it into the folder, which they share.
    """
    config = toy_config(folder / "data")
    config.image_tower.update(dict(ONE_LAYER, resize=SIDE + 8, branch_size=32, projection=80))  # a branch has BatchNorm
    config.vocabulary.lower_case = True
    description = {"name": "toys", "license": "CC0-1.0", "languages": {"en": {}, "de": {}}}
    model = toy_model(config)
    with held(folder):
        if not (folder / "export").exists():  # it appears when it is complete
            (folder / "data").mkdir()
            (folder / "data/dataset.json").write_text(json.dumps(description))
            export_model(model, toy_tokenizer(lower_case=True), config, folder / "export", (METRICS, {}))
    return ToyExport(model, config, folder / "export")


def toy_model(config, seed=0):
    """A model in which every variable matters: none is 0 or 1, as biases and moving averages are at first."""
    keras.utils.set_random_seed(seed)
    model = build_model(config, toy_tokenizer().vocabulary_size)
    draw = np.random.default_rng(seed)
    for variable in (*model.image_encoder.variables, *model.text_encoder.variables, *model.trainable_variables[-5:]):
        if "moving_variance" in variable.name:
            variable.assign(0.01 * draw.uniform(0.5, 1.5, variable.shape))
        else:
            variable.assign_add(draw.normal(scale=0.02, size=variable.shape))
    model.log_temperature.assign(-2.0)
    return model


def small_toy():
    """A configuration and its model: a ResNet of four blocks has half as many layers to convert."""
    config = toy_config("")
    config.image_tower.update(dict(name="resnet", width=80 / 512, depth=0.5))
    return config, toy_model(config)


def toy_workdir(folder, config, model):
    """Writes a workdir whose test split has twelve pictures with captions; returns its configuration."""
    config = config.copy_and_resolve_references()
    config.data.directory = str(folder / "data")
    config.vocabulary.prompts = ("query=thing ",)
    records.write_records(folder / "data", records.IMAGE_TEXT, "test", image_text_records(12))
    save_config(config, folder / "config.json")
    toy_tokenizer().save(folder / "vocabulary.txt")
    tf.train.Checkpoint(model=tf.train.Checkpoint(**model.weights_by_part())).write(str(folder / "checkpoints/ckpt-1"))
    return config


def lite_toy(folder: pathlib.Path) -> pathlib.Path:
    """Writes a workdir of `small_toy`, its export's lite/, and beside it both encoders as they were converted."""
    from mural_tf.runs import lite

    def converted(convert, path, *arguments):
        path.write_bytes(convert(*arguments))
        return path.read_bytes()

    with held(folder), pytest.MonkeyPatch.context() as patch:
        if not (folder / "workdir/export/lite").exists():  # it appears when it is complete
            for name in ("image", "text"):
                convert = getattr(lite, f"convert_{name}_encoder")
                kept = functools.partial(converted, convert, folder / f"{name}.tflite")
                patch.setattr(lite, f"convert_{name}_encoder", kept)
            toy_workdir(folder / "workdir", *small_toy())
            lite.export_lite(folder / "workdir", folder / "workdir/export")
    return folder


def pictures():
    grey = tf.io.encode_png(np.arange(20 * 30, dtype=np.uint8).reshape(20, 30, 1)).numpy()
    return [picture(0), picture(1, side=50, kind="JPEG"), grey, picture(2, side=90)]


def pixels(config):
    return tf.stack([evaluation_image(decode_image(data), config.image_tower) for data in pictures()])


def difference(a, b):
    """The largest absolute difference of two float32 arrays of one shape."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and a.dtype == b.dtype == np.float32
    return np.abs(a - b).max()
