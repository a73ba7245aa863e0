"""Small text-only dual encoder: emoji_mural's text tower, text pairs, batch and steps, without any image."""

from configs.emoji import emoji_config


def get_config():
    config = emoji_config("labse", "core", steps=1_400)
    config.image_tower.name = "none"
    config.image_tower.projection = config.embedding_size
    config.loss.text_text_weight = 1.0
    config.optimizer.text_text_learning_rate = config.optimizer.learning_rate
    return config
