"""emoji_mural on every locale that names at least half of the emoji."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("mural,languages=all")
