"""Fine-tuning on captions, as [MURAL] §4 for Multi30K and MS-COCO combined; towers and vocabulary are the source's.

Single-task, image-text only ([MURAL] §3.1). For the multi-task ablation on co-captions ([MURAL] A.1):
--config.data.text_pairs=co_captions --config.loss.text_text_weight=0.1
"""

from mural_tf.config import base_config


def get_config():
    config = base_config()
    config.loss.text_text_weight = 0.0
    config.train.steps = 40_000  # [MURAL] §4
    config.train.image_text_batch = 2_048  # [ETCL]; MURAL does not say
    config.optimizer.learning_rate = 5e-5  # [MURAL] §4 sweeps 1e-5, 5e-5 and 1e-4
    config.optimizer.text_text_learning_rate = 5e-5
    config.optimizer.warmup_steps = 0  # [ETCL]: linear decay only
    return config
