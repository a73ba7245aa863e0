"""Small text-only dual encoder: emoji_mural's text tower, text pairs, batch and steps, without any image."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("labse")
