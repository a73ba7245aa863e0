"""What the emoji configurations share: two CPU cores, small towers, the benchmark's data.

`emoji_config(model, languages, steps)` is the single source of the pairs (MURAL and ALIGN): same towers, data, steps,
seed and vocabulary; only the text-text task differs. This file is no configuration itself.
"""

from ml_collections import ConfigDict

from mural_tf.config import base_config
from mural_tf.data.emoji.names import LANGUAGE_GROUPS
from mural_tf.models import mount


def emoji_config(model: str, languages: str, steps: int) -> ConfigDict:
    """Returns the configuration of one run on the benchmark's `languages` ("core": 25, "all": 122)."""
    config = base_config()
    mount(config, model)

    config.data.source = "emoji"
    config.data.directory = f"data/emoji_{languages}"
    config.data.emoji_languages = languages
    config.data.shuffle_buffer = 400_000  # items: a perfect shuffle of either build
    config.data.cache = True
    config.vocabulary.size = 8_000 if languages == "core" else 16_000
    config.vocabulary.lower_case = True

    config.image_tower.width = 0.5  # an EfficientNet of half width and depth
    config.image_tower.depth = 0.5
    config.image_tower.image_size = 48
    config.image_tower.resize = 48
    config.image_tower.drop_connect_rate = 0.0
    config.image_tower.batch_norm_momentum = 0.9  # statistics of a few hundred steps
    config.image_tower.precision = config.text_tower.precision = "float32"  # the same numbers on every machine
    config.embedding_size = 160  # the last block's width
    config.text_tower.layers = 2
    config.text_tower.hidden_size = 128
    config.text_tower.heads = 4
    config.text_tower.feed_forward_size = 512
    config.text_tower.dropout = 0.0
    config.text_tower.max_length = 32
    config.text_tower.length_groups = 8  # most names are far shorter than the longest in a batch

    config.loss.temperature = 0.07  # a short run cannot wait for 1.0 to come down
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 4e-3
    config.optimizer.text_text_learning_rate = 2e-3
    config.optimizer.text_tower_rate = 0.5
    config.optimizer.warmup_steps = steps // 10

    config.train.steps = steps
    config.train.image_text_batch = 256
    config.train.text_text_batch = 512
    config.train.log_every = 25
    config.train.checkpoint_every = 250

    config.augmentation.flip = False  # arrows, flags and letters have a left and a right
    config.augmentation.shift = 0.08
    config.augmentation.zoom = 0.15
    config.augmentation.stretch = 0.1
    config.augmentation.rotation = 12.0
    config.augmentation.color = 0.4
    config.augmentation.hue = 15.0

    config.evaluation.groups = ConfigDict({group: tuple(names) for group, names in LANGUAGE_GROUPS.items()})
    return config


def emoji_long_config(model: str) -> ConfigDict:
    """Returns the longer run: more steps, and what keeps them from learning the three drawing styles by heart."""
    config = emoji_config(model, "core", steps=5_000)
    config.image_tower.drop_connect_rate = 0.1
    config.augmentation.rotation = 20.0
    config.augmentation.zoom = 0.25
    config.augmentation.stretch = 0.15
    config.augmentation.color = 0.6
    config.augmentation.greyscale = 0.1
    config.augmentation.erase = 0.3
    return config
