"""mexma-siglip2: its two towers are transformers' own, and what joins them is found in the file, or refused."""

import foreign_checkpoints as families
import foreign_weights as foreign
import numpy as np
import pytest

import mural_tf
from mural_tf.pretrained.importers import import_weights, kind_of, starting_config

TEXTS = ["red balloon", "", "the cat on the photo of Paris, the red red red red"]
# What transformers 5.24's `SiglipVisionModel` gives for two pictures, and `XLMRobertaModel`'s first state times the
# layer for `TEXTS`, normalised: the first five numbers.
IMAGES = [
    [-0.1926363, -0.2550269, -0.3680024, 0.0387137, 0.2011884],
    [-0.2622341, 0.1125552, -0.3227669, 0.1475096, 0.2562786],
]
VECTORS = [
    [0.3555150, 0.0557997, -0.3547646, 0.1372063, -0.0846609],
    [0.4087165, 0.1183538, -0.3246432, -0.0812393, 0.1069456],
    [0.2118680, 0.0520747, -0.2671013, 0.0288031, -0.1754694],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return families.write_mexma_siglip(tmp_path_factory.mktemp("mexma"))


@pytest.fixture(scope="module")
def embedder(folder):
    return mural_tf.load(folder)


def test_numbers_of_transformers(folder, embedder):
    assert kind_of(folder) == "mexma_siglip"
    config = embedder.config
    assert np.abs(embedder.encode_text(TEXTS)[:, :5] - VECTORS).max() < 1e-5
    pixels = foreign.random_images(2, families.SIDE)
    assert np.abs(embedder.encode_image(list(pixels))[:, :5] - IMAGES).max() < 1e-5
    assert abs(np.log(config.loss.temperature) + 2.5) < 1e-6 and config.method.bias == -7
    assert (config.text_tower.max_length, config.text_tower.pooling) == (12, "first")


def test_names_before_the_towers_are_found(embedder, tmp_path):
    names = ("image.vision_model.", "text.encoder.", "text.project.")

    def as_before(tensors):
        for theirs, ours in zip(names, families.MEXMA_NAMES):
            for name in [name for name in tensors if name.startswith(theirs)]:
                own = ours + name.removeprefix(theirs)
                tensors[name] = foreign.value(own, tensors[name].shape)

    other = families.write_mexma_siglip(tmp_path, as_before, names)
    assert np.array_equal(mural_tf.load(other).encode_text(TEXTS), embedder.encode_text(TEXTS))


def test_a_layer_without_bias(tmp_path):
    folder = families.write_mexma_siglip(tmp_path, bias=False)
    model, *_ = import_weights("mexma_siglip", folder, starting_config("mexma_siglip"))
    assert not model.text_head("image_text").bias.numpy().any()
