"""Small MURAL on the emoji benchmark's 25 languages: the 15-minute demonstration for two CPU cores."""

from mural_tf.config import base_config


def get_config():
    config = base_config()
    config.model = "mural"

    config.data.source = "emoji"
    config.data.directory = "data/emoji_core"
    config.data.emoji_languages = "core"
    config.data.shuffle_buffer = 100_000  # all of it
    config.vocabulary.size = 8_000
    config.vocabulary.lower_case = True

    config.image_tower.width = 0.5  # an EfficientNet of half width and depth
    config.image_tower.depth = 0.5
    config.image_tower.image_size = 48
    config.image_tower.resize = 48
    config.image_tower.drop_connect_rate = 0.0
    config.image_tower.batch_norm_momentum = 0.9  # statistics of a few hundred steps
    config.image_tower.projection = 128
    config.text_tower.layers = 2
    config.text_tower.hidden_size = 128
    config.text_tower.heads = 4
    config.text_tower.feed_forward_size = 512
    config.text_tower.dropout = 0.0
    config.text_tower.max_length = 32
    config.embedding_size = 128

    config.loss.temperature = 0.07  # a short run cannot wait for 1.0 to come down
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.text_text_learning_rate = 2e-3
    config.optimizer.warmup_steps = 100

    config.train.image_text_batch = 256
    config.train.text_text_batch = 512
    config.train.steps = 1_500
    config.train.log_every = 25
    config.train.checkpoint_every = 250

    config.augmentation.shift = 0.08
    config.augmentation.zoom = 0.15
    config.augmentation.stretch = 0.1
    config.augmentation.rotation = 12.0
    config.augmentation.color = 0.6
    config.augmentation.greyscale = 0.1

    config.evaluation.groups["under-resourced"] = (
        *("tg", "uz", "ga", "be", "am", "km", "si", "yo", "zu", "sw", "mt", "lb", "rw", "xh", "ka", "my"),
    )
    return config
