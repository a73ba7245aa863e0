"""emoji_globetrotter without images, its lower bound: the token cloze task alone."""

from configs.emoji_globetrotter import get_config as globetrotter_config


def get_config():
    config = globetrotter_config()
    config.image_tower.name = "none"
    config.image_tower.projection = config.embedding_size
    config.image_tower.head_size = 0
    config.loss.text_text_weight = 0.0
    config.loss.image_image_weight = 0.0
    config.loss.image_text_weight = 0.0
    return config
