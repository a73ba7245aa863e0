"""The *translate-train* baseline (MURAL §4, A.4): English captions joined with their translations.

Each translation becomes a further caption of the image, in the group of the caption that it translates.
"""

from __future__ import annotations

import collections
import json
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mural_tf.data.dataset_folder import DESCRIPTION, build_folder
from mural_tf.errors import UserError
from mural_tf.ingest.source import Text, find_files
from mural_tf.ingest.tables import DiskTable, build_table
from mural_tf.ingest.text_files import canonical_language, clean, read_lines
from mural_tf.ingest.translations import read_translations

TABLE = "translations.sqlite"
_NO_LETTER = re.compile(r"[^\w#]|_")
_DIGITS = re.compile(r"[0-9#]+")


def translation_key(text: str) -> str:
    """Returns what a caption has in common with its tokenised form: letters in lower case, and "#" for each number.

    Google's translations are of captions that were tokenised, lower-cased and had digits replaced.
    """
    return _NO_LETTER.sub("", _DIGITS.sub("#", text.casefold()))


def build_translations(patterns: Sequence[str], languages: Sequence[str], folder: pathlib.Path) -> None:
    """Writes the table of translations into `folder`, unless it is there.

    Args:
      patterns: files. `.jsonl`, also compressed, are Google's translations; others are lines of
        `English caption<TAB>language<TAB>translation`.
      languages: target languages; empty for all.
      folder: of the conversion.

    Raises:
      UserError: an unusable line; a translation that is lost would go unnoticed otherwise.
    """
    wanted = {canonical_language(language) for language in languages}
    build_table(folder / TABLE, _rows([path for pattern in patterns for path in find_files(pattern)], wanted))


def _rows(paths: Iterable[pathlib.Path], wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        pairs = _from_google(path) if ".jsonl" in path.name else _from_tsv(path)
        for source, language, target in pairs:
            if not wanted or language in wanted:
                yield translation_key(source), f"{language}\t{target}".encode()


def _from_google(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    for found, _ in read_translations(path, _refuse):
        yield found.source, found.target_language, found.target


def _from_tsv(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != 3 or not all(map(clean, fields)):
            _refuse("expected English caption, language and translation with tabs between", f"{path}:{number}")
        yield clean(fields[0]), canonical_language(fields[1]), clean(fields[2])


def _refuse(kind: str, place: str) -> None:
    raise UserError(f"{place}: {kind}. Repair the file of translations or leave it out.")


class Translations:
    """Adds translations to captions."""

    def __init__(self, folder: pathlib.Path):
        self._table = DiskTable(folder / TABLE) if (folder / TABLE).exists() else None

    def add_to(self, image_id: str, texts: Sequence[Text]) -> list[Text]:
        """Returns the captions of an image, each English one followed by its translations."""
        if self._table is None:
            return list(texts)
        result: list[Text] = []
        present = {(text.language, text.text) for text in texts}
        for index, text in enumerate(texts):
            found = self._table.get(translation_key(text.text)) if text.language == "en" else []
            pairs = dict.fromkeys(tuple(value.decode().split("\t", 1)) for value in found)
            new = [pair for pair in pairs if pair not in present]
            present.update(new)
            group = text.group or (f"{image_id}:{index}" if new else "")
            result.append(text._replace(group=group))
            result += [Text(target, language, group, text.place) for language, target in new]
        return result


# Adds translations to the captions of a data set: what ETCL's triples and MURAL's translate-train need.
#
#     python -m mural_tf translate --data_dir=data/cc3m --translations=data/cc3m_translated --output=…
#
# Multilingual CC3M, ETCL's data, is CC3M with its captions translated into five languages ([ETCL] §3.4).
# Translations are text pairs of a data folder (`records.py`), one side of which is a caption word for word. They
# join the caption's image and group in the split "train"; all else is copied. All text pairs are held in memory.

KnownTranslations = Mapping[str, Sequence[tuple[str, str]]]  # caption -> (language, text)


def build_translated(
    data_dir: str | pathlib.Path, translations: str | pathlib.Path, output: str | pathlib.Path
) -> pathlib.Path:
    """Writes `data_dir` with translated captions to the folder `output`, unless it is there, and returns that folder.

    Args:
      data_dir: a data folder with image-text records.
      translations: a data folder with text pairs; may be the same.
      output: as in `build_folder`.

    Raises:
      UserError: no such records, none of which is translated, or an `output` that holds something else.
    """
    data_dir, output = pathlib.Path(data_dir), pathlib.Path(output)
    identity = {"name": "translated captions", "data_dir": str(data_dir), "translations": str(translations)}
    return build_folder(output, identity, lambda folder: _write(folder, data_dir, translations))


def _write(folder: pathlib.Path, data_dir: pathlib.Path, translations) -> dict:
    from mural_tf.data import records  # TensorFlow, only now: --help stays fast

    known = known_translations(records.read_records(translations, records.TEXT_PAIRS, "train"))
    counts = collections.Counter()
    train = records.read_records(data_dir, records.IMAGE_TEXT, "train")
    shards = len(records.list_files(data_dir, records.IMAGE_TEXT, "train"))
    records.write_records(folder, records.IMAGE_TEXT, "train", _translated(train, known, counts), shards)
    if not counts["translations"]:
        raise UserError(
            f"None of the {counts['captions']} captions of {data_dir} is a side of a text pair of {translations}: "
            "translations are found by the caption's exact text."
        )
    for path in sorted(data_dir.glob("*/*.tfrecord")):
        copy = folder / path.parent.name / path.name
        if not (path.parent.name == records.IMAGE_TEXT and path.name.startswith("train-")):
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
    return {"counts": dict(counts)}


def known_translations(pairs: Iterable) -> KnownTranslations:
    """Returns what each text of `records.TextPair`s is in other languages, both ways, without repeats."""
    known: dict[str, dict] = collections.defaultdict(dict)
    for pair in pairs:
        known[pair.text_a][pair.language_b, pair.text_b] = None
        known[pair.text_b][pair.language_a, pair.text_a] = None
    return {text: tuple(found) for text, found in known.items()}


def add_translations(record, known: KnownTranslations):
    """Returns a `records.ImageTextRecord` with its captions' translations after them, in the caption's group.

    A caption without a group gets one of its own, and one that the record has already is not added.
    """
    groups = [group or f"caption-{i}" for i, group in enumerate(record.caption_groups)]
    entries = dict.fromkeys(zip(record.captions, record.languages, groups))
    for caption, group in zip(record.captions, groups):
        entries.update(dict.fromkeys((text, language, group) for language, text in known.get(caption, ())))
    captions, languages, groups = zip(*entries) if entries else ((), (), ())
    return type(record)(record.image_id, record.image, captions, languages, groups)


def _translated(train: Iterable, known: KnownTranslations, counts: collections.Counter) -> Iterator:
    for record in train:
        translated = add_translations(record, known)
        counts["images"] += 1
        counts["captions"] += len(record.captions)
        counts["translations"] += len(translated.captions) - len(record.captions)
        yield translated


def describe_translated(folder: pathlib.Path) -> str:
    """Returns what `build_translated` has written."""
    counts = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))["counts"]
    return f"{counts['captions']} captions of {counts['images']} images and {counts['translations']} translations."
