"""Heads on two trained towers for somebody's own photographs and captions: minutes on two cores.

    python -m mural_tf catalogue photos.csv --images=photos --output=workdirs/photos --from=nothing --config=photographs

Towers and heads are as in `emoji_pretrained`, with the photographs' own mean and deviation before the adapters; the
names of ImageNet's classes are left out. Some hundred photographs with a few captions each are enough.

    --config=photographs:mural    also learns from translations, which the data must have
"""

from ml_collections import ConfigDict

from mural_tf.configs import emoji_pretrained


def get_config(arguments: str = "align"):
    """Returns the configuration for arguments of emoji_pretrained.py, by default "align"."""
    config = emoji_pretrained.get_config(arguments)
    config.data.source = "records"
    config.data.directory = ""  # the command sets it
    config.data.shuffle_buffer = 20_000
    config.image_tower.class_names = ""
    config.image_tower.projection = config.embedding_size = 256  # the heads' alone, without a state for ConSE
    config.train.image_text_batch = config.train.text_text_batch = 256
    config.train.steps = 300
    config.optimizer.warmup_steps = 30
    config.evaluation.groups = ConfigDict()  # the emoji's groups of languages mean nothing here
    return config
