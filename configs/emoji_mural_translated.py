"""A stage of 1,000 steps after emoji_mural or emoji_align: their text tower learns translations, without a picture.

    python run_finetune.py --config=configs/emoji_mural_translated.py --from=WORKDIR_OF_EMOJI_MURAL --workdir=…

A long model takes a longer stage: --config.train.steps=1500.
"""

from mural_tf.configs.emoji import get_config as emoji
from mural_tf.models import mount


def get_config():
    config = mount(emoji("mural"), "translation_distillation")
    config.optimizer.learning_rate = 2e-3  # linearly to 0
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.warmup_steps = 0
    config.train.steps = 1_000
    return config
