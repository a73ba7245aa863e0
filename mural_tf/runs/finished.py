"""Whether a run is finished, without TensorFlow."""

from __future__ import annotations

SUMMARY = "summary.json"  # a run's last file


def is_finished(workdir) -> bool:
    """Whether a run has been trained, evaluated and exported."""
    return (workdir / SUMMARY).exists()
