"""MURAL-base ([MURAL], Jain et al., 2021, §3 and A.1): EfficientNet-B5 and BERT-base, both tasks, 128 TPU v3 cores.

`base_config()` is MURAL-base field by field; the settings here differ in the other published models.
"""

from mural_lite.config import base_config


def get_config():
    config = base_config()
    config.model = "mural"
    config.image_tower.width = 1.6  # EfficientNet-B5 [MURAL] §3.2
    config.image_tower.depth = 2.2
    config.embedding_size = 512  # width of B5's last block; the text heads are Dense(768 -> 512) [MURAL] A.1
    return config
