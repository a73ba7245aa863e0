"""LP for emoji_mule: text pairs on the universal language embedding alone; emoji_mule then starts from its workdir."""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("mule_lp")
