"""The MURAL that the authors of ETCL trained themselves ("MURAL (reprod.)"), the start of their triple training.

It departs from the paper's MURAL: B7 with BERT-base, one learning rate for both tasks, equal task weights, label
smoothing, a larger batch. [ETCL] marks what that paper states.

Where [ETCL] can be read in two ways this is MURAL's: its text adds the margin to all of L_MURAL, has one learnable
temperature, and names label smoothing for no task in particular. Here texts alone have the margin and a fixed
temperature, and images and texts alone the learned temperature and label smoothing.
"""

from mural_lite.config import base_config


def get_config():
    config = base_config()
    config.model = "mural"
    config.image_tower.width = 2.0  # EfficientNet-B7 [ETCL]
    config.image_tower.depth = 3.1
    config.embedding_size = 640  # our inference: width of B7's last block
    config.loss.image_text_weight = 0.5  # [ETCL]: the mean of both tasks
    config.loss.text_text_weight = 0.5
    config.loss.label_smoothing = 0.1  # [ETCL]
    config.optimizer.learning_rate = 1e-3  # one rate for everything [ETCL]
    config.optimizer.text_text_learning_rate = 1e-3
    config.vocabulary.size = 501_153  # LaBSE's ("550K" in [ETCL]); give its file with --config.vocabulary.file=…
    config.train.steps = 800_000  # [ETCL]
    config.train.image_text_batch = 16_384  # [ETCL]
    config.train.text_text_batch = 16_384
    return config
