"""ALIGN-base, the paper's own baseline ([MURAL] §3.2 and A.1): MURAL-base without the text-text task and its head.

Trained on the image-text pairs of all languages; `align_base_en` on the English ones.
"""

from mural_tf.configs.mural_base import get_config as mural_base


def get_config():
    config = mural_base()
    config.model = "align"  # one text head, Dense(768 -> 512) [MURAL] A.1
    return config
