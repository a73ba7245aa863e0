"""PARALLEL-EmbN on Multi30K ([MULE], Table 2a): one image branch, a sentence branch for each of four languages."""

from configs.mule import mule_config


def get_config():
    config = mule_config("parallel_embn")
    config.text_tower.language_branches = "parallel"
    return config
