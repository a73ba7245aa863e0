"""Small Globetrotter on the emoji benchmark: emoji_mural's towers, data, batch and steps, with captions alone.

Its ablations: --config.loss.text_text_weight=0 (without L_t), image_image_weight=0 (L_v), image_text_weight=0 (L_x),
cloze_weight=0 (L_c); --config.method.alpha=paper; one head: --config.shared_head --config.text_tower.pooling=first.
"""

from configs.emoji import emoji_config


def get_config():
    config = emoji_config("globetrotter", "core", steps=1_400)
    config.image_tower.head_size = 160  # on the last block's 160
    config.text_tower.pooling = "first_and_mean"
    config.loss.text_text_weight = 1.0  # L_t
    config.method.image_image_weight = 1.0  # λ1 to λ3, as in the authors' code
    config.loss.image_text_weight = 1.0
    config.method.cloze_weight = 1.0
    config.loss.temperature = 0.1  # of all losses, fixed
    config.optimizer.text_text_learning_rate = config.optimizer.learning_rate
    config.augmentation.crop_area = (0.5, 1.0)  # our choice: a drawing fills its picture
    config.augmentation.greyscale = 0.1
    config.augmentation.blur = 0.5  # pixels, of 48
    return config
