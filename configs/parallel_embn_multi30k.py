"""PARALLEL-EmbN on Multi30K ([MULE], Table 2a): one image branch, a sentence branch for each of four languages."""

from mural_tf.configs.mule import get_config as mule


def get_config():
    return mule("parallel_embn")
