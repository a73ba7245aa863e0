"""Small text-only dual encoder: emoji_mural's text tower, text pairs, batch and steps, without any image."""

from configs.emoji import get_config as emoji


def get_config():
    return emoji("labse")
