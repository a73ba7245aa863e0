"""The emoji configurations: small towers for two CPU cores, every method on the same pictures, batch and steps.

    --config=configs/emoji.py:mural,steps=5000,languages=all

The first argument is the method; `VARIANTS` lists what each method takes after it. The pairs (MURAL and ALIGN) share
towers, data, steps, seed and vocabulary; only the text-text task differs. Methods with word vectors share all but the
text tower.

mural: 25 languages; the demonstration. `mural,languages=all`: every locale that names at least half of the emoji.
align, siglip: without the text-text task; siglip with the sigmoid loss, and the temperature and bias it starts from.
labse: mural's text tower and text pairs, without any image.
etcl: a stage of 150 steps on triples of the training captions, run_finetune.py … --from=WORKDIR_OF_MURAL. Started from
  mural with --config.train.steps=1100, both together see as many pairs as mural alone: a triple is two image-caption
  pairs and a text pair. Without its text term alone: --config.loss.text_text_weight=0.
etcl_image_text: etcl without its own losses, the ablation "+6lang", on twice the batch, so that as many image-caption
  pairs are seen. For "+xx" add --config.data.image_text_languages="('de',)".
globetrotter: captions alone. Its bounds: `globetrotter,alpha=pairs` (known pairs: L_t's positives are mural's
  translation pairs) and `globetrotter,images=none` (the token cloze task alone). Its ablations:
  --config.loss.text_text_weight=0 (without L_t), --config.loss.image_text_weight=0 (L_x),
  --config.method.image_image_weight=0 (L_v), --config.method.cloze_weight=0 (L_c); --config.method.alpha=paper; one
  head: --config.shared_head --config.text_tower.pooling=first.
mule: several drawings with four captions each make a batch of as many pairs as mural's; text pairs enter as
  neighbourhood constraints. It may start from the workdir of mule_lp: LP, text pairs on the universal language
  embedding alone.
embn: one language, English; another: --config.text_tower.languages="('de',)".
parallel_embn: one image branch, a sentence branch for each of the 25 languages.
"""

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_tf.configs import globetrotter_resnet18, mule, parse
from mural_tf.demo.emoji import LANGUAGE_GROUPS
from mural_tf.models import mount

WORDS = {
    "steps": int,
    "regularization": ("weak", "strong"),  # strong keeps long runs from learning the three drawing styles by heart
}
PIECES = {**WORDS, "languages": ("core", "all")}  # core: 25, all: 122, every locale that names half of the emoji
WITH_WORDS = ("mule", "mule_lp", "embn", "parallel_embn")
VARIANTS = {
    "mural": PIECES,
    "align": PIECES,
    "siglip": PIECES,
    "etcl": PIECES,
    "etcl_image_text": PIECES,
    "globetrotter": {**PIECES, **globetrotter_resnet18.FIELDS},
    "labse": PIECES,
    **dict.fromkeys(WITH_WORDS, WORDS),
}
METHODS = {"etcl_image_text": "mural", "mule_lp": "mule"}  # {variant: its method}; others have their method's name


def get_config(arguments: str = "") -> ConfigDict:
    """Returns the configuration for a variant of `VARIANTS`, by default "mural", and its fields: "etcl,steps=300"."""
    variant, values = parse(arguments, VARIANTS)
    is_stage = variant in ("etcl", "etcl_image_text")
    usual_steps = 150 if is_stage else 1_400
    config = _small(values.pop("languages", "core"), values.pop("steps", usual_steps))
    if values.pop("regularization", "weak") == "strong":
        _regularize(config)
    mount(config, METHODS.get(variant, variant))
    if is_stage:
        config.optimizer.learning_rate = 1e-3  # a quarter of mural's peak, linearly to 0 (our choice)
        config.optimizer.text_text_learning_rate = 1e-3
        config.optimizer.warmup_steps = 0
    if variant == "siglip":
        config.loss.temperature = 0.1  # t = 10 [SigLIP §3.2]; method.bias is -10
    elif variant == "etcl":
        config.loss.image_text_weight = 1 / 3  # Eq. 4 of ETCL
        config.loss.text_text_weight = 1 / 3
        config.data.shuffle_buffer = 100_000  # triples
    elif variant == "etcl_image_text":
        config.loss.text_text_weight = 0.0
        config.train.image_text_batch *= 2  # a triple is two image-caption pairs
    elif variant == "globetrotter":
        _globetrotter(config, **values)
    elif variant == "labse":
        config.image_tower.name = "none"
        config.image_tower.projection = config.embedding_size
        config.loss.text_text_weight = 1.0
        config.optimizer.text_text_learning_rate = config.optimizer.learning_rate
    elif variant in WITH_WORDS:
        _use_word_vectors(config, variant)
    return config


def _small(languages: str, steps: int) -> ConfigDict:
    """Returns the fields that all variants share, for `languages` "core" or "all" and a number of steps."""
    config = base_config()

    config.data.source = "emoji"
    config.data.directory = f"data/emoji_{languages}"
    config.data.emoji = languages
    config.data.shuffle_buffer = 400_000  # items: a perfect shuffle of either build
    config.vocabulary.size = 8_000 if languages == "core" else 16_000
    config.vocabulary.lower_case = True

    config.image_tower.width = 0.5  # an EfficientNet of half width and depth
    config.image_tower.depth = 0.5
    config.image_tower.image_size = 48
    config.image_tower.resize = 48
    config.image_tower.drop_connect_rate = 0.0
    config.image_tower.batch_norm_momentum = 0.9  # statistics of a few hundred steps
    config.image_tower.precision = config.text_tower.precision = "float32"  # the same numbers on every machine
    config.embedding_size = 160  # the last block's width
    config.text_tower.layers = 2
    config.text_tower.hidden_size = 128
    config.text_tower.heads = 4
    config.text_tower.feed_forward_size = 512
    config.text_tower.dropout = 0.0
    config.text_tower.max_length = 32
    config.text_tower.length_groups = 8  # most names are far shorter than the longest in a batch

    config.loss.temperature = 0.07  # a short run cannot wait for 1.0 to come down
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 4e-3
    config.optimizer.text_text_learning_rate = 2e-3
    config.optimizer.text_tower_rate = 0.5
    config.optimizer.warmup_steps = steps // 10

    config.train.steps = steps
    config.train.image_text_batch = 256
    config.train.text_text_batch = 512
    config.train.log_every = 25
    config.train.checkpoint_every = 250

    config.augmentation.flip = False  # arrows, flags and letters have a left and a right
    config.augmentation.shift = 0.08
    config.augmentation.zoom = 0.15
    config.augmentation.stretch = 0.1
    config.augmentation.rotation = 12.0
    config.augmentation.color = 0.4
    config.augmentation.hue = 15.0

    config.evaluation.groups = ConfigDict({group: tuple(names) for group, names in LANGUAGE_GROUPS.items()})
    return config


def _regularize(config: ConfigDict) -> None:
    """Sets the fields of strong regularization: stochastic depth, and larger changes of the drawings."""
    config.image_tower.drop_connect_rate = 0.1
    config.augmentation.rotation = 20.0
    config.augmentation.zoom = 0.25
    config.augmentation.stretch = 0.15
    config.augmentation.color = 0.6
    config.augmentation.greyscale = 0.1
    config.augmentation.erase = 0.3


def _globetrotter(config: ConfigDict, **values: str) -> None:
    """Sets the fields of variant globetrotter; `values` are `alpha` and `images`, as in `apply_arguments` there."""
    config.image_tower.head_size = 160  # on the last block's 160
    config.text_tower.pooling = "first_and_mean"
    config.loss.text_text_weight = 1.0  # L_t
    config.method.image_image_weight = 1.0  # λ1 to λ3 are 1 in the authors' code (its L_x is half of ours)
    config.loss.image_text_weight = 1.0
    config.method.cloze_weight = 1.0
    config.loss.temperature = 0.1  # of all losses, fixed
    config.optimizer.text_text_learning_rate = config.optimizer.learning_rate
    config.augmentation.crop_area = (0.5, 1.0)  # our choice: a drawing fills its picture
    config.augmentation.greyscale = 0.1
    config.augmentation.blur = 0.5  # pixels, of 48
    globetrotter_resnet18.apply_arguments(config, **values)


def _use_word_vectors(config: ConfigDict, variant: str) -> None:
    """Sets the fields of a variant of `WITH_WORDS`; unlike the paper's, vectors start at random and are trained."""
    config.image_tower.branch_size = 320  # on the trained EfficientNet, twice its last block's width
    config.image_tower.projection = 160
    config.text_tower.name = "words"
    config.text_tower.languages = tuple(name for names in LANGUAGE_GROUPS.values() for name in names)
    config.text_tower.word_size = 128
    config.text_tower.language_size = 128
    config.text_tower.hidden_size = 256
    config.text_tower.projection = 160
    config.text_tower.length_groups = 2  # each has a layer for every language
    config.vocabulary.size = 100_000  # all words
    config.method.top = 256  # all: before the towers know anything, the ten hardest draw everything to one point
    config.method.margin = 0.3
    config.loss.text_text_weight = 0.0
    config.method.captions_per_image = 4
    config.optimizer.learning_rate = 2e-3
    config.optimizer.text_tower_rate = 1.0
    config.optimizer.epsilon = 1e-8  # as in configs/mule.py, for the language classifier's small gradients
    if variant == "mule":
        config.loss.text_text_weight = 1.0
    elif variant == "mule_lp":
        mule.pretrain_words(config)
    elif variant == "embn":
        config.text_tower.languages = ("en",)
        config.method.captions_per_image = 1
    else:  # parallel_embn
        config.text_tower.language_branches = "parallel"
        config.text_tower.hidden_size = 128
