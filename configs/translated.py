"""A stage on a trained model: its text tower learns translations in the images' space, without a picture.

    python run_finetune.py --config=configs/translated.py --from=MODEL --workdir=… --config.data.directory=DATA

MODEL is a workdir, an export, its `hub` folder or an imported model, of ALIGN, MURAL, ETCL or SigLIP; towers and
vocabulary are its own. DATA holds text pairs, and captions, which shall keep their embedding. Rates and sizes are our
choice, for towers of BERT's size; a small one takes rates as in emoji_mural_translated.py.
"""

from mural_tf.config import base_config
from mural_tf.models import mount


def get_config():
    config = mount(base_config(), "translation_distillation")
    config.method.cached = True  # unless there are too many texts, or more than the steps will meet
    config.method.pivot_weight = 0.0  # captions hold the pivot where it is
    config.text_tower.dropout = 0.0  # the student is to become the teacher, which has none
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.warmup_steps = 0
    config.train.steps = 10_000
    config.train.text_text_batch = 1_024
    config.train.image_text_batch = 256
    return config
