"""Whether a run is finished, without TensorFlow."""

from __future__ import annotations

from mural_lite.files import json_field, read_json

SUMMARY = "summary.json"  # a run's last file


def is_finished(workdir, steps: int | None = None) -> bool:
    """Whether the run in `workdir` is trained, evaluated and exported; with `steps`, for exactly that many steps."""
    path = workdir / SUMMARY
    if steps is None or not path.exists():
        return path.exists()
    return json_field(read_json(path), "step", int, path) == steps
