"""emoji_mural with more steps: the run behind the README's comparison of MURAL and ALIGN."""

from configs.emoji import emoji_long_config


def get_config():
    return emoji_long_config("mural")
