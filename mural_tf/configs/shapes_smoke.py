"""A whole run in about a minute, without any download: pictures and captions that the project draws itself."""

from mural_lite.config import base_config


def get_config():
    config = base_config()
    config.data.source = "shapes"
    config.data.directory = "data/shapes"
    config.vocabulary.size = 400
    config.vocabulary.lower_case = True

    config.image_tower.width = 0.25
    config.image_tower.depth = 0.25
    config.image_tower.image_size = 32
    config.image_tower.resize = 32
    config.image_tower.drop_connect_rate = 0.0
    config.image_tower.batch_norm_momentum = 0.9
    config.image_tower.precision = config.text_tower.precision = "float32"  # the same numbers on every machine
    config.embedding_size = 80
    config.text_tower.layers = 1
    config.text_tower.hidden_size = 64
    config.text_tower.heads = 2
    config.text_tower.feed_forward_size = 128
    config.text_tower.dropout = 0.0
    config.text_tower.max_length = 32

    config.loss.temperature = 0.1
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 5e-3
    config.optimizer.text_text_learning_rate = 5e-3
    config.optimizer.warmup_steps = 20

    config.train.steps = 200
    config.train.image_text_batch = 64
    config.train.text_text_batch = 64
    config.train.log_every = 20
    config.train.checkpoint_every = 100
    config.augmentation.flip = False  # "left" and "right" are words of the captions
    config.augmentation.shift = 0.05
    return config
