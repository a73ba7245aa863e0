"""What the emoji configurations with word vectors share (MULE, EmbN, PARALLEL-EmbN); no configuration itself.

Data, image tower, steps and pairs a batch are those of configs/emoji.py.
"""

from ml_collections import ConfigDict

from configs.emoji import emoji_config
from mural_tf.data.emoji.names import LANGUAGE_GROUPS


def emoji_words_config(model: str) -> ConfigDict:
    """Returns the configuration of "mule", "embn" or "parallel_embn" on the benchmark's 25 languages."""
    config = emoji_config(model, "core", steps=1_400)
    config.image_tower.branch_size = 320  # on the trained EfficientNet, twice its last block's width
    config.image_tower.projection = 160
    config.text_tower.name = "words"
    config.text_tower.languages = tuple(name for names in LANGUAGE_GROUPS.values() for name in names)
    config.text_tower.word_size = 128
    config.text_tower.language_size = 128
    config.text_tower.hidden_size = 256
    config.text_tower.projection = 160
    config.text_tower.length_groups = 2  # each has a layer for every language
    config.vocabulary.size = 100_000  # all words
    config.method.top = 256  # all: before the towers know anything, the ten hardest draw everything to one point
    config.method.margin = 0.3
    config.loss.text_text_weight = 0.0
    config.method.captions_per_image = 4
    config.optimizer.learning_rate = 2e-3
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.epsilon = 1e-8  # as in configs/mule.py, for the language classifier's small gradients
    return config
