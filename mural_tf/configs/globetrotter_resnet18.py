"""[Globetrotter] (Surís et al., 2022): ResNet-18 and a transformer of 4 layers. "Its code" is the authors'.

    python run_pretrain.py --config=configs/globetrotter_resnet18.py --config.data.directory=… --workdir=…

`globetrotter_resnet18.py:code` (the default) or `:paper` where the two differ: one text head, α of Eq. 2, sums (here
divided by the number of sentences), λ = 0.2. After it, of §5.1:

alpha=pairs: the upper bound "fully supervised": α is 1 for translation pairs and 0 for all other texts.
images=none: the baseline "text only": the token cloze task alone, as in BERT.
adapt=zh: the adaptation to a language that was held out (A.2), run_finetune.py … --from=WORKDIR: one epoch more, with
  the same losses, on the data of the source and the new language's captions. Departure: the paper computes the features
  of the other languages beforehand and does not change them; here their captions are trained on too, which keeps them
  aligned.

models/globetrotter.py lists the differences from both (L_v counts half, [0, 1] in α alone). The paper's ResNet starts
from ImageNet's weights; here it starts at random, see encoders/resnet.py.
"""

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_tf.configs import parse
from mural_tf.models import mount

FIELDS = {"alpha": ("code", "paper", "pairs"), "images": ("all", "none")}


def get_config(arguments: str = ""):
    """Returns the configuration for "code" (the default) or "paper", and fields: "paper,alpha=pairs,adapt=zh"."""
    fields = {**FIELDS, "adapt": str}
    variant, values = parse(arguments, {"code": fields, "paper": fields})
    config = _code()
    if variant == "paper":
        _follow_paper(config)
    if "adapt" in values:
        config.evaluation.groups = ConfigDict({"new": (values.pop("adapt"),)})
        # An epoch: the source's pairs and the new language's captions (§4, B.4) in batches of 800.
        config.train.steps = (3_150_000 + 78_700) // 800
    apply_arguments(config, **values)
    return config


def apply_arguments(config: ConfigDict, alpha: str = "", images: str = "all") -> None:
    """Sets Globetrotter's fields in a configuration for `alpha` and `images`, of `FIELDS`; "" leaves α as it is.

    `images` "none" is the baseline "text only": no image tower, and no loss except the cloze task's.
    """
    if alpha:
        config.method.alpha = alpha
    if images == "none":
        config.image_tower.name = "none"
        config.image_tower.projection = config.embedding_size
        config.image_tower.head_size = 0
        config.loss.text_text_weight = 0.0
        config.method.image_image_weight = 0.0
        config.loss.image_text_weight = 0.0


def _follow_paper(config: ConfigDict) -> None:
    """Sets the fields in which the paper differs from the authors' code."""
    config.shared_head = True  # one head on the first token, §3.5
    config.text_tower.pooling = "first"
    config.method.alpha = "paper"  # Eq. 2
    config.method.alpha_divided = False  # Eq. 1
    config.method.image_image_weight = 0.2  # λ1 to λ3, B.1; λ1 counts half here, see models/globetrotter.py
    config.loss.image_text_weight = 0.2
    config.method.cloze_weight = 0.2


def _code() -> ConfigDict:
    """Returns Globetrotter's configuration as the authors' code has it, and as the paper has it where they agree."""
    config = base_config()
    mount(config, "globetrotter")
    config.image_tower.name = "resnet"
    config.image_tower.width = 1.0
    config.image_tower.depth = 1.0
    config.image_tower.image_size = 224  # its code
    config.image_tower.resize = 256  # our choice; views are cut from it
    config.image_tower.drop_connect_rate = 0.0
    config.image_tower.batch_norm_momentum = 0.9
    config.image_tower.projection = 512  # its code
    config.image_tower.head_size = 128  # D, B.1; its code: Dense 512, GELU, layer norm, Dense 128
    config.embedding_size = 128
    config.text_tower.layers = 4  # B.1
    config.text_tower.hidden_size = 512
    config.text_tower.heads = 4
    config.text_tower.feed_forward_size = 1_024  # its code
    config.text_tower.max_length = 50  # tokens with the first and the last; its code has no last
    config.text_tower.pooling = "first_and_mean"  # two heads, as in its code; the paper's one: "first" and shared_head
    config.vocabulary.size = 30_000  # B.3
    config.vocabulary.builder = "byte_pair"

    config.loss.text_text_weight = 1.0  # L_t
    config.method.image_image_weight = 1.0  # λ1; its code, where L_t is divided by Σα; the paper: 0.2, not divided
    config.loss.image_text_weight = 1.0  # λ2; its code's 1 is 0.5 here, because L_x is a sum of both directions
    config.method.cloze_weight = 1.0  # λ3
    config.loss.temperature = 0.1  # of all losses, fixed; its code

    config.optimizer.name = "adam"  # B.1
    config.optimizer.learning_rate = 1e-4
    config.optimizer.text_text_learning_rate = 1e-4
    config.optimizer.warmup_steps = 0
    config.optimizer.epsilon = 1e-8  # Adam's usual one
    config.optimizer.clip_norm = 1.0  # its code
    config.train.image_text_batch = 800  # B.1
    config.train.text_text_batch = 800
    config.train.steps = 787_500  # the paper's 200 epochs of 3.15M pairs; the decay to 0 is our choice

    config.augmentation.flip = True  # SimCLR's, which the paper names
    config.augmentation.crop_area = (0.08, 1.0)
    config.augmentation.color = 0.8
    config.augmentation.hue = 72.0  # degrees: 0.2 of the circle
    config.augmentation.greyscale = 0.2
    config.augmentation.blur = 2.0  # pixels; its code
    return config
