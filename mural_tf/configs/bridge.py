"""Any text tower in the space of any model of pictures, without a picture, at one of four depths.

    python run_finetune.py --config=configs/bridge.py:DEPTH --from=PICTURES --config.method.student=STUDENT \
        --config.method.teacher=TEACHER --workdir=… --config.data.directory=DATA

PICTURES, a workdir, an export or a checkpoint, gives the image tower and the temperature; STUDENT, likewise, the text
tower and the vocabulary, under a new head. TEACHER, by default PICTURES, is a model or a folder of vectors of texts
(`python -m mural_tf embed`): its vectors of captions, and of the side of pairs in `method.pivot`, are what the student
learns. DATA is as of `translated`, DEPTH,words=FOLDER too; with texts in one language alone set
--config.method.translation_weight=0.

linear: no training; the linear map of the student's states that is closest to TEACHER's vectors, a ridge regression.
neighbours: no training; a text gets the mean place of the known texts that the student finds closest.
head: a head of two layers, the tower stays.
all: the whole tower. With --from=WORKDIR_OF_HEAD and a teacher, without a student, it goes on from there.

Sizes and rates are our choice; zeros as in `translated`.
"""

from ml_collections import ConfigDict

from mural_tf.configs import parse, translated
from mural_tf.models import mount


def get_config(arguments: str = "") -> ConfigDict:
    """Returns the configuration for a depth, by default "all", and `words`, a folder: "head,words=FOLDER"."""
    depth, values = parse(arguments, dict.fromkeys(("all", "head", "linear", "neighbours"), translated.ARGUMENTS))
    config = translated.get_config()
    if depth in ("linear", "neighbours"):
        mount(config, depth)
    elif depth == "head":
        config.text_tower.frozen = True
        config.text_tower.adapter_size = 2_048
        config.optimizer.learning_rate = config.optimizer.text_text_learning_rate = 1.2e-2
    config.method.pivot_weight = 1.0  # a new head knows nothing
    if "words" in values:
        translated.add_words(config, values["words"])
    return config
