"""Small SigLIP: emoji_align with the sigmoid loss, and the temperature and bias that it starts from."""

from mural_tf.configs.emoji import get_config as emoji
from mural_tf.models import mount


def get_config():
    config = mount(emoji("align"), "siglip")
    config.loss.temperature = 0.1  # t = 10 [SigLIP §3.2]; method.bias is -10
    return config
