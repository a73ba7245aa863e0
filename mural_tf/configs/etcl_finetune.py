"""ETCL's fine-tuning on captions ([ETCL] §4.1), image-text alone; from a workdir of MURAL or MURAL+ETCL.

python run_finetune.py --config=configs/etcl_finetune.py:flickr30k --from=WORKDIR --workdir=…
"""

from mural_lite.config import base_config
from mural_tf.configs import parse

STEPS = {"flickr30k": 3_000, "mscoco": 6_000}


def get_config(arguments: str = ""):
    """Returns the configuration for a benchmark of `STEPS`, by default "flickr30k"."""
    benchmark, _ = parse(arguments, {name: {} for name in STEPS})
    config = base_config()
    config.loss.text_text_weight = 0.0  # "without text-text matching loss"
    config.loss.label_smoothing = 0.1  # as in pretraining: "all the other hyper-parameters are consistent"
    config.train.steps = STEPS[benchmark]
    config.train.image_text_batch = 2_048
    config.optimizer.learning_rate = 1e-5  # linearly to 0
    config.optimizer.text_text_learning_rate = 1e-5
    config.optimizer.warmup_steps = 0
    return config
