"""ALIGN-base, the paper's own baseline ([P] §3.2 and A.1): MURAL-base without the text-text task and its head.

Trained on the image-text pairs of all languages; `align_base_en` on the English ones.
"""

from mural_tf.config import base_config


def get_config():
    config = base_config()
    config.model = "align"  # one text head, Dense(768 -> 512) [P A.1]
    config.image_tower.width = 1.6  # EfficientNet-B5 [P §3.2]
    config.image_tower.depth = 2.2
    config.embedding_size = 512  # width of B5's last block [P A.1]
    return config
