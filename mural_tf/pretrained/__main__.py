"""Imports trained weights into a workdir, to evaluate, fine-tune, export or search with. Examples:

    python -m mural_tf.pretrained align --weights=align-base --workdir=workdirs/align_base
    python -m mural_tf.pretrained align --weights=align-base --workdir=workdirs/mural_from_align --model=mural
    python -m mural_tf.pretrained efficientnet --weights=efficientnetb5_notop.h5 --config=configs/emoji_mural.py \\
        --workdir=workdirs/b5
    python -m mural_tf.pretrained labse --weights=LaBSE --onto=workdirs/b5 --workdir=workdirs/b5_labse

align: a folder of Hugging Face's AlignModel. bert: a folder of Hugging Face's BertModel or of Google's checkpoints.
labse: a folder of Hugging Face's or Sentence-Transformers' LaBSE. efficientnet: an .h5 file of Keras. workdir: one of
this project, to give an ALIGN MURAL's second head (--model=mural). See docs/pretrained.md.
"""

import sys

from absl import flags
from ml_collections import config_flags

from mural_tf import cli

CONFIG = config_flags.DEFINE_config_file("config", None, "What the weights do not say; default: MURAL-base.")
WEIGHTS = flags.DEFINE_string("weights", None, "The folder or file of the weights.", required=True)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder to write; it must be empty or not there yet.", required=True)
MODEL = flags.DEFINE_enum("model", "", ["", "align", "mural"], "Method. Default: align for align, else the config's.")
ONTO = flags.DEFINE_string("onto", "", "A workdir that gives everything that the weights do not.")


def main(_):
    from mural_tf.runs.import_pretrained import import_into_workdir

    import_into_workdir(KIND, WEIGHTS.value, WORKDIR.value, CONFIG.value, MODEL.value, ONTO.value)


def kind_of_weights() -> str:
    """Takes the first argument away from the flags."""
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        return sys.argv.pop(1)
    return ""


if __name__ == "__main__":
    KIND = kind_of_weights()
    cli.run(main)
