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


def check_export_folder(directory: Folder, overwrite: bool, version: str) -> None:
    """Raises `UserError` if an export, or a new `version` of an export, cannot be written to `directory`."""
    if version and overwrite:
        raise UserError(
            "Give --overwrite, which replaces an export, or --version, which adds a version to it; not both."
        )
    if not directory.exists():
        return
    if directory.is_dir() and all(path.name.endswith(PARTIAL) for path in directory.iterdir()):
        return  # an empty folder, or a killed export's
    has_versions = (directory / VERSIONS).is_dir()
    if not has_versions and not (directory / MODEL_CARD).is_file():
        raise UserError(f"{directory} exists and is not an export: name another folder.")
    if version:
        choose_number(directory, version)  # raises for a number that is taken; chosen again when it is written
    elif has_versions:
        raise UserError(f"{directory} holds versions: add one with --version=auto, or name another folder.")
    elif not overwrite:
        raise UserError(
            f"{directory} holds an export already: add a version to it with --version=auto, name another folder, or "
            "replace it with --overwrite."
        )


def choose_number(export: Folder, version: str) -> int:
    """Returns the number of a new version: `version`, or for "auto" the number after all versions ever begun.

    Raises `UserError` for any other text, and for a number that is taken.
    """
    if version == AUTO:
        names = [path.name for path in export.glob("*/*") if path.parent.name != "hub"]
        return 1 + max((int(name) for name in names if name.isdigit()), default=0)
    if not version.isdigit() or int(version) < 1:
        raise UserError(f"--version={version}: expected auto or a number from 1 on.")
    number = int(version)
    if any(number in numbers for numbers in models_of(export).values()):
        raise UserError(
            f"{export} has a version {version} already, and a served version never changes: --version=auto."
        )
    return number


def add_version(partial: pathlib.Path, export: str | Folder, number: int) -> None:
    """Publishes the complete version in the folder `partial`, on the file system of `export`, as described above.

    Files of the same number that a killed process left are replaced.
    """
    export = as_path(export)
    version = f"{VERSIONS}/{number}"
    card = (partial / version / MODEL_CARD).read_text(encoding="utf-8")
    (partial / version / MODEL_CARD).unlink()
    models = sorted(path.parent.relative_to(partial).as_posix() for path in partial.glob(f"*/{number}/{GRAPH}"))
    for name in (version, *models):
        remove_tree(export / name)
    folders_of_versions = {name.split("/")[0] for name in (version, *models)}
    names = [version]
    for path in sorted(partial.iterdir()):  # serving/, which all versions share
        if path.name not in folders_of_versions and not (export / path.name).exists():
            names.append(path.name)
    names += models
    if isinstance(export, RemotePath):
        _upload(partial, export, names)
    else:
        _move(partial, export, names)
    write_whole(export / version / MODEL_CARD, card)


def _move(partial: pathlib.Path, export: pathlib.Path, names: list[str]) -> None:
    """Moves folders to an export on the same file system, in their order."""
    for name in names:
        (export / name).parent.mkdir(parents=True, exist_ok=True)
        publish(partial / name, export / name)


def _upload(partial: pathlib.Path, export: RemotePath, names: list[str]) -> None:
    """Copies files and folders to a store, the graphs of the SavedModels last."""
    files: list[str] = []
    for name in names:
        paths = (partial / name).rglob("*")
        files += [path.relative_to(partial).as_posix() for path in paths if path.is_file()]

    def is_graph(file: str) -> bool:
        return file.count("/") == 2 and file.endswith(GRAPH)

    for file in sorted(files, key=lambda file: (is_graph(file), file)):
        copy_file(partial / file, export / file)
