"""ALIGN-base-en ([MURAL] A.1): ALIGN-base trained on the English image-text pairs only."""

from mural_tf.configs.align_base import get_config as align_base


def get_config():
    config = align_base()
    config.data.image_text_languages = ("en",)  # "the English subset" [MURAL] A.1
    return config
