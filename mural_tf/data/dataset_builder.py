"""Building a data set's folder, and the counts in its description; `mural_lite/dataset_folder.py` reads them."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from mural_lite.dataset_folder import DESCRIPTION, is_built
from mural_lite.errors import UserError
from mural_lite.files import as_path, exclusive_lock, read_json, storage_errors, whole_folder, write_whole


def build_folder(
    output: str | pathlib.Path, identity: dict, write: Callable[[pathlib.Path], dict], follows: bool = False
) -> pathlib.Path:
    """Builds a data set into the folder `output`, unless it is there already, and returns that folder.

    Args:
      output: a folder, here or in a store, that does not exist yet, is empty, or holds this very data set.
      identity: JSON values that identify the data set (name, version, settings), the first values of `dataset.json`.
      write: a function that writes the records into the folder it is given, and returns the other values of
        `dataset.json`.
      follows: whether another data set of this name in `output` is an earlier state, which the new one replaces.

    Raises:
      UserError: `output` holds something else, or the disk is full or cannot be written.
    """
    output = as_path(output)
    if _is_current(output, identity, follows):
        return output
    with storage_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(output.parent / f".{output.name}.lock"):
            if not _is_current(output, identity, follows):  # another process may have built it while we waited
                _build(output, identity, write)
    return output


def paths_and_sizes(paths: Iterable[pathlib.Path]) -> list[list]:
    """Returns [[path, size in bytes], …], with 0 for a folder: how a data set's identity lists its input files."""
    return [[str(path), path.stat().st_size if path.is_file() else 0] for path in paths]


def _is_current(output: pathlib.Path, identity: dict, follows: bool) -> bool:
    """Whether `output` holds the data set of this identity; arguments as in `build_folder`.

    Raises `UserError` if it holds anything that the data set must not replace.
    """
    if follows and (output / DESCRIPTION).is_file():
        description = read_json(output / DESCRIPTION)
        if description.get("name") == identity["name"]:
            return all(description.get(key) == value for key, value in identity.items())
    return is_built(output, identity)


def _build(output: pathlib.Path, identity: dict, write: Callable[[pathlib.Path], dict]) -> None:
    """Writes records and `dataset.json` into `output`, which appears complete; raises `UserError` for a full disk."""
    import tensorflow as tf  # only now, so that the --help of commands stays fast

    try:
        with whole_folder(output, DESCRIPTION) as folder:
            description = {**identity, **write(folder)}
            write_whole(folder / DESCRIPTION, json.dumps(description, indent=1, ensure_ascii=False) + "\n")
    except tf.errors.OpError as error:  # how TensorFlow's record writer reports a full disk
        raise UserError(f"Cannot write to {output.parent}: {error.message}. Free space there.") from None


def count_records(languages: Sequence[str], image_text: Mapping[str, Sequence], pairs: Sequence) -> dict[str, dict]:
    """Returns the "counts" and "languages" of `dataset.json`: numbers of records in total, and per language.

        {"counts": {"image_text": {"dev": {"images": 100, "captions": 1200}}, "text_pairs": {"train": 900}},
         "languages": {"de": {"image_text": {"dev": {"images": 100, "captions": 200}}, "text_pairs": {"train": 180}}}}

    A language's "images" are the images with a caption in it: in dev and test, the queries of its evaluation.

    Args:
      languages: the languages to count.
      image_text: {split: `ImageTextRecord`s}.
      pairs: the `TextPair`s, all for training, of English and, as `language_b`, another language.
    """
    per_language = {language: {"image_text": {}, "text_pairs": {}} for language in languages}
    totals: dict[str, dict] = {"image_text": {}, "text_pairs": {"train": len(pairs)}}
    for split, records in image_text.items():
        captions: collections.Counter[str] = collections.Counter()
        images: collections.Counter[str] = collections.Counter()
        for record in records:
            captions.update(record.languages)
            images.update(set(record.languages))
        totals["image_text"][split] = {"images": len(records), "captions": sum(captions.values())}
        for language in languages:
            counts = {"images": images[language], "captions": captions[language]}
            per_language[language]["image_text"][split] = counts
    pair_counts = collections.Counter(pair.language_b for pair in pairs)
    pair_counts["en"] = len(pairs)  # every pair's `language_a`
    for language in languages:
        per_language[language]["text_pairs"]["train"] = pair_counts[language]
    return {"counts": totals, "languages": per_language}


def counts_of(files: Mapping[str, dict]) -> dict[str, dict]:
    """Returns the "counts" and "languages" of `dataset.json`: sums of its entries for the files.

        {"counts": {"image_text": {"train": {"images": 100, "captions": 500}}, "text_pairs": {"train": 900}},
         "languages": {"de": {"image_text": {"train": 500}}, "de-en": {"text_pairs": {"train": 900}}}}

    Args:
      files: {"image_text/train-00000-of-00004.tfrecord": {"records": count, "languages": {language: count}}}; a text
        pair's language is "de en", which counts together with "en de".
    """
    image_counts: dict[str, dict[str, int]] = {}  # {split: counts}
    pair_counts: dict[str, int] = {}  # {split: count}
    languages: dict[str, dict] = {}
    for name, file in files.items():
        record_type, file_name = name.split("/")
        split, *_ = file_name.rsplit("-", 3)  # "train" of "train-00000-of-00004.tfrecord"
        if record_type == "image_text":
            counts = image_counts.setdefault(split, {"images": 0, "captions": 0})
            counts["images"] += file["records"]
            counts["captions"] += sum(file["languages"].values())
        else:
            pair_counts[split] = pair_counts.get(split, 0) + file["records"]
        for language, count in file["languages"].items():
            either_order = "-".join(sorted(language.split(" ")))
            split_counts = languages.setdefault(either_order, {}).setdefault(record_type, {})
            split_counts[split] = split_counts.get(split, 0) + count
    totals = {"image_text": image_counts, "text_pairs": pair_counts}
    return {"counts": totals, "languages": dict(sorted(languages.items()))}
