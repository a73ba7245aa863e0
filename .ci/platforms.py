"""Whether pip finds wheels of all requirements, by platform and Python: for README's table of platforms.

    python .ci/platforms.py      # asks the package index by uv; installs nothing

It ends with 1 where a platform and a Python that README names have no answer, or where another now has.
"""

from __future__ import annotations

import pathlib
import runpy
import subprocess
import sys
import tempfile
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {  # uv's name: README's
    "x86_64-manylinux_2_28": "Linux, x86-64",
    "aarch64-manylinux_2_28": "Linux, ARM",
    "aarch64-apple-darwin": "macOS, ARM",
    "x86_64-apple-darwin": "macOS, Intel",
    "x86_64-pc-windows-msvc": "Windows",
}
WHOLE, LITE = "mural-tf", "mural-tf-lite"
EXTRAS = {WHOLE: ("demo", "catalogue", "serve", "hub", "lite", "convert"), LITE: ("hub",)}
EXPECTED = {  # the Pythons that have an answer
    (WHOLE, "Linux, x86-64"): PYTHONS[:4],
    (WHOLE, "Linux, ARM"): PYTHONS[2:4],
    (WHOLE, "macOS, ARM"): PYTHONS[2:4],
    (LITE, "Linux, x86-64"): PYTHONS,
    (LITE, "Linux, ARM"): PYTHONS,
    (LITE, "macOS, ARM"): PYTHONS,
    (LITE, "Windows"): PYTHONS,
}


def requirements(setup_file: pathlib.Path, extras: tuple[str, ...]) -> list[str]:
    """Returns a package's requirements, with their markers, and those of its extras."""
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(setup_file))
    arguments = setup.call_args.kwargs
    wanted = list(arguments["install_requires"])
    for extra in extras:
        wanted += arguments["extras_require"][extra]
    return wanted


def why_not(requirements_file: str, platform: str, python: str) -> str:
    """Returns the reason why there is no answer, "" if there is."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--only-binary=:all:"]
    asked = subprocess.run(
        [*command, f"--python-platform={platform}", f"--python-version={python}", requirements_file],
        capture_output=True,
        text=True,
    )
    return "" if asked.returncode == 0 else " ".join(asked.stderr.split())


def main() -> int:
    status = 0
    for package, folder in ((WHOLE, ROOT), (LITE, ROOT / "lite")):
        with tempfile.NamedTemporaryFile("w", suffix=".in") as file:
            file.write("\n".join(requirements(folder / "setup.py", EXTRAS[package])))
            file.flush()
            for platform, title in PLATFORMS.items():
                for python in PYTHONS:
                    reason = why_not(file.name, platform, python)
                    print(f"{package}, {title}, Python {python}: {reason or 'all requirements have wheels'}", flush=True)
                    if (not reason) != (python in EXPECTED.get((package, title), ())):
                        print("  README says otherwise.")
                        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
