"""Small MURAL, `emoji.py:mural`, on the emoji benchmark's 25 languages: the demonstration of the README."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("mural")
