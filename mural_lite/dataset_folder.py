"""A data set's folder: it appears when it is complete, and is never mistaken for another one."""

from __future__ import annotations

import pathlib

from mural_lite.errors import UserError, brief
from mural_lite.files import json_field, read_json

DESCRIPTION = "dataset.json"


def is_built(output: pathlib.Path, identity: dict, name: str = DESCRIPTION, what: str = "data set") -> bool:
    """Whether `output` holds this data set, described by a file `name`; raises `UserError` for anything else."""
    description = output / name
    if not description.is_file():
        if output.exists() and (not output.is_dir() or any(True for _ in output.iterdir())):
            raise UserError(f"{output} exists and holds no {what}: choose another folder or remove it first.")
        return False
    try:
        stored = read_json(description)
    except UserError as error:
        raise UserError(f"{output} is damaged: {error} Remove it and build again.") from None
    stored = {key: stored.get(key) for key in identity}
    for key in identity:
        if stored[key] != identity[key]:
            difference = _difference(stored[key], identity[key])
            raise UserError(
                f"{output} holds another {what}, with {key} {difference}: choose another folder or remove it first."
            )
    return True


def _difference(stored, wanted) -> str:
    """Names only the entries in which two dictionaries differ: a line with all entries is cut off before those."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        names = [name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)]
        stored, wanted = ({name: values[name] for name in names if name in values} for values in (stored, wanted))
    return f"{brief(stored)} instead of {brief(wanted)}"


def describe(folder: pathlib.Path) -> str:
    """Returns lines on a data set's records, and on a conversion's omissions, from `dataset.json`."""
    path = folder / DESCRIPTION
    description = read_json(path)
    lines = []
    for split, counts in json_field(description, "counts.image_text", dict[str, dict], path).items():
        images, captions = (json_field(counts, name, int, path) for name in ("images", "captions"))
        lines.append(f"{split}: {images} images, {captions} captions")
    for split, count in json_field(description, "counts.text_pairs", dict[str, int], path).items():
        lines.append(f"{split}: {count} text pairs")
    for what, word in (("skipped", "skipped"), ("left_out", "left out")):
        kinds = json_field(description, what, dict[str, dict], path, {})
        counted = [(json_field(entry, "count", int, path), reason, entry) for reason, entry in kinds.items()]
        for count, reason, entry in sorted(counted, key=lambda item: -item[0]):
            lines.append(f"{word} {count} x {reason}, first at {json_field(entry, 'first', str, path)}")
    if (folder / "skipped.tsv").exists():
        lines.append(f"All that was skipped: {folder / 'skipped.tsv'}")
    lines.append(f"{len(json_field(description, 'languages', dict, path))} languages or language pairs in {folder}")
    return "\n".join(lines)
