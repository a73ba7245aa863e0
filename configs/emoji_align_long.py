"""emoji_align with more steps, as many as emoji_mural_long."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("align,steps=5000,regularization=strong")
