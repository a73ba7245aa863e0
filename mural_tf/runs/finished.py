"""Whether a run is finished, which needs no TensorFlow."""

from __future__ import annotations

import pathlib

from mural_lite.paths import RemotePath

SUMMARY = "summary.json"  # a run's last file


def is_finished(workdir: pathlib.Path | RemotePath) -> bool:
    """Whether a run has been trained, evaluated and exported."""
    return (workdir / SUMMARY).exists()
