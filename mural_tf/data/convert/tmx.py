"""Translation memories: TMX, read element by element."""

from __future__ import annotations

import dataclasses
import itertools
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterable, Iterator
from typing import ClassVar

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.source import PAIR, Pair, Reading, Source, language_tag
from mural_tf.data.convert.tally import Tally
from mural_tf.data.text_files import clean, open_binary

_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


@dataclasses.dataclass
class Tmx(Source):
    """TMX files, plain or .gz: `tmx:de-en.tmx.gz`. A unit with more than two languages gives every pair of them.

    Attributes:
      languages: pairs of these only, joined by "+"; default all.
      split: which the pairs go to.
    """

    KIND: ClassVar[str] = "tmx"
    ITEM: ClassVar[str] = PAIR
    languages: tuple[str, ...] = ()
    split: str = "train"

    def read(self, reading: Reading) -> Iterator[tuple[list[tuple[str, str]], str]]:
        """Yields ([(language, text)], place) of every unit, in constant memory."""
        for path in self.files():
            number = 0
            with open_binary(path) as (content, file):
                try:
                    parents: list[ElementTree.Element] = []
                    for event, element in ElementTree.iterparse(content, ("start", "end")):
                        if event == "start":
                            parents.append(element)
                            continue
                        parents.pop()
                        if element.tag == "tu":
                            number += 1
                            if number % 1000 == 0:
                                reading.at(file.tell())
                            yield _variants(element), f"{path}, unit {number}"
                            if parents:
                                parents[-1].clear()  # units that are done would stay in memory
                except (ElementTree.ParseError, EOFError, OSError, zlib.error) as error:
                    kind = "XML that is damaged or cut off: what follows is lost"
                    reading.problem(kind, f"{path}, after unit {number} ({error})")
            reading.file_done(path)

    def records(self, item: tuple[list[tuple[str, str]], str], tally: Tally) -> Iterable[Pair]:
        """Yields the pairs of a unit; they share a group if there are several."""
        variants, place = item
        texts = []
        for code, text in variants:
            try:
                language = language_tag(code)
            except ConfigurationError:
                tally.skip("unknown language", f"{place}: {code!r}")
                continue
            if self.languages and language not in {language_tag(wanted) for wanted in self.languages}:
                continue
            if not text:
                tally.skip("empty text", place)
                continue
            texts.append((language, text))
        if len(texts) < 2:
            if len(variants) < 2:
                tally.skip("unit with fewer than two languages", place)
            return
        group = place if len(texts) > 2 else ""
        for (language_a, text_a), (language_b, text_b) in itertools.combinations(texts, 2):
            yield Pair(text_a, language_a, text_b, language_b, group, place, self.split)


def _variants(unit: ElementTree.Element) -> list[tuple[str, str]]:
    found = []
    for variant in unit.iter("tuv"):
        segment = variant.find("seg")
        text = "" if segment is None else clean("".join(segment.itertext()))
        found.append((variant.get(_LANG) or variant.get("lang") or "", text))
    return found
