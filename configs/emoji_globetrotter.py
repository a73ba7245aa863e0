"""Small Globetrotter on the emoji benchmark: emoji_mural's towers, data, batch and steps, with captions alone.

Its bounds: emoji.py:globetrotter,alpha=pairs (known pairs: L_t's positives are emoji_mural's translation pairs) and
emoji.py:globetrotter,images=none (the token cloze task alone). Its ablations: --config.loss.text_text_weight=0
(without L_t), --config.loss.image_text_weight=0 (L_x), --config.method.image_image_weight=0 (L_v),
--config.method.cloze_weight=0 (L_c); --config.method.alpha=paper; one head: --config.shared_head
--config.text_tower.pooling=first.
"""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("globetrotter")
