"""Globetrotter's baseline "text only" ([Globetrotter] §5.1): no images, the token cloze task alone, as in BERT."""

from mural_tf.configs.globetrotter_resnet18 import get_config as globetrotter


def get_config():
    return globetrotter("code,images=none")
