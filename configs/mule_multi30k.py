"""MULE on Multi30K ([MULE], Kim et al., 2020): English, German, French and Czech on features of ResNet-152.

The data is a folder of image-text records with `python -m mural_tf.ingest.features`' features in place of images. The
paper starts from LP: train configs/mule_multi30k_lp.py first and give its workdir to run_finetune.py --from=….
"""

from configs.mule import mule_config


def get_config():
    return mule_config("mule")
