"""Google's machine translations of CC3M's and COCO's captions into 34 languages (Crossmodal-3600's training data).

`{cc3m,coco}_mt_{train,dev}.jsonl.bz2`, one JSON object a line: image_id ("391895_1": COCO's id and the number of the
caption) or rec_num (CC3M's row, from 1), src_lang, trg_lang, caption_tokenized, translation_tokenized,
backtranslation_tokenized. CC3M's digits are "#".
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, NamedTuple

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.source import PAIR, Pair, Reading, Source, language_tag
from mural_tf.data.convert.tally import Tally
from mural_tf.data.text_files import Problem, clean, read_lines


class Translation(NamedTuple):
    """A caption and its translation; `identity` names caption and image."""

    source: str
    source_language: str
    target: str
    target_language: str
    identity: str


def parse_line(line: str) -> Translation:
    """Returns what a line holds; raises `ValueError` with what is wrong with it."""
    try:
        entry = json.loads(line)
        source, target = clean(entry["caption_tokenized"]), clean(entry["translation_tokenized"])
        source_language, target_language = entry["src_lang"], entry["trg_lang"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("line that is no JSON object with a caption and its translation") from None
    if not source or not target:
        raise ValueError("empty text")
    try:
        languages = language_tag(source_language), language_tag(target_language)
    except ConfigurationError:
        raise ValueError("unknown language") from None
    identity = str(entry.get("image_id", entry.get("rec_num", "")))
    return Translation(source, languages[0], target, languages[1], identity)


def read_translations(
    path: pathlib.Path, on_problem: Problem, on_position: Callable[[int], None] | None = None
) -> Iterator[tuple[Translation, str]]:
    """Yields (translation, place) of a file."""
    for number, line in read_lines(path, on_problem, on_position):
        if line:
            place = f"{path}:{number}"
            try:
                yield parse_line(line), place
            except ValueError as error:
                on_problem(str(error), place)


@dataclasses.dataclass
class GoogleTranslations(Source):
    """Google's translations as text pairs: `google_mt:cc3m_mt_train.jsonl.bz2,languages=de+fr+cs+ja`.

    All translations of a caption share a group. As captions of the images themselves: --translations.

    Attributes:
      languages: target languages, joined by "+"; default all 34.
      split: which the pairs go to.
    """

    KIND: ClassVar[str] = "google_mt"
    ITEM: ClassVar[str] = PAIR
    languages: tuple[str, ...] = ()
    split: str = "train"

    def read(self, reading: Reading) -> Iterator[tuple[str, str]]:
        """Yields (line, place)."""
        for path in self.files():
            for number, line in read_lines(path, reading.problem, reading.at):
                if line:
                    yield line, f"{path}:{number}"
            reading.file_done(path)

    def records(self, item: tuple[str, str], tally: Tally) -> Iterable[Pair]:
        """Yields the line's pair."""
        line, place = item
        try:
            found = parse_line(line)
        except ValueError as error:
            tally.skip(str(error), place)
            return
        if self.languages and found.target_language not in map(language_tag, self.languages):
            tally.leave_out("language not asked for", place)
            return
        languages = found.source_language, found.target_language
        yield Pair(found.source, languages[0], found.target, languages[1], found.identity, place, self.split)
