"""Small MULE on the emoji benchmark: what emoji_mural is for MURAL, on the same images, captions and text pairs.

Several drawings with four captions each make a batch of as many pairs as emoji_mural's; text pairs enter as
neighbourhood constraints. Word vectors start at random.
"""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("mule")
