"""emoji_globetrotter without images, its lower bound: the token cloze task alone."""

from configs.emoji_globetrotter import get_config as globetrotter_config
from configs.globetrotter_text_only import without_images


def get_config():
    return without_images(globetrotter_config())
