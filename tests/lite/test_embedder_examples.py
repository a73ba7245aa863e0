"""The examples in docstrings run, and zero-shot classification is what a naive computation gives."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import mural_lite.embedder
from mural_lite.config import base_config
from mural_lite.embedder import fill_templates
from mural_tf.models.embedder import embedder_of

COLORS = ("red", "green", "blue")


class ColorModel:
    """Maps an image to its mean colour and a text to the colours it names and its length, L2-normalised."""

    embedding_size = 3

    def embed_images(self, images):
        return tf.math.l2_normalize(tf.reduce_mean(tf.cast(images, tf.float32), [1, 2]), axis=-1)

    def embed_texts(self, tokens):
        named = [tf.strings.regex_full_match(tokens["texts"], f".*{color}.*") for color in COLORS]
        lengths = tf.cast(tf.strings.length(tokens["texts"]), tf.float32)[:, tf.newaxis] / 100.0
        return tf.math.l2_normalize(tf.cast(tf.stack(named, axis=1), tf.float32) + lengths, axis=-1)


@pytest.fixture(scope="module")
def embedder():
    config = base_config()
    config.image_tower.update(dict(image_size=16, resize=16))
    return embedder_of(ColorModel(), lambda texts, pad: {"texts": texts}, config)


@pytest.fixture
def colors():
    return np.array([np.full((8, 8, 3), color, np.uint8) for color in ((250, 10, 0), (0, 250, 30), (20, 0, 250))])


def test_examples_in_docstrings(embedder):
    results = doctest.testmod(mural_lite.embedder, extraglobs={"embedder": embedder, "np": np})
    assert results.attempted == 25 and not results.failed


def test_classes_are_normalised_means_of_normalised_prompts(embedder, colors):
    labels, templates = ["red", "green", "blue"], ["{}", "a photo of something {c}, at night"]
    classes = []
    for label in labels:
        prompts = [embedder.encode_text([template.replace("{c}", label).replace("{}", label)])[0]
                   for template in templates]  # fmt: skip
        mean = sum(prompts) / 2
        classes.append(mean / np.sqrt((mean**2).sum()))
    assert np.abs(embedder.encode_labels(labels, templates) - classes).max() < 1e-6
    best, cosines = embedder.classify(colors, labels, templates)
    np.testing.assert_array_equal(best, [0, 1, 2])
    assert np.abs(cosines - embedder.encode_image(colors) @ np.array(classes).T).max() < 1e-6
    again, same = embedder.classify(embedder.encode_image(colors), np.array(classes, np.float32))
    np.testing.assert_array_equal(again, best)
    assert np.abs(same - cosines).max() < 1e-6


def test_no_images_have_no_classes(embedder):
    best, cosines = embedder.classify([], ["red"])
    assert best.shape == (0,) and cosines.shape == (0, 1)


def test_an_embedder_says_what_it_is(embedder):
    assert repr(embedder) == "Embedder(path='', step=None, embedding_size=3)"


def test_labels_and_templates_may_hold_braces():
    assert fill_templates(["{x}", "50%"], ["{{}", "{0} {c}!"]) == ["{{x}", "{0} {x}!", "{50%", "{0} 50%!"]
