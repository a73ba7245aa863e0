"""MULE on Multi30K ([MULE], Kim et al., 2020): English, German, French and Czech on features of ResNet-152.

The data is a folder of image-text records with the features of `python -m mural_tf features` in place of images. The
paper starts from LP: train configs/mule_multi30k_lp.py first and give its workdir to run_finetune.py --from=….
"""

from mural_tf.configs.mule import get_config as mule


def get_config():
    return mule("mule")
