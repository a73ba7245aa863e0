"""emoji_align with more steps, as many as emoji_mural_long."""

from configs.emoji import emoji_config


def get_config():
    return emoji_config("align", "core", steps=6000)
