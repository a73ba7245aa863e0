"""Small PARALLEL-EmbN on the emoji benchmark: one image branch, a sentence branch for each of 25 languages."""

from configs.emoji_words import emoji_words_config


def get_config():
    config = emoji_words_config("parallel_embn")
    config.text_tower.language_branches = "parallel"
    config.text_tower.hidden_size = 128
    return config
