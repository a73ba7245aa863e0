"""emoji_mural with more steps: the run behind the README's comparison of MURAL and ALIGN."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("mural,steps=5000,regularization=strong")
