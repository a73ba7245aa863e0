"""Small PARALLEL-EmbN on the emoji benchmark: one image branch, a sentence branch for each of 25 languages."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("parallel_embn")
