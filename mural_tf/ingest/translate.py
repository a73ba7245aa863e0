"""A data set with translations of its captions: Multilingual CC3M, ETCL's data, is CC3M in five more languages (§3.4).

python -m mural_tf translate --data_dir=data/cc3m --translations=data/cc3m_translated --output=…
"""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Iterator

from mural_lite.dataset_folder import DESCRIPTION
from mural_lite.errors import UserError
from mural_lite.files import as_path, copy_file, read_json
from mural_lite.record_format import IMAGE_TEXT, ImageTextRecord
from mural_tf.data.dataset_builder import build_folder, paths_and_sizes
from mural_tf.ingest.source import Text, find_files
from mural_tf.ingest.translated_captions import add_translations, keys_of, read_translations, translation_files


def build_translated(
    data_dir: str | pathlib.Path, translations: str | pathlib.Path, output: str | pathlib.Path
) -> pathlib.Path:
    """Writes the data set `data_dir` with translations of its captions to the folder `output`, and returns the folder.

    Captions of the split "train" are joined by their translations; all other files are copied, with images or the
    features in their place. Nothing is written if `output` holds this very data set.

    Args:
      data_dir: the folder of a data set with image-text records.
      translations: the files of translations, as `translated_captions.read_translations` takes them: most often a data
        set with text pairs, which may be `data_dir` itself.
      output: a folder that does not exist, is empty, or holds this very data set.

    Raises:
      UserError: there are no such records, no caption is translated, or `output` holds something else.
    """
    data_dir = as_path(data_dir)
    identity = {"name": "translated captions", "data_dir": str(data_dir), "translations": str(translations)}
    files = {*_record_files(data_dir), *translation_files(str(translations))}
    if (data_dir / DESCRIPTION).is_file():
        files.add(data_dir / DESCRIPTION)
    identity["files"] = paths_and_sizes(sorted(files, key=str))
    return build_folder(output, identity, lambda folder: _write(folder, data_dir, translations))


def _record_files(data_dir: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files of all records of a data set."""
    return sorted(data_dir.glob("*/*.tfrecord"))


def _write(folder: pathlib.Path, data_dir: pathlib.Path, translations: str | pathlib.Path) -> dict:
    """Writes the records of `build_translated` into `folder`; returns the further fields of `dataset.json`.

    Raises `UserError` if no caption has a translation.
    """
    from mural_tf.data import records

    shards = len(records.list_files(data_dir, IMAGE_TEXT, "train"))
    counts: collections.Counter[str] = collections.Counter()
    translations_of = _read_translations(data_dir, as_path(translations))
    translated_records = _translated(data_dir, translations_of, counts)
    records.write_records(folder, IMAGE_TEXT, "train", translated_records, shards)
    if not counts["translations"]:
        raise UserError(
            f"None of the {counts['captions']} captions of {data_dir} has a translation in {translations}: in text "
            "pairs they are found by the caption's exact text."
        )
    _copy_other_files(folder, data_dir)
    description = {"counts": dict(counts)}
    if (data_dir / DESCRIPTION).exists():
        source_description = read_json(data_dir / DESCRIPTION)
        for field in ("language_groups", "held_out_names"):  # fields that evaluation reads
            if field in source_description:
                description[field] = source_description[field]
    return description


def _copy_other_files(folder: pathlib.Path, data_dir: pathlib.Path) -> None:
    """Copies the records into `folder` whose captions are not translated: all but the image-text records of train."""
    for path in _record_files(data_dir):
        is_translated = path.parent.name == IMAGE_TEXT and path.name.startswith("train-")
        if not is_translated:
            copy = folder / path.parent.name / path.name
            copy.parent.mkdir(exist_ok=True)
            copy_file(path, copy)


def _read_translations(data_dir: pathlib.Path, translations: pathlib.Path) -> dict[str, list[tuple[str, str]]]:
    """Returns {key of a caption: its (language, translation)} for the captions of train, which fit into memory."""
    from mural_tf.data import records

    translations_of: dict[str, list[tuple[str, str]]] = {}
    for record in records.read_records(data_dir, IMAGE_TEXT, "train"):
        for caption, language in zip(record.captions, record.languages):
            for key in keys_of(Text(caption, language, "", "")):
                translations_of[key] = []
    for path in find_files(str(translations)):
        for key, language, target in read_translations(path, ()):
            if key in translations_of:
                translations_of[key].append((language, target))
    return translations_of


def _translated(
    data_dir: pathlib.Path, translations_of: dict[str, list[tuple[str, str]]], counts: collections.Counter
) -> Iterator[ImageTextRecord]:
    """Yields the records of train with translations of their captions.

    Args:
      data_dir: the data set.
      translations_of: {key of a caption: its (language, translation)}.
      counts: counts "images", "captions" and "translations" while records are taken.
    """
    from mural_tf.data import records

    for record in records.read_records(data_dir, IMAGE_TEXT, "train"):
        triples = zip(record.captions, record.languages, record.caption_groups)
        captions = [Text(caption, language, group, "") for caption, language, group in triples]
        texts = add_translations(record.image_id, captions, translations_of.__getitem__)
        counts.update(images=1, captions=len(captions), translations=len(texts) - len(captions))
        yield ImageTextRecord(
            record.image_id,
            record.image,
            [text.text for text in texts],
            [text.language for text in texts],
            [text.group for text in texts],
        )


def describe_translated(folder: pathlib.Path) -> str:
    """Returns the counts of a data set of `build_translated`, in words."""
    counts = read_json(folder / DESCRIPTION)["counts"]
    return f"{counts['captions']} captions of {counts['images']} images and {counts['translations']} translations."
