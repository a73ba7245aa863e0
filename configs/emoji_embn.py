"""Small EmbN on the emoji benchmark: one language, English (another: --config.text_tower.languages="('de',)")."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("embn")
