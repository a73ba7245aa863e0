"""Globetrotter's adaptation to a language that was held out ([Globetrotter] A.2): one epoch more, with the same losses.

    python run_finetune.py --config=configs/globetrotter_adapt.py:zh --from=WORKDIR --workdir=…

The data is that of the source and the new language's captions. Departure: the paper computes the features of the other
languages beforehand and does not change them; here their captions are trained on too, which keeps them aligned.
"""

from ml_collections import ConfigDict

from mural_tf.configs.globetrotter_resnet18 import get_config as globetrotter


def get_config(language: str = "en"):
    config = globetrotter()
    config.evaluation.groups = ConfigDict({"new": (language,)})
    config.train.steps = (3_150_000 + 78_700) // 800  # an epoch with the new language's captions [Globetrotter] §4, B.4
    return config
