"""A new version of an export, next to the others; `mural_lite/versions.py` describes the folders.

A version appears in this order: its folder in versions/ without the model card, the SavedModels (in a store their
graphs after everything else), the model card. A run that finds versions/2/ without the card passes over the number 2.
TensorFlow Serving does not know the card: between the two last steps it may have only one of the encoders.
"""

from __future__ import annotations

import pathlib

from mural_lite.errors import UserError
from mural_lite.files import PARTIAL, as_path, copy_file, publish, remove_tree, write_whole
from mural_lite.paths import RemotePath
from mural_lite.versions import GRAPH, MODEL_CARD, VERSIONS, Folder, models_of

AUTO = "auto"


def check_free(directory: Folder, overwrite: bool, version: str) -> None:
    """Raises `UserError` for a folder that an export cannot be written to."""
    if version and overwrite:
        raise UserError(
            "Give --overwrite, which replaces an export, or --version, which adds a version to it; not both."
        )
    is_there = directory.is_dir() and any(not path.name.endswith(PARTIAL) for path in directory.iterdir())
    if not directory.exists() or (directory.is_dir() and not is_there):
        return
    has_versions = (directory / VERSIONS).is_dir()
    if not has_versions and not (directory / MODEL_CARD).is_file():
        raise UserError(f"{directory} exists and is not an export: name another folder.")
    if version:
        choose_number(directory, version)
    elif has_versions:
        raise UserError(f"{directory} holds versions: add one with --version=auto, or name another folder.")
    elif not overwrite:
        raise UserError(
            f"{directory} holds an export already: add a version to it with --version=auto, name another folder, or "
            "replace it with --overwrite."
        )


def choose_number(export: Folder, wanted: str) -> int:
    """Returns the number that a new version gets: behind all that were ever begun for "auto", else the one wanted.

    Raises `UserError` for anything else, and for a number that is taken.
    """
    if wanted == AUTO:
        names = [path.name for path in export.glob("*/*") if path.parent.name != "hub"]
        return 1 + max((int(name) for name in names if name.isdigit()), default=0)
    if not wanted.isdigit() or int(wanted) < 1:
        raise UserError(f"--version={wanted}: expected auto or a number from 1 on.")
    if any(int(wanted) in numbers for numbers in models_of(export).values()):
        raise UserError(f"{export} has a version {wanted} already, and a served version never changes: --version=auto.")
    return int(wanted)


def add_version(partial: pathlib.Path, export: str | Folder, number: int) -> None:
    """Publishes a version that is complete in the folder `partial`, on the file system of `export`, as described above.

    What a killed process left of the same number is replaced.
    """
    export, version = as_path(export), f"{VERSIONS}/{number}"
    card = (partial / version / MODEL_CARD).read_text(encoding="utf-8")
    (partial / version / MODEL_CARD).unlink()
    models = sorted(path.parent.relative_to(partial).as_posix() for path in partial.glob(f"*/{number}/{GRAPH}"))
    for name in (version, *models):
        remove_tree(export / name)
    parts = {VERSIONS, *(name.split("/")[0] for name in models)}
    shared = [path.name for path in sorted(partial.iterdir()) if path.name not in parts]  # serving/
    add = _upload if isinstance(export, RemotePath) else _move
    add(partial, export, [version, *(name for name in shared if not (export / name).exists()), *models])
    write_whole(export / version / MODEL_CARD, card)


def _move(partial: pathlib.Path, export: pathlib.Path, names: list[str]) -> None:
    for name in names:
        (export / name).parent.mkdir(parents=True, exist_ok=True)
        publish(partial / name, export / name)


def _upload(partial: pathlib.Path, export: RemotePath, names: list[str]) -> None:
    paths = [path for name in names for path in (partial / name).rglob("*") if path.is_file()]
    names_of_files = [path.relative_to(partial).as_posix() for path in paths]
    for name in sorted(names_of_files, key=lambda name: (name.count("/") == 2 and name.endswith(GRAPH), name)):
        copy_file(partial / name, export / name)
