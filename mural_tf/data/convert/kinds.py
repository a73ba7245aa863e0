"""Every kind of source by the name that the command line knows."""

from __future__ import annotations

from mural_tf.data.convert.moses import Lines, Opus, Opus100, Tatoeba
from mural_tf.data.convert.source import Source
from mural_tf.data.convert.tsv import PairsTsv

KINDS: dict[str, type[Source]] = {cls.KIND: cls for cls in (Opus, Opus100, Lines, Tatoeba, PairsTsv)}
