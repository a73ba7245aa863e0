"""emoji_mural with more steps: the run behind the README's comparison of MURAL and ALIGN."""

from configs.emoji import emoji_config


def get_config():
    return emoji_config("mural", "core", steps=6000)
