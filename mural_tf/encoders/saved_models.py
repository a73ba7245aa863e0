"""SavedModels on disk: sealed when they are written, checked when they are loaded.

TensorFlow stores a checksum with every variable, but none with the graph: a bit that changed in one of its constants
gives another model, whose vectors look right. So the SHA-256 of the graph and the assets, the vocabulary among them,
is stored with them, in the format of `sha256sum`. SavedModels that were made elsewhere lack the file and are not
checked.
"""

from __future__ import annotations

import hashlib
import pathlib

import tensorflow as tf

from mural_lite.errors import UserError, first_line

DIGESTS = "assets.extra/saved_model.sha256"  # TensorFlow passes over this folder


def seal_graph(folder: str | pathlib.Path) -> None:
    """Writes the SHA-256 of a SavedModel's graph and of its assets into its file `DIGESTS`, for `check_graph`."""
    folder = pathlib.Path(folder)
    (folder / DIGESTS).parent.mkdir(exist_ok=True)
    (folder / DIGESTS).write_text("".join(f"{line}\n" for line in _digest_lines(folder)), encoding="utf-8")


def check_graph(folder: str | pathlib.Path) -> None:
    """Raises `UserError` if a SavedModel's graph or an asset has changed since `seal_graph`; unsealed folders pass."""
    folder = pathlib.Path(folder)
    if not (folder / DIGESTS).is_file():
        return
    sealed = (folder / DIGESTS).read_text(encoding="utf-8", errors="replace").splitlines()
    present = _digest_lines(folder)
    if present == sealed:
        return
    changed_lines = [line for line in present if line not in sealed]
    changed = "an asset, or the list,"  # where a file, or a line of the list, is missing
    if changed_lines:
        _, changed = changed_lines[0].split("  ", 1)
    raise UserError(
        f"{folder} is damaged: {changed} is not what was exported, by the SHA-256 in {DIGESTS}. Copy the folder again "
        "from where it came from, or export again."
    )


def _digest_lines(folder: pathlib.Path) -> list[str]:
    """Returns the lines of `DIGESTS`, "SHA-256  FILE" as `sha256sum` prints them, for the graph and each asset."""
    lines = []
    for path in (folder / "saved_model.pb", *sorted(folder.glob("assets/*"))):
        if path.is_file():
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}")
    return lines


def load_saved_model(folder: str | pathlib.Path):
    """Loads a folder's SavedModel and returns it; keep it as long as its signatures are in use.

    Raises `UserError` if it is missing or damaged, or its graph or assets have changed since it was saved.
    """
    check_graph(folder)
    try:
        return tf.saved_model.load(str(folder))
    # IndexError: TensorFlow has many names for a damaged file.
    except (OSError, ValueError, IndexError, AttributeError, tf.errors.OpError) as error:
        raise UserError(f"{folder} is not a SavedModel or is damaged: {first_line(error)}") from None
