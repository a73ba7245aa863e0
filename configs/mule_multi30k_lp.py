"""LP, the pretraining of MULE ([MULE]): pairs of sentences about one image, on the universal language embedding alone.

Word vectors stay as they are. configs/mule_multi30k.py starts from the workdir of this run, with run_finetune.py.
"""

from mural_tf.configs.mule import get_config as mule


def get_config():
    return mule("lp")
