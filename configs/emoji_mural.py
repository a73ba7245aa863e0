"""Small MURAL on the emoji benchmark's 25 languages: the demonstration of the README."""

from configs.emoji import emoji_config


def get_config():
    return emoji_config("mural", "core", steps=1_400)
