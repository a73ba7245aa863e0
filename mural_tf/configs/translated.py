"""A stage on a trained model: its text tower learns translations in the images' space, without a picture.

    python run_finetune.py --config=configs/translated.py --from=MODEL --workdir=… --config.data.directory=DATA

--config=configs/translated.py:words=FOLDER also learns the texts that python -m benchmarks.word_by_word wrote.

MODEL is a workdir, an export or an imported model, of ALIGN, MURAL, ETCL, SigLIP or Globetrotter;
towers and vocabulary are its own. DATA holds text pairs, and captions, which shall keep their embedding. Zeros mean
values that follow from the number of pairs and the text tower's width, see `runs/tuning.py`; all sizes and rates are
our choice.
"""

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_tf.configs import parse
from mural_tf.models import mount

ARGUMENTS = {"words": str}


def add_words(config: ConfigDict, folder: str) -> None:
    """Adds a folder of word-by-word translations to the data, as half of the pairs, and sets the pairs' weight to 2."""
    folders = dict(data=config.data.get_ref("directory"), words=folder)
    config.data.sources = {name: dict(directory=directory, weight=1.0) for name, directory in folders.items()}
    config.method.translation_weight = 2.0  # so that the real pairs, now half of all, weigh as before


def get_config(arguments: str = "") -> ConfigDict:
    """Returns the configuration, with the folder of word-by-word translations for "words=FOLDER"."""
    _, values = parse(arguments, {"translated": ARGUMENTS})
    config = mount(base_config(), "translation_distillation")
    config.method.cached = True  # unless there are too many texts, or more than the steps will meet
    config.method.pivot_weight = 0.0  # captions hold the pivot where it is
    config.text_tower.dropout = 0.0  # the student is to become the teacher, which has no dropout
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 0.0  # linearly to 0 from the rate that 0 means
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.warmup_steps = 0
    config.train.steps = 0
    config.train.text_text_batch = 0
    config.train.image_text_batch = 0
    config.train.evaluate_first = True
    if "words" in values:
        add_words(config, values["words"])
    return config
