"""A stage of 2,000 steps after emoji_mural or emoji_align: their text tower learns translations, without a picture.

    python run_finetune.py --config=configs/emoji_mural_translated.py --from=WORKDIR_OF_EMOJI_MURAL --workdir=…

A long model takes a longer stage: --config.train.steps=3000. Steps are larger with the texts that
python -m benchmarks.word_by_word wrote: --config=configs/emoji_mural_translated.py:words=FOLDER.
"""

from ml_collections import ConfigDict

from mural_tf.configs import parse, translated
from mural_tf.configs.emoji import get_config as emoji
from mural_tf.demo.emoji import WELL_RESOURCED
from mural_tf.models import mount


def get_config(arguments: str = "") -> ConfigDict:
    """Returns the configuration, with the folder of word-by-word translations for "words=FOLDER"."""
    _, values = parse(arguments, {"translated": translated.ARGUMENTS})
    config = mount(emoji("mural"), "translation_distillation")
    config.method.pivot = "+".join(WELL_RESOURCED)
    config.method.cached = True
    config.method.pivot_weight = 0.0  # captions hold English where it is
    config.optimizer.learning_rate = 4e-3  # linearly to 0
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.warmup_steps = 0
    config.train.steps = 2_000
    config.train.text_text_batch = 384  # many small steps teach more than few large steps of the same texts
    config.train.image_text_batch = 128
    if "words" in values:
        translated.add_words(config, values["words"])
        config.train.text_text_batch = 1_024
    return config
