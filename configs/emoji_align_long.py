"""emoji_align with more steps, as many as emoji_mural_long."""

from configs.emoji import emoji_long_config


def get_config():
    return emoji_long_config("align")
