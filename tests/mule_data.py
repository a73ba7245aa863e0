"""The tiny data set of toy_data.py for methods with word vectors."""

import numpy as np
import toy_data

from mural_tf.backend import keras
from mural_tf.data import records
from mural_tf.models.build import build_model
from mural_tf.text.language_words import WordTokenizer, build_words
from mural_tf.training.fit import compile_model

LANGUAGES = ("en", "de")
FEATURES = 12


def texts(count):
    for record in toy_data.image_text_records(count):
        yield from zip(record.languages, record.captions)


def tokenizer(count: int = 64, **options) -> WordTokenizer:
    return WordTokenizer(build_words(texts(count), LANGUAGES, 1000, False, False), LANGUAGES, max_length=8, **options)


def config(folder, model: str = "mule"):
    """Sixteen captions of eight images, whose features are given, and, for MULE, sixteen text pairs."""
    config = toy_data.toy_config(folder, model)
    config.image_tower.update(dict(name="features", feature_size=FEATURES, branch_size=32, projection=24))
    config.embedding_size = 24
    config.text_tower.update(dict(name="words", languages=LANGUAGES, word_size=16, language_size=20, hidden_size=24))
    config.text_tower.update(dict(projection=24, length_groups=2))
    if model == "parallel_embn":
        config.text_tower.language_branches = "parallel"
    config.method.captions_per_image = 2
    config.loss.text_text_weight = 1.0
    if model == "mule":
        config.method.language_weight = 0.1
    config.optimizer.learning_rate = 1e-2
    return config


def write(folder, count: int = 64):
    """Records of random features in place of images, and text pairs."""
    images = toy_data.image_text_records(count)
    for index, image in enumerate(images):
        image.image = np.random.default_rng(index).normal(size=FEATURES).astype("<f4").tobytes()
    toy_data.write_toy_data(folder, images, toy_data.text_pairs(count))
    records.write_records(folder, records.IMAGE_TEXT, "test", images)
    return folder


def build(config, vocabulary_size: int):
    keras.utils.set_random_seed(0)
    model = build_model(config, vocabulary_size)
    compile_model(model, config)
    return model
