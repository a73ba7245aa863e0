"""Fine-tuning on captions; towers, vocabulary, optimiser and augmentation are the source's.

Zeros mean values that follow from the number of captions and the source, see `runs/tuning.py`. The first row of the
numbers is the unchanged source, and the result is the mix of source and tuned weights that dev prefers. Fields of
`loss` (label smoothing) are not the source's.

[MURAL] §4 fine-tunes on Multi30K and MS-COCO combined for 40,000 steps: --config.train.steps=40000
--config.train.image_text_batch=2048 ([ETCL]; MURAL does not say) --config.optimizer.learning_rate=5e-5 (it sweeps 1e-5,
5e-5 and 1e-4) --config.train.interpolate=False. Single-task, image-text only ([MURAL] §3.1). For the multi-task
ablation on co-captions ([MURAL] A.1): --config.data.text_pairs=co_captions --config.loss.text_text_weight=0.1

`finetune.py:wit` is [MURAL] §4 on WIT: 300,000 steps from 1e-4, all else as in pretraining, so with its warm-up.
"""

from mural_lite.config import base_config
from mural_tf.configs import parse


def get_config(arguments: str = ""):
    """Returns the configuration for "captions" (the default) or "wit"."""
    variant, _ = parse(arguments, {"captions": {}, "wit": {}})
    config = base_config()
    config.loss.text_text_weight = 0.0
    if variant == "wit":
        config.train.steps = 300_000
        config.optimizer.learning_rate = 1e-4
        return config
    config.train.steps = 0
    config.train.image_text_batch = 0
    config.train.text_text_batch = 0
    config.train.evaluate_first = True
    config.train.interpolate = True
    config.optimizer.learning_rate = 0.0
    config.optimizer.warmup_steps = 0  # [ETCL]: linear decay only; [MURAL] keeps that of pretraining
    return config
