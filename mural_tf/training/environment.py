"""The machine, the packages and the revision that a run is made with, as environment.json keeps them."""

from __future__ import annotations

import os
import pathlib
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata

PACKAGES = (
    "tensorflow", "keras", "tf-keras", "tensorflow-text", "tensorflow-addons", "tensorflow-hub", "protobuf", "numpy",
    "mural-tf",
)  # fmt: skip


def threads() -> int:
    """Returns how many threads TensorFlow takes for one operation by default: the processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Returns {package: version, or "not installed"}, such as {"numpy": "1.26.4"}."""
    installed = {}
    for name in names:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return installed


def _revision(root: pathlib.Path) -> str:
    """Returns the git revision of a checkout; "" where the folder is not the top of a checkout."""
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def environment() -> dict[str, object]:
    """Returns {"python", "packages": {name: version}, "revision", "processor", "threads"} as JSON holds them.

    "revision" is "" outside of a checkout of this package.
    """
    return {
        "python": platform.python_version(),
        "packages": package_versions(PACKAGES),
        "revision": _revision(pathlib.Path(__file__).resolve().parents[2]),
        "processor": platform.machine(),
        "threads": threads(),
    }
