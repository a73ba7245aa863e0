"""ALIGN-base-en ([P] A.1): ALIGN-base trained on the English image-text pairs only."""

from mural_tf.config import base_config


def get_config():
    config = base_config()
    config.model = "align"  # one text head, Dense(768 -> 512) [P A.1]
    config.image_tower.width = 1.6  # EfficientNet-B5 [P §3.2]
    config.image_tower.depth = 2.2
    config.embedding_size = 512  # width of B5's last block [P A.1]
    config.data.image_text_languages = ("en",)  # "the English subset" [P A.1]
    return config
