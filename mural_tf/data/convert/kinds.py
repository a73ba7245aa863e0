"""Every kind of source by the name that the command line knows."""

from __future__ import annotations

from mural_tf.data.convert.captioned_sets import Coco, CocoCn, Karpathy, Multi30k
from mural_tf.data.convert.google_translations import GoogleTranslations
from mural_tf.data.convert.img2dataset import Img2dataset
from mural_tf.data.convert.moses import Lines, Opus, Opus100, Tatoeba
from mural_tf.data.convert.own_records import OwnRecords
from mural_tf.data.convert.parquet import Coyo, Laion
from mural_tf.data.convert.source import Source
from mural_tf.data.convert.tmx import Tmx
from mural_tf.data.convert.tsv import PairsTsv
from mural_tf.data.convert.web_captions import CaptionsTsv, Cc3m, Cc12m, Uc2, Wit

_CLASSES = (
    *(Cc3m, Cc12m, Uc2, CaptionsTsv, Img2dataset, Coyo, Laion, Wit),
    *(Coco, Karpathy, CocoCn, Multi30k),
    *(Opus, Opus100, Lines, Tatoeba, PairsTsv, Tmx, GoogleTranslations, OwnRecords),
)
KINDS: dict[str, type[Source]] = {cls.KIND: cls for cls in _CLASSES}
