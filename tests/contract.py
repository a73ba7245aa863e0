"""Small models and fixed batches of every method, made without a data pipeline, for tests that look at the model."""

import functools

import numpy as np
import tensorflow as tf
import toy_data

from mural_lite.config import base_config
from mural_tf.backend import keras
from mural_tf.data.streams.captions import SHARE, mask_tokens
from mural_tf.models import complete, method_class, method_names, mount, takes_steps
from mural_tf.models.build import build_model
from mural_tf.text.language_words import WordTokenizer
from mural_tf.training.fit import compile_model

OUTSIDE = "outside_method:WideAlign"
METHODS = (*(name for name in method_names() if takes_steps(method_class(name))), OUTSIDE)
WORDS = ("mule", "embn", "parallel_embn")  # methods of word vectors
FEATURES, EXAMPLES, LANGUAGES = 12, 8, ("en", "de")


def toy_config(method: str = "mural", **fields):
    """The smallest towers that hold BatchNorm, dropout and heads; `fields` as method__alpha="paper"."""
    config = base_config()
    mount(config, method)
    config.image_tower.update(dict(name="features", feature_size=FEATURES, branch_size=32, projection=24))
    config.image_tower.batch_norm_momentum = 0.5
    config.image_tower.precision = config.text_tower.precision = "float32"
    config.text_tower.update(dict(layers=1, hidden_size=16, heads=2, feed_forward_size=32, max_length=8, dropout=0.1))
    config.embedding_size = 24
    config.loss.temperature = 0.1
    config.optimizer.update(dict(name="adam", learning_rate=1e-2, text_text_learning_rate=1e-2, warmup_steps=0))
    config.train.update(dict(steps=40, image_text_batch=EXAMPLES, text_text_batch=EXAMPLES))
    if method == "globetrotter":
        config.text_tower.pooling = "first_and_mean"
        config.loss.text_text_weight = 1.0
        config.method.update(dict(image_image_weight=0.2, cloze_weight=0.2))
    if method in WORDS:
        config.text_tower.update(dict(name="words", languages=LANGUAGES, word_size=8, language_size=20, hidden_size=12))
        config.text_tower.projection = 24
        config.method.captions_per_image = 2
        config.train.image_text_batch = 2 * EXAMPLES
    if method == "parallel_embn":
        config.text_tower.language_branches = "parallel"
    if method == "mule":
        config.loss.text_text_weight = 1.0
        config.method.language_weight = 0.1
    if method == "labse":
        config.image_tower.update(dict(name="none", branch_size=0))
    for name, value in fields.items():
        *branches, field = name.split("__")
        functools.reduce(lambda branch, key: branch[key], branches, config)[field] = value
    return config


@functools.cache
def word_tokenizer() -> WordTokenizer:
    words = [f"{language}\t{word}{i}" for language, word in zip(LANGUAGES, "wv") for i in range(20)]
    return WordTokenizer(["[PAD]", "en\t[UNK]", "de\t[UNK]", *words], LANGUAGES, max_length=8)


def tokenizer(config):
    return word_tokenizer() if config.text_tower.name == "words" else toy_data.toy_tokenizer()


def build(config, seed: int = 0):
    """A compiled model."""
    keras.utils.set_random_seed(seed)
    model = build_model(config, tokenizer(config).vocabulary_size)
    compile_model(model, complete(config))
    for part in model.training_parts().values():  # a teacher that knows what the model does not
        for place, variable in enumerate(part.variables):
            variable.assign_add(0.3 * tf.random.stateless_normal(variable.shape, [seed, place]))
    return model


def batch_of(model, config, count: int = EXAMPLES, seed: int = 0) -> dict:
    """A batch of what the model takes; the first and the last example share their ids."""
    rng, batch = np.random.default_rng(seed), {}
    for name in model.parts:
        if name not in (*model.image_parts, *model.token_parts):  # of a column
            batch[name] = tf.math.l2_normalize(rng.normal(size=[count, model.embedding_size]).astype("f"), axis=1)
            continue
        if name in model.image_parts:
            shape = [count, *model.image_shape]
            values = rng.normal(size=shape) if len(shape) == 2 else rng.integers(0, 256, shape, np.uint8)
            batch[name] = tf.constant(values, tf.float32 if len(shape) == 2 else tf.uint8)
            continue
        rows = count * (2 if config.text_tower.name == "words" and name == "caption" else 1)
        batch[name] = _tokens(config, rng, rows, side=name[-1])
        if name == "cloze":
            batch[name] = mask_tokens(batch[name], tokenizer(config), SHARE, tf.constant([1, 2]))
        batch[f"{name}_id"] = tf.constant([*range(rows - 1), 0], tf.int64)
        batch[f"{name}_language_id"] = batch[name]["input_type_ids"][:, 0]
    ids = tf.constant([*range(count - 1), 0], tf.int64)
    return {**batch, "image_id": ids, "text_group_id": ids, "caption_id": batch.get("caption_id", ids)}


def _tokens(config, rng, rows: int, side: str) -> dict:
    if config.text_tower.name != "words":
        texts = [f"thing w{rng.integers(64)} v{i}" for i in range(rows)]
        return tokenizer(config)(tf.constant(texts))
    language = {"a": ["en"] * rows, "b": ["de"] * rows}.get(side, ["en", "de"] * rows)
    return tokenizer(config)(tf.constant([f"<{language[i]}> {'wv'[language[i] == 'de']}{i}" for i in range(rows)]))


def losses_of(model, embeddings: dict, batch: dict, rows=None) -> dict:
    """{task: its loss, before its weight}."""
    _, logs = model.objective(embeddings, batch, rows or rows_of(embeddings))
    return {task: logs[f"loss_{task}"] for task in model.loss_weights()}


def rows_of(embeddings: dict) -> dict:
    """All rows of each."""
    return {name: (0, len(value)) for name, value in embeddings.items()}


def largest_difference(one, other) -> float:
    """Of two lists of gradients; the same ones must be `None`."""
    assert [g is None for g in one] == [g is None for g in other]
    return max(float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(one, other) if a is not None)


def scale(values) -> float:
    return max(float(tf.reduce_max(tf.abs(value))) for value in values if value is not None)
