"""Versions of an export: which are complete, and where each is described.

    image_encoder/2/, text_encoder/2/    the SavedModels, where TensorFlow Serving looks for them
    versions/2/                          config.json, vocabulary.txt, hub/ and model_card.json

What was published never changes, so a version stays usable while the next version appears. An export that was made
without a version has the version 1, and its description lies at the top. The model card
is written last. `mural_tf/export/versions.py` adds versions.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable

from mural_lite.errors import UserError
from mural_lite.paths import RemotePath

MODEL_CARD = "model_card.json"
GRAPH = "saved_model.pb"
VERSIONS = "versions"

Folder = pathlib.Path | RemotePath


def models_of(export: Folder) -> dict[str, list[int]]:
    """Returns {model: numbers of its complete versions, the newest last} of an export: {"text_encoder": [1, 2], …}."""
    described = {path.parent.name for path in export.glob(f"{VERSIONS}/*/{MODEL_CARD}")}
    versions: dict[str, list[int]] = {}
    for graph in export.glob(f"*/*/{GRAPH}"):
        number = graph.parent.name
        # A version that is being written has its folder in versions/ already, but no model card.
        is_complete = number in described or not (export / VERSIONS / number).is_dir()
        if number.isdigit() and is_complete:
            model = graph.parent.parent.name
            versions.setdefault(model, []).append(int(number))
    return {model: sorted(numbers) for model, numbers in sorted(versions.items())}


def newest_version(export: Folder, models: Iterable[str]) -> int:
    """Returns the newest version that all of these models have; raises `UserError` if they share no version."""
    versions = models_of(export)
    for name in models:
        if name not in versions:
            raise UserError(f"{export / name} has no version: expected a SavedModel in {export / name}/1.")
    shared = set.intersection(*(set(versions[name]) for name in models))
    if not shared:
        numbers = [f"{name} {', '.join(map(str, versions[name]))}" for name in models]
        raise UserError(
            f"{export} has no version of all encoders ({'; '.join(numbers)}): export again, or complete one."
        )
    return max(shared)


def description(export: Folder, number: int) -> Folder:
    """Returns the folder with a version's model card, configuration, vocabulary and TF-Hub modules."""
    folder = export / VERSIONS / str(number)
    if not folder.is_dir():  # made without a version
        return export
    return folder


def newest_description(folder: Folder) -> Folder:
    """Returns the `description` of the newest version of an export with versions; any other folder unchanged."""
    if not (folder / VERSIONS).is_dir():
        return folder
    newest_per_model = [numbers[-1] for numbers in models_of(folder).values()]
    return description(folder, max(newest_per_model, default=1))
