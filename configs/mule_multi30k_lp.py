"""LP, the pretraining of MULE ([MULE]): pairs of sentences about one image, on the universal language embedding alone.

Word vectors stay as they are. configs/mule_multi30k.py starts from the workdir of this run, with run_finetune.py.
"""

from configs.mule import STEPS_PER_EPOCH, mule_config


def get_config():
    config = mule_config("mule")
    config.text_tower.frozen_words = True
    config.loss.image_text_weight = 0.0
    config.mule.neighbourhood_weight = 0.0  # on the captions of a batch of images
    config.mule.language_weight = 0.0
    config.mule.neighbourhood_levels = ("words",)
    config.loss.text_text_weight = 1.0
    config.data.text_pairs = "co_captions_across_languages"  # sentence pairs: captions of one image
    config.train.text_text_batch = 2_700
    config.train.steps = 5 * STEPS_PER_EPOCH  # 5 epochs, as the captions' batches are counted (our reading)
    return config
