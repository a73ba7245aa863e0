"""Translated captions: MURAL's *translate-train* baseline ([MURAL] §3.3, A.4), and the data of ETCL's triples.

    python -m mural_tf translate --data_dir=data/cc3m --translations=data/cc3m_translated --output=…

Each translation becomes a further caption of the image, in the group of the caption that it translates. A conversion
adds them to what it reads (--translations), and `build_translated` to the
split "train" of a data set: Multilingual CC3M, ETCL's data, is CC3M with its captions translated into five languages
([ETCL] §3.4).
"""

from __future__ import annotations

import collections
import json
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mural_tf.data import tfrecord
from mural_tf.data.dataset_folder import DESCRIPTION, build_folder
from mural_tf.data.record_format import TEXT_PAIRS, parse_record
from mural_tf.errors import UserError
from mural_tf.files import as_path, copy_file, open_path, read_json
from mural_tf.ingest.source import Text, find_files, known_language
from mural_tf.ingest.sources.own_records import OwnRecords
from mural_tf.text_files import canonical_language, clean, is_text, parse_object, read_lines

_NO_LETTER = re.compile(r"[^\w#]|_")
_DIGITS = re.compile(r"[0-9#]+")


class Translation(NamedTuple):
    """A caption and its translation, by Google; `identity` names caption and image."""

    source: str
    source_language: str
    target: str
    target_language: str
    identity: str


def parse_google_line(line: str) -> Translation:
    """Returns what a line of Google's translations holds; raises `ValueError` with what is wrong with it.

    A line is a JSON object of image_id ("391895_1": COCO's id and the number of the caption) or rec_num (CC3M's row,
    from 1), src_lang, trg_lang, caption_tokenized, translation_tokenized, backtranslation_tokenized. CC3M's digits are
    "#".
    """
    try:
        entry = parse_object(line)
        source, target = entry["caption_tokenized"], entry["translation_tokenized"]
        source_language, target_language = entry["src_lang"], entry["trg_lang"]
    except (ValueError, KeyError):
        raise ValueError("line that is not a JSON object with a caption and its translation") from None
    identity = entry.get("image_id", entry.get("rec_num", ""))
    if not is_text(source) or not is_text(target) or not (isinstance(identity, int) or is_text(identity)):
        raise ValueError("caption, translation or id that is not text")
    source, target = clean(source), clean(target)
    if not source or not target:
        raise ValueError("empty text")
    languages = known_language(source_language), known_language(target_language)
    if not all(languages):
        raise ValueError("unknown language")
    return Translation(source, languages[0], target, languages[1], str(identity))


def translation_key(text: str) -> str:
    """Returns what a caption has in common with its tokenised form: letters in lower case, and "#" for each number.

    Google's translations are of captions that were tokenised, lower-cased and had digits replaced.
    """
    return _NO_LETTER.sub("", _DIGITS.sub("#", text.casefold()))


def exact_key(text: str) -> str:
    """Of a caption word for word; no `translation_key` begins so."""
    return f"\t{text}"


def read_translations(path: pathlib.Path, languages: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields (key of a caption, language, translation) of a file or data folder.

    Args:
      path: `.jsonl`, also compressed, are Google's translations, and other files lines of
        `English caption<TAB>language<TAB>translation`: both are of English captions, found by `translation_key`. A
        folder's text pairs, split "train", translate both ways, between any languages and word for word.
      languages: target languages, BCP 47; empty for all.

    Raises:
      UserError: an unusable line; a translation that is lost would go unnoticed otherwise.
    """
    read = _from_records if path.is_dir() else _from_google if ".jsonl" in path.name else _from_tsv
    return ((key, language, target) for key, language, target in read(path) if not languages or language in languages)


def _from_records(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    for shard in OwnRecords(str(path)).files():
        if shard.parent.name == TEXT_PAIRS:
            for number, (_, serialized) in enumerate(tfrecord.read_all(shard, _refuse, open_path)):
                pair = parse_record(serialized, str(shard), number)
                yield exact_key(pair.text_a), pair.language_b, pair.text_b
                yield exact_key(pair.text_b), pair.language_a, pair.text_a


def _from_google(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    for number, line in read_lines(path, _refuse):
        if line:
            try:
                found = parse_google_line(line)
            except ValueError as error:
                _refuse(str(error), f"{path}:{number}")
            yield translation_key(found.source), found.target_language, found.target


def _from_tsv(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != 3 or not all(map(clean, fields)):
            _refuse("expected English caption, language and translation with tabs between", f"{path}:{number}")
        yield translation_key(clean(fields[0])), canonical_language(fields[1]), clean(fields[2])


def _refuse(kind: str, place: str, count: int = 1) -> None:
    del count
    raise UserError(f"{place}: {kind}. Repair the file of translations or leave it out.")


def keys_of(text: Text) -> Iterator[str]:
    """Yields what translations of a caption are found by."""
    yield exact_key(text.text)
    if text.language == "en":
        yield translation_key(text.text)


def add_translations(
    image_id: str, texts: Sequence[Text], translations: Callable[[str], Sequence[tuple[str, str]]]
) -> list[Text]:
    """Returns the captions of an image, each followed by its translations, which share its group.

    A caption with translations and without a group gets one of its own. A translation that the image has already is
    not repeated; if it has no group, it joins the caption's.

    Args:
      image_id: of the image.
      texts: its captions.
      translations: returns the (language, translation) of a key of `keys_of`, in the order of the files.
    """
    groups = {(text.language, text.text): text.group for text in texts}
    added = []
    for index, text in enumerate(texts):
        own = text.language, text.text
        known = dict.fromkeys(pair for key in keys_of(text) for pair in translations(key))
        found = [pair for pair in known if pair != own and not groups.get(pair)]
        if found:
            groups[own] = text.group or groups[own] or f"{image_id}:{index}"
        added.append([pair for pair in found if pair not in groups])
        groups.update(dict.fromkeys(found, groups[own]))
    result: list[Text] = []
    for text, pairs in zip(texts, added):
        group = text.group or groups[text.language, text.text]
        result.append(text._replace(group=group))
        result += [Text(target, language, group, text.place) for language, target in pairs]
    return result


def build_translated(
    data_dir: str | pathlib.Path, translations: str | pathlib.Path, output: str | pathlib.Path
) -> pathlib.Path:
    """Writes `data_dir` with translated captions to the folder `output`, unless it is there, and returns that folder.

    Captions of the split "train" are joined by their translations; all else is copied as it is, images (or features
    in their place) included.

    Args:
      data_dir: a data folder with image-text records.
      translations: as `read_translations` takes it: most often a data folder with text pairs, which may be the same.
      output: as in `build_folder`.

    Raises:
      UserError: no such records, none of which is translated, or an `output` that holds something else.
    """
    data_dir = as_path(data_dir)
    identity = {"name": "translated captions", "data_dir": str(data_dir), "translations": str(translations)}
    return build_folder(output, identity, lambda folder: _write(folder, data_dir, translations))


def _write(folder: pathlib.Path, data_dir: pathlib.Path, translations: str | pathlib.Path) -> dict:
    from mural_tf.data import records

    shards = len(records.list_files(data_dir, records.IMAGE_TEXT, "train"))
    counts, known = collections.Counter(), _known(data_dir, as_path(translations))
    translated = _translated(data_dir, known, counts)
    records.write_records(folder, records.IMAGE_TEXT, "train", translated, shards)
    if not counts["translations"]:
        raise UserError(
            f"None of the {counts['captions']} captions of {data_dir} has a translation in {translations}: in text "
            "pairs they are found by the caption's exact text."
        )
    for path in sorted(data_dir.glob("*/*.tfrecord")):
        copy = folder / path.parent.name / path.name
        if not (path.parent.name == records.IMAGE_TEXT and path.name.startswith("train-")):
            copy.parent.mkdir(exist_ok=True)
            copy_file(path, copy)
    path = data_dir / DESCRIPTION
    source = read_json(path) if path.exists() else {}
    of_evaluation = {name: source[name] for name in ("language_groups", "held_out_names") if name in source}
    return {"counts": dict(counts), **of_evaluation}


def _known(data_dir: pathlib.Path, translations: pathlib.Path) -> dict[str, list[tuple[str, str]]]:
    """Returns key -> (language, translation) of the captions of a data set, and of no others: these fit into memory."""
    from mural_tf.data import records

    found: dict[str, list[tuple[str, str]]] = {
        key: []
        for record in records.read_records(data_dir, records.IMAGE_TEXT, "train")
        for caption, language in zip(record.captions, record.languages)
        for key in keys_of(Text(caption, language, "", ""))
    }
    for path in find_files(str(translations)):
        for key, language, target in read_translations(path, ()):
            if key in found:
                found[key].append((language, target))
    return found


def _translated(data_dir: pathlib.Path, known: dict, counts: collections.Counter) -> Iterator:
    from mural_tf.data import records

    for record in records.read_records(data_dir, records.IMAGE_TEXT, "train"):
        triples = zip(record.captions, record.languages, record.caption_groups)
        texts = add_translations(record.image_id, [Text(*triple, "") for triple in triples], lambda key: known[key])
        counts.update(images=1, captions=len(record.captions), translations=len(texts) - len(record.captions))
        captions, languages, groups, _ = zip(*texts) if texts else ((), (), (), ())
        yield records.ImageTextRecord(record.image_id, record.image, captions, languages, groups)


def describe_translated(folder: pathlib.Path) -> str:
    """Returns what `build_translated` has written."""
    counts = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))["counts"]
    return f"{counts['captions']} captions of {counts['images']} images and {counts['translations']} translations."
