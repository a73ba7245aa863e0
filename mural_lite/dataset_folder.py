"""A data set's folder: it appears when it is complete, and is never mistaken for another one."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Collection

from mural_lite.errors import UserError, brief
from mural_lite.files import as_path, json_field, read_json
from mural_lite.record_format import IMAGE_TEXT

DESCRIPTION = "dataset.json"


def is_built(output: pathlib.Path, identity: dict, name: str = DESCRIPTION, noun: str = "data set") -> bool:
    """Whether the JSON file `name` in the folder `output` has the entries `identity`; not if the folder is empty.

    A missing folder counts as empty. Raises `UserError` if the folder holds something else, or another data set, which
    messages call `noun`.
    """
    description = output / name
    if not description.is_file():
        is_empty_folder = output.is_dir() and not any(output.iterdir())
        if output.exists() and not is_empty_folder:
            raise UserError(f"{output} exists and holds no {noun}: choose another folder or remove it first.")
        return False
    try:
        stored = read_json(description)
    except UserError as error:
        raise UserError(f"{output} is damaged: {error} Remove it and build again.") from None
    for key, value in identity.items():
        if stored.get(key) != value:
            difference = _difference(stored.get(key), value)
            raise UserError(
                f"{output} holds another {noun}, with {key} {difference}: choose another folder or remove it first."
            )
    return True


def _difference(stored, wanted) -> str:
    """Returns "… instead of …" for the value that a description holds and the value that was expected.

    For dictionaries and lists it names only the entries that differ, because a line with all entries would be cut off.
    """
    if isinstance(stored, dict) and isinstance(wanted, dict):
        only_stored = {name: value for name, value in stored.items() if value != wanted.get(name)}
        only_wanted = {name: value for name, value in wanted.items() if value != stored.get(name)}
        return f"{brief(only_stored)} instead of {brief(only_wanted)}"
    if isinstance(stored, list) and isinstance(wanted, list):
        only_stored = [entry for entry in stored if entry not in wanted]
        only_wanted = [entry for entry in wanted if entry not in stored]
        if only_stored or only_wanted:  # otherwise they differ in their order
            return f"{brief(only_stored)} instead of {brief(only_wanted)}"
    return f"{brief(stored)} instead of {brief(wanted)}"


def check_records(folder: str | os.PathLike, split: str, languages: Collection[str] = ()) -> None:
    """Raises `UserError` for a split or a language that a data set on this machine lacks, before its records are read.

    It reads only names of files and dataset.json. `languages`: of captions, such as ["de"]; [] checks only the split.
    """
    root = as_path(folder)
    if not isinstance(root, pathlib.Path) or not (root / IMAGE_TEXT).is_dir():
        return
    names = [path.name for path in root.glob(f"{IMAGE_TEXT}/*.tfrecord")]
    if names and not any(name.startswith(f"{split}-") for name in names):
        splits = {re.sub(r"-\d+(-of-\d+)?\.tfrecord$", "", name) for name in names}
        raise UserError(f"No {IMAGE_TEXT} records of split {split!r} in {folder}: it has {', '.join(sorted(splits))}.")
    description = root / DESCRIPTION
    if languages and description.is_file():
        captions = json_field(read_json(description), "languages", dict, description, {})  # {language: their number}
        unknown = sorted(set(languages) - captions.keys())
        if captions and unknown:
            raise UserError(f"No captions in {', '.join(unknown)} in {folder}; its languages: {', '.join(captions)}.")


def describe(folder: pathlib.Path) -> str:
    """Returns lines on a data set's records and omissions; raises `UserError` for a damaged or older `dataset.json`."""
    path = folder / DESCRIPTION
    description = read_json(path)
    lines = []
    for split, counts in json_field(description, "counts.image_text", dict[str, dict], path).items():
        images = json_field(counts, "images", int, path)
        captions = json_field(counts, "captions", int, path)
        lines.append(f"{split}: {images} images, {captions} captions")
    for split, count in json_field(description, "counts.text_pairs", dict[str, int], path).items():
        lines.append(f"{split}: {count} text pairs")
    lines += _omissions(description, "skipped", path)
    lines += _omissions(description, "left_out", path)
    if (folder / "skipped.tsv").exists():
        lines.append(f"All that was skipped: {folder / 'skipped.tsv'}")
    lines.append(f"{len(json_field(description, 'languages', dict, path))} languages or language pairs in {folder}")
    return "\n".join(lines)


def _omissions(description: dict, key: str, path: pathlib.Path) -> list[str]:
    """Returns a line per reason why records were "skipped" or "left_out", as `key` says, the most frequent first."""
    entries = json_field(description, key, dict[str, dict], path, {})
    counts = {reason: json_field(entry, "count", int, path) for reason, entry in entries.items()}
    lines = []
    for reason in sorted(counts, key=counts.get, reverse=True):
        first = json_field(entries[reason], "first", str, path)
        lines.append(f"{key.replace('_', ' ')} {counts[reason]} x {reason}, first at {first}")
    return lines
