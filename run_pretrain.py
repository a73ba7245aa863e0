"""Trains MURAL or ALIGN from scratch; the same command again resumes. Example:

python run_pretrain.py --config=configs/emoji_mural.py --workdir=workdirs/emoji_mural
"""

from absl import flags
from ml_collections import config_flags

from mural_tf import cli

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/; --config.x.y=… overrides a field.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for checkpoints, metrics and exports; made if missing.")
TPU = flags.DEFINE_string("tpu", "", 'Empty: this machine; "local": this TPU VM; else a TPU\'s name or address.')
DEBUG_NANS = flags.DEFINE_bool("debug_nans", False, "Stop at the first operation that yields NaN or infinity; slow.")
PROFILE = flags.DEFINE_string("profile", "", "START,STOP: write a TensorBoard profile of these steps, counted from 1.")
flags.mark_flags_as_required(["config", "workdir"])


def main(argv):
    del argv
    from mural_tf.runs.pretrain import pretrain

    pretrain(CONFIG.value, WORKDIR.value, tpu=TPU.value, debug_nans=DEBUG_NANS.value, profile=PROFILE.value)


if __name__ == "__main__":
    cli.run(main)
