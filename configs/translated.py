"""A stage on a trained model: its text tower learns translations in the images' space, without a picture.

    python run_finetune.py --config=configs/translated.py --from=MODEL --workdir=… --config.data.directory=DATA

MODEL is a workdir, an export, its `hub` folder or an imported model, of ALIGN, MURAL, ETCL, SigLIP or Globetrotter;
towers and vocabulary are its own. DATA holds text pairs, and captions, which shall keep their embedding. Zeros stand
for what follows from the number of pairs and the text tower's width, see `runs/tuning.py`; all sizes and rates are our
choice.
"""

from mural_tf.config import base_config
from mural_tf.models import mount


def get_config():
    config = mount(base_config(), "translation_distillation")
    config.method.cached = True  # unless there are too many texts, or more than the steps will meet
    config.method.pivot_weight = 0.0  # captions hold the pivot where it is
    config.text_tower.dropout = 0.0  # the student is to become the teacher, which has none
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 0.0  # linearly to 0 from what stands for it
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.warmup_steps = 0
    config.train.steps = 0
    config.train.text_text_batch = 0
    config.train.image_text_batch = 0
    config.train.evaluate_first = True
    return config
