"""ALIGN-base, the paper's own baseline ([MURAL] §3.2 and A.1): MURAL-base without the text-text task and its head.

Trained on the image-text pairs of all languages. ALIGN-base-en, on "the English subset": `align_base.py:languages=en`.
"""

from mural_tf.configs import parse
from mural_tf.configs.mural_base import get_config as mural_base


def get_config(arguments: str = ""):
    """Returns the configuration; `languages=en+de` leaves out image-text pairs in other languages."""
    _, values = parse(arguments, {"align": {"languages": str}})
    config = mural_base()
    config.model = "align"  # one text head, Dense(768 -> 512) [MURAL] A.1
    if "languages" in values:
        config.data.image_text_languages = tuple(values["languages"].split("+"))
    return config
