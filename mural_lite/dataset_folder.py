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
    """Whether `output` holds the data set `identity`, described by a file `name`; not if it is empty or missing.

    Raises `UserError` for anything else in it.
    """
    description = output / name
    if not description.is_file():
        is_empty_folder = output.is_dir() and next(iter(output.iterdir()), None) is None
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
    """Returns "… instead of …" for two values.

    For dictionaries and lists it names only the entries that differ, because a line with all entries would be cut off.
    """
    if isinstance(stored, dict) and isinstance(wanted, dict):
        all_stored = stored
        stored = {name: value for name, value in stored.items() if value != wanted.get(name)}
        wanted = {name: value for name, value in wanted.items() if value != all_stored.get(name)}
    elif isinstance(stored, list) and isinstance(wanted, list):
        only_stored = [entry for entry in stored if entry not in wanted]
        only_wanted = [entry for entry in wanted if entry not in stored]
        if only_stored or only_wanted:  # otherwise they differ in their order
            stored = only_stored
            wanted = only_wanted
    return f"{brief(stored)} instead of {brief(wanted)}"


def check_records(folder: str | os.PathLike, split: str, languages: Collection[str] = ()) -> None:
    """Raises `UserError` for a split, or a language, that a data set on this machine lacks: before anything is loaded.

    Only names of files and dataset.json are read.
    """
    data = as_path(folder)
    if not isinstance(data, pathlib.Path) or not (data / IMAGE_TEXT).is_dir():
        return
    names = [path.name for path in data.glob(f"{IMAGE_TEXT}/*.tfrecord")]
    if names and not any(name.startswith(f"{split}-") for name in names):
        there_are = ", ".join(sorted({re.sub(r"-\d+(-of-\d+)?\.tfrecord$", "", name) for name in names}))
        raise UserError(f"No {IMAGE_TEXT} records of split {split!r} in {folder}: it has {there_are}.")
    if languages and (data / DESCRIPTION).is_file():
        counts = json_field(read_json(data / DESCRIPTION), "languages", dict, data / DESCRIPTION, {})  # by language
        unknown = sorted(set(languages) - counts.keys())
        if counts and unknown:
            raise UserError(f"No captions in {', '.join(unknown)} in {folder}; its languages: {', '.join(counts)}.")


def describe(folder: pathlib.Path) -> str:
    """Returns lines on a data set's records, and on a conversion's omissions, from `dataset.json`."""
    path = folder / DESCRIPTION
    description = read_json(path)
    lines = []
    for split, counts in json_field(description, "counts.image_text", dict[str, dict], path).items():
        images = json_field(counts, "images", int, path)
        captions = json_field(counts, "captions", int, path)
        lines.append(f"{split}: {images} images, {captions} captions")
    for split, count in json_field(description, "counts.text_pairs", dict[str, int], path).items():
        lines.append(f"{split}: {count} text pairs")
    for key in ("skipped", "left_out"):
        entries = json_field(description, key, dict[str, dict], path, {})
        counts = {reason: json_field(entry, "count", int, path) for reason, entry in entries.items()}
        for reason in sorted(counts, key=counts.get, reverse=True):
            first = json_field(entries[reason], "first", str, path)
            lines.append(f"{key.replace('_', ' ')} {counts[reason]} x {reason}, first at {first}")
    if (folder / "skipped.tsv").exists():
        lines.append(f"All that was skipped: {folder / 'skipped.tsv'}")
    lines.append(f"{len(json_field(description, 'languages', dict, path))} languages or language pairs in {folder}")
    return "\n".join(lines)
