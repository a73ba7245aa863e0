"""MULE, EmbN and PARALLEL-EmbN on Multi30K ([MULE], Kim et al., 2020, Table 2a): `mule.py:embn,languages=de`.

mule (the default): English, German, French and Czech on features of ResNet-152. The data is a folder of image-text
  records with the features of `python -m mural_tf features` in place of images.
lp: MULE's pretraining, which the paper starts from: pairs of sentences about one image, on the universal language
  embedding alone; word vectors stay as they are. Give its workdir to run_finetune.py --config=configs/mule.py --from=….
embn: one language in a model, English; several at once, `embn,languages=en+de+fr+cs`, are the row "MULE EmbN".
parallel_embn: one image branch, a sentence branch for each of four languages.
mscoco: English, Chinese and Japanese (Table 3), equally from `folder`'s data sets english, english_japanese and
  english_chinese, one group of images each; `folder` itself has dev and test.

`languages=en+de+fr+cs` are the languages of the text tower. "Its code" marks what only the released code says.
models/mule.py lists the differences from both.
"""

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_tf.configs import parse
from mural_tf.models import mount

FIELDS = {"languages": str}
VARIANTS = {"mule": FIELDS, "lp": FIELDS, "embn": FIELDS, "parallel_embn": FIELDS, "mscoco": {"folder": str}}
GROUPS = ("english", "english_japanese", "english_chinese")  # of MS-COCO's images, in equal shares [MULE]
STEPS_PER_EPOCH = 65  # 29,000 images, 450 in a batch
STEPS_PER_MSCOCO = 269  # 121,000 images
DECAY = 0.794  # the learning rate's factor per epoch


def get_config(arguments: str = ""):
    """Returns the configuration for a variant of `VARIANTS`, by default "mule", and its fields: "embn,languages=de"."""
    variant, values = parse(arguments, VARIANTS)
    if variant == "mscoco":
        return _mscoco(values.get("folder", "data/mscoco_groups"))
    default_languages = "en+de+fr+cs"
    if variant == "embn":
        default_languages = "en"
    languages = tuple(values.get("languages", default_languages).split("+"))
    if variant == "lp":
        return _language_pretraining(languages)
    config = _multi30k(variant, languages)
    if variant == "parallel_embn":
        config.text_tower.language_branches = "parallel"
    return config


def _language_pretraining(languages: tuple[str, ...]) -> ConfigDict:
    """Returns the configuration of LP, MULE's pretraining on pairs of sentences about one image."""
    config = _multi30k("mule", languages)
    pretrain_words(config)
    config.text_tower.frozen_words = True
    config.data.text_pairs = "co_captions_across_languages"  # sentence pairs: captions of one image
    config.train.text_text_batch = 2_700
    config.train.steps = 5 * STEPS_PER_EPOCH  # 5 epochs, as the captions' batches are counted (our reading)
    return config


def _mscoco(folder: str) -> ConfigDict:
    """Returns the configuration of MULE on MS-COCO ([MULE] Table 3); `folder` holds the data sets of `GROUPS`."""
    config = _multi30k("mule", ("en", "zh", "ja"))
    config.data.directory = folder
    config.data.sources = {name: dict(directory=f"{folder}/{name}", weight=1.0) for name in GROUPS}
    config.method.captions_per_image = 4  # 2 en, 2 ja; of Chinese the paper takes 1, here up to 2
    config.train.image_text_batch = 450 * config.method.captions_per_image
    config.train.steps = 20 * STEPS_PER_MSCOCO  # 20 epochs, of all images in equal shares (our reading)
    config.optimizer.decay = (DECAY, STEPS_PER_MSCOCO)
    return config


def pretrain_words(config: ConfigDict) -> None:
    """Sets the losses of LP in MULE's configuration: only text pairs, on the universal language embedding."""
    config.loss.image_text_weight = 0.0
    config.loss.text_text_weight = 1.0
    config.method.neighbourhood_weight = 0.0  # on the captions of a batch of images
    config.method.language_weight = 0.0
    config.method.neighbourhood_levels = ("words",)


def _multi30k(method: str, languages: tuple[str, ...]) -> ConfigDict:
    """Returns the configuration of "mule", "embn" or "parallel_embn" on Multi30K ([MULE] Table 2a)."""
    config = base_config()
    mount(config, method)
    config.embedding_size = 512  # of images and sentences [MULE]

    config.image_tower.name = "features"
    config.image_tower.feature_size = 2048  # of ResNet-152, kept fixed [MULE]
    config.image_tower.branch_size = 2048  # Dense, BatchNorm, ReLU [MULE]; its code also has dropout of 0.5
    config.image_tower.projection = 512
    config.text_tower.name = "words"
    config.text_tower.languages = languages
    config.text_tower.word_vectors = "vectors/cc.{language}.300.vec"  # FastText's; empty: random vectors
    config.text_tower.word_size = 300  # [MULE]
    config.text_tower.language_size = 512
    config.text_tower.hidden_size = 1024  # units of the LSTM
    config.text_tower.projection = 512
    config.text_tower.length_groups = 2  # by parts of one language each; TPU: 1
    config.text_tower.precision = "float32"
    config.vocabulary.lower_case = True
    config.vocabulary.size = 100_000  # words of all languages, an upper bound (our choice)

    config.loss.text_text_weight = 0.0  # the paper's constraints are on captions of one image alone
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-4  # [MULE]
    config.optimizer.epsilon = 1e-8  # Adam's; the classifier's gradients of 1e-6 would drown in 1e-6
    config.optimizer.warmup_steps = 0
    # [MULE] decays exponentially and gives no rate; its code computes this one and trains at 1e-4 to the end.
    config.optimizer.decay = (DECAY, STEPS_PER_EPOCH)
    config.train.steps = 20 * STEPS_PER_EPOCH  # 20 epochs [MULE]
    config.method.captions_per_language = 2  # of an image's five English and five German captions; fr and cs have one
    # Four languages are Multi30K's, with 2 en, 2 de, 1 fr, 1 cs; fewer are taken to have two captions each.
    config.method.captions_per_image = 6 if len(languages) == 4 else 2 * len(languages)
    config.train.image_text_batch = 450 * config.method.captions_per_image  # captions of 450 images [MULE]
    return config
