"""emoji_mural on every locale that names at least half of the emoji."""

from configs.emoji import emoji_config


def get_config():
    return emoji_config("mural", "all", steps=1_400)
