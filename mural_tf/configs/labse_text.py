"""A LaBSE-style dual encoder of texts (Feng et al., 2020): MURAL-base's text tower and text-text task alone.

No image tower and one head, Dense(768 -> 512). Rates, batch and steps are MURAL's ([MURAL] §3.2), so that what the
pictures add can be measured; LaBSE's own size has 501,153 word pieces and 768 dimensions.
"""

from mural_lite.config import base_config


def get_config():
    config = base_config()
    config.model = "labse"
    config.image_tower.name = "none"
    config.image_tower.projection = config.embedding_size
    config.loss.text_text_weight = 1.0
    return config
