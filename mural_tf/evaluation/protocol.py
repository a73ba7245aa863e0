"""Every choice in a benchmark's protocol that papers or tools make differently: the default, its source, the others.

`run_evaluate.py --protocol.coco.one_k=first` overrides one. What was chosen is part of every result. This module
imports no TensorFlow, so that `--help` stays fast.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import check_readable

CHOICES = {
    "multi30k.captions": ("five", "one"),
    "coco.one_k": ("folds", "first"),
    "coco.japanese": ("stair", "yj"),
    "coco_cn.captions": ("human-written", "manually-translated"),
    "xm3600.captions": ("all", "first"),
    "cxc.positives": ("union", "rated"),
    "cxc.co_captions": ("rated", "all"),
    "cxc.sts_queries": ("captions", "images"),
}

PATHS = ("images", "translations")  # options that name a file or folder


def default_protocol() -> ConfigDict:
    """Returns every option with its default; [X] in a comment names the source of a choice."""
    protocol = ConfigDict()
    protocol.images = ""  # folder of the images, if it is not a usual folder of the benchmark
    protocol.max_missing = 0.05  # share of images, or of rows of a file, that may be missing; above it no number
    protocol.subset = False  # only the images that are in the folder, as the protocol line then says
    protocol.translations = ""  # translate-test: TSV of language, text, English translation; see docs/evaluation.md
    protocol.mixed_pool = False  # also images against the captions of all languages at once [MURAL A.5]
    protocol.multi30k = ConfigDict(
        dict(captions="five")  # en, de of test_2016: five independent captions [MURAL §2.2, ETCL, MULE]; or "one"
    )
    protocol.coco = ConfigDict(
        dict(
            captions_per_image=5,  # some images have six or seven: 25,000 in all [Karpathy and Li]; 0: all
            one_k="folds",  # mean over five folds of 1,000 images in file order [VSE++]; or "first", the first 1,000
            japanese="stair",  # [MURAL §2.2]; or "yj", YJ Captions
        )
    )
    protocol.coco_cn = ConfigDict(dict(captions="human-written"))  # or "manually-translated"
    protocol.xm3600 = ConfigDict(dict(captions="all"))  # or "first" of each image and language [CLIP_benchmark]
    protocol.cxc = ConfigDict(
        dict(
            positives="union",  # image-text: MS-COCO's own and the rated pairs; or only "rated" [eccv_caption]
            co_captions="rated",  # text-text: co-captions count if rated 3 or more; or "all"
            draws=1000,  # of the correlations [CxC §4]
            replacement=False,  # whether a draw may hold a query twice; published deviations fit either
            sts_queries="captions",  # 25,000 captions fit the published deviation; or "images"
            sits_original=True,  # keep a caption's rating with its own image
            seed=0,
        )
    )
    protocol.globetrotter = ConfigDict(
        dict(
            sentences=200,  # in every language [Globetrotter §5.2]
            words=1000,  # our choice: the most frequent of each language; the paper's vocabulary has 30,000 pieces
            seed=0,  # of the choice of sentences
        )
    )
    return protocol


def check_protocol(protocol: ConfigDict) -> None:
    """Raises `UserError` for a value outside of its choices or range, or a file that cannot be read here."""
    for name in PATHS:
        check_readable(protocol[name])
    for key, choices in CHOICES.items():
        section, name = key.split(".")
        if section in protocol and protocol[section][name] not in choices:
            raise UserError(f"--protocol.{key}={protocol[section][name]!r}: choose {' or '.join(choices)}.")
    if not 0 <= protocol.max_missing < 1:
        raise UserError(f"--protocol.max_missing={protocol.max_missing} must be in [0, 1).")


def changed_options(protocol: ConfigDict, default: ConfigDict | None = None, prefix: str = "") -> dict[str, object]:
    """Returns {dotted name: value} of the options that differ from their defaults: {"coco.one_k": "first"}.

    `default` and `prefix`, a section's defaults and its name with a dot, are for the calls of this function by itself.
    """
    if default is None:
        default = default_protocol()
    changed = {}
    for key, value in protocol.items():
        if isinstance(value, ConfigDict):
            changed.update(changed_options(value, default[key], f"{prefix}{key}."))
        elif value != default[key]:
            changed[prefix + key] = value
    return changed
