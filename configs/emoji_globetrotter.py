"""Small Globetrotter on the emoji benchmark: emoji_mural's towers, data, batch and steps, with captions alone.

Its bounds: emoji.py:globetrotter,alpha=pairs (known pairs: L_t's positives are emoji_mural's translation pairs) and
emoji.py:globetrotter,images=none (the token cloze task alone). Its ablations: --config.loss.text_text_weight=0 (without
L_t), image_image_weight=0 (L_v), image_text_weight=0 (L_x), cloze_weight=0 (L_c); --config.loss.alpha=paper; one head:
--config.shared_head --config.text_tower.pooling=first.
"""

from configs.emoji import get_config as emoji


def get_config():
    return emoji("globetrotter")
