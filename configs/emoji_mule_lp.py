"""LP for emoji_mule: text pairs on the universal language embedding alone; emoji_mule then starts from its workdir.

Unlike the paper's, these word vectors are trained: they start at random, not from FastText.
"""

from configs.emoji_words import emoji_words_config


def get_config():
    config = emoji_words_config("mule")
    config.loss.image_text_weight = 0.0
    config.loss.text_text_weight = 1.0
    config.method.neighbourhood_weight = 0.0
    config.method.language_weight = 0.0
    config.method.neighbourhood_levels = ("words",)
    return config
