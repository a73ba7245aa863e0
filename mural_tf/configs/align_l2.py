"""ALIGN-L2 (Jia et al., 2021, as described in [MURAL] §3.2 and A.1): EfficientNet-L2 and BERT-large, English only.

[MURAL] gives the parameters of its parts and no training recipe; ALIGN's own is used where it differs from MURAL-base:
batch, steps and label smoothing.
"""

from mural_lite.config import base_config
from mural_tf.configs.mural_large import bert_large


def get_config():
    config = base_config()
    config.model = "align"
    config.image_tower.width = 4.3  # EfficientNet-L2 (Xie et al., 2020)
    config.image_tower.depth = 5.3
    bert_large(config.text_tower)  # [MURAL] A.1
    config.embedding_size = 1376  # our inference: width of L2's last block, as 512 is of B5's
    config.train.image_text_batch = 16_384  # ALIGN (Jia et al., 2021) §5
    config.train.steps = 1_200_000  # the same; its linear decay ends there
    config.loss.label_smoothing = 0.1  # the same
    config.data.image_text_languages = ("en",)  # "trained on English-only Alt-Text data" [MURAL] §3.2
    return config
