"""Globetrotter's upper bound "fully supervised" ([P] §5.1): α is 1 for translation pairs and 0 for all other texts."""

from configs.globetrotter_resnet18 import get_config as globetrotter_config


def get_config():
    config = globetrotter_config()
    config.method.alpha = "pairs"
    return config
