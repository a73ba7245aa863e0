"""[Globetrotter]'s upper bound "fully supervised" (§5.1): α is 1 for translation pairs and 0 for all other texts."""

from mural_tf.configs.globetrotter_resnet18 import get_config as globetrotter


def get_config():
    return globetrotter("code,alpha=pairs")
