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
    """Exports the weights of a workdir's checkpoint, and returns the folder that `export_model` returns.

    The model card gets the evaluations of the weights' step.

    Args:
      workdir: a folder of training, here or in a store.
      directory: the folder to make; "": `workdir/export`.
      checkpoint: "result", "latest" or "best", which weights are exported.
      overwrite, precision, version, license: as in `export_model`.

    Raises:
      UserError: the workdir has no usable checkpoint, or is an export; or as `export_model`.
    """
    if not str(directory):
        directory = as_path(workdir) / "export"
    directory = as_path(directory)
    check_license(license)
    check_export_folder(directory, overwrite, version)
    workdir = local_copy(workdir)
    if (workdir / TEXT_ENCODER).is_dir():
        raise UserError(f"{workdir} is an export already: name the workdir that it was made of.")
    announce(f"Loading {display_name(workdir)} …")
    model, tokenizer, config, step = load_trained(workdir, checkpoint)
    evaluated = evaluations_of(workdir, step, checkpoint == "best", existing_name(workdir, checkpoint))
    return export_model(model, tokenizer, config, directory, evaluated, overwrite, precision, version, license)
