"""A small MURAL for somebody's own pictures and captions, from nothing: the towers of the emoji configurations."""

from ml_collections import ConfigDict

from mural_tf.configs import emoji


def get_config():
    config = emoji.get_config("mural")
    config.data.source = "records"
    config.data.directory = ""  # the command sets it
    config.data.shuffle_buffer = 20_000  # items: pictures of tables are larger than drawings
    config.image_tower.image_size = 96  # pixels: photographs show less at 48
    config.image_tower.resize = 112  # pixels, from which 96 are cut
    config.augmentation.flip = True  # photographs, unlike emoji, may be mirrored
    config.evaluation.groups = ConfigDict()  # the emoji's groups of languages mean nothing here
    return config
