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
    """Raises `UserError` if an export cannot be written to a folder.

    Args:
      directory: the folder, here or in a store; it may not exist yet.
      overwrite: whether an export that is there may be replaced.
      version: "" for an export without versions; otherwise as in `choose_number`.
    """
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
    """Returns the number of a new version of an export.

    Args:
      export: the export's folder.
      version: the number in digits, or "auto" for the number after all versions that were ever begun.

    Raises:
      UserError: `version` is another text, or a number that is taken.
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
    """Adds a complete version to an export, in the order that the module describes.

    Files of the same number that a killed process left are replaced.

    Args:
      partial: a folder with the version's files as they will be in the export, on the file system of a local export.
      export: the export's folder.
      number: the version's number.
    """
    export = as_path(export)
    description = f"{VERSIONS}/{number}"
    card = (partial / description / MODEL_CARD).read_text(encoding="utf-8")
    (partial / description / MODEL_CARD).unlink()
    models = sorted(path.parent.relative_to(partial).as_posix() for path in partial.glob(f"*/{number}/{GRAPH}"))
    for name in (description, *models):
        remove_tree(export / name)
    own_folders = {name.split("/")[0] for name in (description, *models)}
    shared_names = []  # serving/, which all versions share and the first one brings
    for path in sorted(partial.iterdir()):
        if path.name not in own_folders and not (export / path.name).exists():
            shared_names.append(path.name)
    names = [description, *shared_names, *models]
    if isinstance(export, RemotePath):
        _upload(partial, export, names)
    else:
        _move(partial, export, names)
    write_whole(export / description / MODEL_CARD, card)


def _move(partial: pathlib.Path, export: pathlib.Path, names: list[str]) -> None:
    """Moves the folders `names` from `partial` to an export on the same file system, in their order."""
    for name in names:
        (export / name).parent.mkdir(parents=True, exist_ok=True)
        publish(partial / name, export / name)


def _upload(partial: pathlib.Path, export: RemotePath, names: list[str]) -> None:
    """Copies the files in the folders `names` from `partial` to an export in a store, the SavedModels' graphs last."""
    files: list[str] = []
    for name in names:
        paths = (partial / name).rglob("*")
        files += [path.relative_to(partial).as_posix() for path in paths if path.is_file()]

    def is_graph(file: str) -> bool:
        return file.count("/") == 2 and file.endswith(GRAPH)  # text_encoder/2/saved_model.pb, not hub/'s

    for file in sorted(files, key=lambda file: (is_graph(file), file)):
        copy_file(partial / file, export / file)
