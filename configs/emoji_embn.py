"""Small EmbN on the emoji benchmark: one language, English (another: --config.text_tower.languages="('de',)")."""

from configs.emoji_words import emoji_words_config


def get_config():
    config = emoji_words_config("embn")
    config.text_tower.languages = ("en",)
    config.method.captions_per_image = 1
    return config
