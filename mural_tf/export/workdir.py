"""Exports the trained model of a workdir, with the evaluations of its checkpoint."""

from __future__ import annotations

import pathlib

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.paths import RemotePath
from mural_lite.progress import announce
from mural_lite.remote_folders import display_name, local_copy
from mural_tf.export.readme import check_license
from mural_tf.export.saved_model import export_model
from mural_tf.export.serving import TEXT_ENCODER
from mural_tf.export.versions import check_export_folder
from mural_tf.training.checkpoints import existing_name
from mural_tf.training.evaluated import evaluations_of
from mural_tf.training.trained_model import load_trained


def export_workdir(
    workdir: str | pathlib.Path,
    directory: str | pathlib.Path = "",
    overwrite: bool = False,
    checkpoint: str = "result",
    precision: str = "float32",
    version: str = "",
    license: str = "",
) -> pathlib.Path | RemotePath:
    """Exports the "result", "latest" or "best" weights of a workdir to `directory` (default: `workdir/export`).

    The model card gets the evaluations of this step.

    Raises `UserError` if the workdir has no usable checkpoint, or as `export_model`.
    """
    directory = as_path(directory if str(directory) else as_path(workdir) / "export")
    check_license(license)
    check_export_folder(directory, overwrite, version)
    workdir = local_copy(workdir)
    if (workdir / TEXT_ENCODER).is_dir():
        raise UserError(f"{workdir} is an export already: name the workdir that it was made of.")
    announce(f"Loading {display_name(workdir)} …")
    model, tokenizer, config, step = load_trained(workdir, checkpoint)
    evaluated = evaluations_of(workdir, step, checkpoint == "best", existing_name(workdir, checkpoint))
    return export_model(model, tokenizer, config, directory, evaluated, overwrite, precision, version, license)
