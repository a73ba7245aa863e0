"""Small ALIGN, the counterpart of emoji_mural: the same but for the text-text task."""

from configs.emoji import emoji_config


def get_config():
    return emoji_config("align", "core", steps=1_400)
