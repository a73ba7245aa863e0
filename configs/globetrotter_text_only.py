"""Globetrotter's baseline "text only" ([P] §5.1): no images, the token cloze task alone, as in BERT."""

from configs.globetrotter_resnet18 import get_config as globetrotter_config


def get_config():
    return without_images(globetrotter_config())


def without_images(config):
    """Takes the image tower and every loss but the cloze task's out of one of Globetrotter's configurations."""
    config.image_tower.name = "none"
    config.image_tower.projection = config.embedding_size
    config.image_tower.head_size = 0
    config.loss.text_text_weight = 0.0
    config.method.image_image_weight = 0.0
    config.loss.image_text_weight = 0.0
    return config
