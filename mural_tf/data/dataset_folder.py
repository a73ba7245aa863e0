"""A data set's folder: it appears when it is complete, and is never mistaken for another one."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

from mural_tf.errors import UserError
from mural_tf.files import exclusive_lock, storage_errors, whole_folder

DESCRIPTION = "dataset.json"


def build_folder(output: str | pathlib.Path, identity: dict, write: Callable[[pathlib.Path], dict]) -> pathlib.Path:
    """Builds the data set into `output`, unless it is there already, and returns that folder.

    Args:
      output: a local folder that does not exist yet, is empty, or holds this very data set.
      identity: what makes the data set this one (name, version, settings); JSON values. It opens `dataset.json`.
      write: writes the records into the folder it is given and returns the rest of `dataset.json`.

    Raises:
      UserError: `output` holds something else, or the disk is full or cannot be written.
    """
    output = pathlib.Path(output)
    if is_built(output, identity):
        return output
    with storage_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(output.parent / f".{output.name}.lock"):
            if not is_built(output, identity):  # another process may have built it while we waited
                _build(output, identity, write)
    return output


def is_built(output: pathlib.Path, identity: dict) -> bool:
    """Tells whether `output` holds this data set; raises `UserError` if it holds anything else."""
    description = output / DESCRIPTION
    if not description.is_file():
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise UserError(f"{output} exists and is no data set: choose another folder or remove it first.")
        return False
    try:
        found = json.loads(description.read_text(encoding="utf-8"))
        found = {key: found.get(key) for key in identity}
    except (ValueError, AttributeError):
        raise UserError(f"{description} is damaged: remove {output} and build again.") from None
    different = [
        f"{key} {found[key]!r} instead of {identity[key]!r}" for key in identity if found[key] != identity[key]
    ]
    if different:
        raise UserError(
            f"{output} holds another data set, with {'; '.join(different)}: choose another folder or remove it first."
        )
    return True


def _build(output: pathlib.Path, identity: dict, write: Callable[[pathlib.Path], dict]) -> None:
    import tensorflow as tf  # only now, so that the --help of commands stays fast

    try:
        with whole_folder(output) as folder:
            text = json.dumps({**identity, **write(folder)}, indent=1, ensure_ascii=False) + "\n"
            (folder / DESCRIPTION).write_text(text, encoding="utf-8")
    except tf.errors.OpError as error:  # how TensorFlow's record writer reports a full disk
        raise UserError(f"Cannot write to {output.parent}: {error.message}. Free space there.") from None
