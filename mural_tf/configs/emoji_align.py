"""Small ALIGN, `emoji.py:align`, the counterpart of emoji_mural: the same without the text-text task."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("align")
