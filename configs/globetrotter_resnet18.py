"""Globetrotter ([P] = Surís et al., 2022; [C] = the authors' code): ResNet-18 and a transformer of 4 layers.

    python run_pretrain.py --config=configs/globetrotter_resnet18.py --config.data.directory=… --workdir=…

`globetrotter_resnet18.py:code` (the default) or `:paper` where the two differ; after it `alpha=pairs` for translation
pairs as positives, or `images=none` for texts alone.

[P]'s ResNet starts from ImageNet's weights; here it starts at random, see encoders/resnet.py.
"""

from ml_collections import ConfigDict

from configs.arguments import parse
from mural_tf.config import base_config

FIELDS = {"alpha": ("code", "paper", "pairs"), "images": ("all", "none")}


def get_config(arguments: str = ""):
    variant, given = parse(arguments, {"code": FIELDS, "paper": FIELDS})
    config = _code()
    if variant == "paper":
        _follow_paper(config)
    change(config, **given)
    return config


def change(config: ConfigDict, alpha: str = "", images: str = "all") -> None:
    """Sets α; with `images` "none" takes the image tower and every loss but the cloze task's out."""
    config.loss.alpha = alpha or config.loss.alpha
    if images == "none":
        config.image_tower.name = "none"
        config.image_tower.projection = config.embedding_size
        config.image_tower.head_size = 0
        config.loss.text_text_weight = 0.0
        config.loss.image_image_weight = 0.0
        config.loss.image_text_weight = 0.0


def _follow_paper(config: ConfigDict) -> None:
    config.shared_head = True  # one head on the first token [P §3.5]
    config.text_tower.pooling = "first"
    config.loss.alpha = "paper"  # Eq. 2
    config.loss.alpha_divided = False  # Eq. 1
    config.loss.image_image_weight = 0.2  # λ1 to λ3 [P B.1]
    config.loss.image_text_weight = 0.2
    config.loss.cloze_weight = 0.2


def _code() -> ConfigDict:
    config = base_config()
    config.model = "globetrotter"
    config.image_tower.name = "resnet"
    config.image_tower.width = 1.0
    config.image_tower.depth = 1.0
    config.image_tower.image_size = 224  # [C]
    config.image_tower.resize = 256  # our choice; views are cut from it
    config.image_tower.drop_connect_rate = 0.0
    config.image_tower.batch_norm_momentum = 0.9
    config.image_tower.projection = 512  # [C]
    config.image_tower.head_size = 128  # D [P B.1]; Dense 512, GELU, layer norm, Dense 128 [C]
    config.embedding_size = 128
    config.text_tower.layers = 4  # [P B.1]
    config.text_tower.hidden_size = 512
    config.text_tower.heads = 4
    config.text_tower.feed_forward_size = 1_024  # [C]
    config.text_tower.max_length = 50  # tokens with the first and the last; [C] has no last
    config.text_tower.pooling = "first_and_mean"  # two heads [C]; [P] has one: "first" and shared_head
    config.vocabulary.size = 30_000  # [P B.3]
    config.vocabulary.builder = "byte_pair"

    config.loss.text_text_weight = 1.0  # L_t
    config.loss.image_image_weight = 1.0  # λ1 [C], where L_t is divided by Σα; 0.2 in [P], where it is not
    config.loss.image_text_weight = 1.0  # λ2
    config.loss.cloze_weight = 1.0  # λ3
    config.loss.temperature = 0.1  # of all losses, fixed [C]

    config.optimizer.name = "adam"  # [P B.1]
    config.optimizer.learning_rate = 1e-4
    config.optimizer.text_text_learning_rate = 1e-4
    config.optimizer.warmup_steps = 0
    config.optimizer.epsilon = 1e-8  # Adam's usual one
    config.optimizer.clip_norm = 1.0  # [C]
    config.train.image_text_batch = 800  # [P B.1]
    config.train.text_text_batch = 800
    config.train.steps = 787_500  # 200 epochs [P] of 3.15M pairs; the decay to 0 is our choice

    config.augmentation.flip = True  # SimCLR's, which [P] names
    config.augmentation.crop_area = (0.08, 1.0)
    config.augmentation.color = 0.8
    config.augmentation.hue = 72.0  # degrees: 0.2 of the circle
    config.augmentation.greyscale = 0.2
    config.augmentation.blur = 2.0  # pixels [C]
    return config
