"""Small MULE on the emoji benchmark: what emoji_mural is for MURAL, on the same images, captions and text pairs.

Several drawings with four captions each make a batch of as many pairs as emoji_mural's; text pairs enter as
neighbourhood constraints. Word vectors start at random.
"""

from configs.emoji_words import emoji_words_config


def get_config():
    config = emoji_words_config("mule")
    config.loss.text_text_weight = 1.0
    return config
