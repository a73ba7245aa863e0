"""emoji_globetrotter with known pairs, its upper bound: L_t's positives are emoji_mural's translation pairs."""

from configs.emoji_globetrotter import get_config as globetrotter_config


def get_config():
    config = globetrotter_config()
    config.method.alpha = "pairs"
    return config
