"""Translated captions: MURAL's *translate-train* baseline ([MURAL] §3.3, A.4), and the data of ETCL's triples.

Each translation becomes a further caption of the image, in the group of the caption that it translates. A conversion
adds them to its captions (--translations), translate.py to the split "train" of a data set.
"""

from __future__ import annotations

import itertools
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mural_lite import tfrecord
from mural_lite.errors import UserError
from mural_lite.files import open_path
from mural_lite.record_format import TEXT_PAIRS, parse_record
from mural_lite.text_files import canonical_language, clean, is_text, known_language, parse_object, read_lines
from mural_tf.ingest.source import Text, find_files
from mural_tf.ingest.sources.own_records import OwnRecords

_NO_LETTER = re.compile(r"[^\w#]|_")
_DIGITS = re.compile(r"[0-9#]+")


class Translation(NamedTuple):
    """A caption and its translation by Google; languages are BCP 47, and `identity` is the caption's id or row."""

    source: str
    source_language: str
    target: str
    target_language: str
    identity: str


def parse_google_line(line: str) -> Translation:
    """Returns the translation in a line of Google's translations.

    Args:
      line: a JSON object of image_id ("391895_1": COCO's id and the number of the caption) or rec_num (CC3M's row, from
        1), src_lang, trg_lang, caption_tokenized, translation_tokenized, backtranslation_tokenized. CC3M's digits are
        "#".

    Raises:
      ValueError: the line is another; the message says what is wrong.
    """
    try:
        fields = parse_object(line)
        source = fields["caption_tokenized"]
        target = fields["translation_tokenized"]
        source_language = fields["src_lang"]
        target_language = fields["trg_lang"]
    except (ValueError, KeyError):
        raise ValueError("line that is not a JSON object with a caption and its translation") from None
    identity = fields.get("image_id", fields.get("rec_num", ""))
    if not is_text(source) or not is_text(target) or not (isinstance(identity, int) or is_text(identity)):
        raise ValueError("caption, translation or id that is not text")
    source = clean(source)
    target = clean(target)
    if not source or not target:
        raise ValueError("empty text")
    source_language = known_language(source_language)
    target_language = known_language(target_language)
    if not source_language or not target_language:
        raise ValueError("unknown language")
    return Translation(source, source_language, target, target_language, str(identity))


def translation_key(text: str) -> str:
    """Returns a key that a caption and its tokenised form share: its letters in lower case, and "#" for each number.

    For example "a#yearolddog" for "A 3-year-old dog" and "a # - year - old dog": Google translated captions that were
    tokenised and lower-cased, with "#" for digits.
    """
    return _NO_LETTER.sub("", _DIGITS.sub("#", text.casefold()))


def exact_key(text: str) -> str:
    """Returns the key of a caption word for word; a `translation_key` never begins with a tab."""
    return f"\t{text}"


def read_translations(path: pathlib.Path, languages: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields (key of a caption, language, translation) of each translation in a file or in a data set.

    Args:
      path: a file `.jsonl`, also compressed, of Google's translations, or another file with lines of
        `English caption<TAB>language<TAB>translation`: their keys are `translation_key`s of English captions. Or the
        folder of a data set, whose text pairs of the split "train" translate both ways, between any languages: their
        keys are `exact_key`s.
      languages: the languages of the translations to yield, BCP 47; empty for all.

    Raises:
      UserError: a line or record is unusable; otherwise nobody would notice that a translation is lost.
    """
    if path.is_dir():
        translations = _read_records(path)
    elif ".jsonl" in path.name:
        translations = _read_google(path)
    else:
        translations = _read_tsv(path)
    for key, language, translation in translations:
        if not languages or language in languages:
            yield key, language, translation


def translation_files(pattern: str) -> list[pathlib.Path]:
    """Returns the files that `read_translations` reads for the files and data sets that match a pattern."""
    files = []
    for path in find_files(pattern):
        if path.is_dir():
            files += _pair_files(path)
        else:
            files.append(path)
    return files


def _pair_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files of a data set's text pairs of the split "train"."""
    return [shard for shard in OwnRecords(str(folder)).files() if shard.parent.name == TEXT_PAIRS]


def _read_records(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Yields (key, language, translation) of the text pairs of a data set, in both directions."""
    for shard in _pair_files(path):
        for number, (_, serialized) in enumerate(tfrecord.read_all(shard, _refuse, open_path)):
            pair = parse_record(serialized, str(shard), number)
            yield exact_key(pair.text_a), pair.language_b, pair.text_b
            yield exact_key(pair.text_b), pair.language_a, pair.text_a


def _read_google(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Yields (key, language, translation) of a file of Google's translations."""
    for number, line in read_lines(path, _refuse):
        if not line:
            continue
        try:
            translation = parse_google_line(line)
        except ValueError as error:
            _refuse(str(error), f"{path}:{number}")
        yield translation_key(translation.source), translation.target_language, translation.target


def _read_tsv(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Yields (key, language, translation) of lines with an English caption, a language and a translation."""
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != 3 or not all(map(clean, fields)):
            _refuse("expected English caption, language and translation with tabs between", f"{path}:{number}")
        caption, language, translation = fields
        yield translation_key(clean(caption)), canonical_language(language), clean(translation)


def _refuse(problem: str, location: str, count: int = 1) -> None:
    """Raises `UserError` for any problem; it is the `on_problem` of readers of files."""
    del count
    raise UserError(f"{location}: {problem}. Repair the file of translations or leave it out.")


def keys_of(text: Text) -> Iterator[str]:
    """Yields the keys by which translations of a caption are found: its exact key and, in English, its letters."""
    yield exact_key(text.text)
    if text.language == "en":
        yield translation_key(text.text)


def add_translations(
    image_id: str, texts: Sequence[Text], translations: Callable[[str], Sequence[tuple[str, str]]]
) -> list[Text]:
    """Returns the captions of an image, each followed by its translations, which share its group.

    A caption with translations and without a group gets a new group. A translation that the image has already is not
    repeated; if it has no group, it joins the caption's group.

    Args:
      image_id: the image's id, with which new groups begin.
      texts: the image's captions.
      translations: a function that is called with a key of `keys_of` and returns the (language, translation) of the
        captions with this key, in the order of the files.
    """
    group_of = {(text.language, text.text): text.group for text in texts}
    added_to_each = []  # for each caption, the (language, translation) that are added
    for index, text in enumerate(texts):
        caption = (text.language, text.text)
        candidates = itertools.chain.from_iterable(map(translations, keys_of(text)))
        different_candidates = dict.fromkeys(candidates)  # each once, in their order
        without_group = [pair for pair in different_candidates if pair != caption and not group_of.get(pair)]
        if without_group:
            group_of[caption] = text.group or group_of[caption] or f"{image_id}:{index}"
        added_to_each.append([pair for pair in without_group if pair not in group_of])
        for pair in without_group:
            group_of[pair] = group_of[caption]
    result: list[Text] = []
    for text, added_pairs in zip(texts, added_to_each):
        group = text.group or group_of[text.language, text.text]
        result.append(text._replace(group=group))
        result += [Text(translation, language, group, text.place) for language, translation in added_pairs]
    return result
