"""Whether pip finds wheels of all requirements, by platform and Python: for README's table of platforms.

    python .ci/platforms.py            # those that README names; asks the package index by uv, installs nothing
    python .ci/platforms.py --others   # and all others, with the reason

It ends with 1 where README says otherwise.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import runpy
import subprocess
import sys
import tempfile
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {  # uv's name: the title
    "x86_64-manylinux_2_28": "Linux, x86-64",
    "aarch64-manylinux_2_28": "Linux, ARM",
    "aarch64-apple-darwin": "macOS, Apple silicon",
    "x86_64-apple-darwin": "macOS, Intel",
    "x86_64-pc-windows-msvc": "Windows",
}
WHOLE, LITE = "mural-tf", "mural-tf-lite"
EXTRAS = {WHOLE: ("demo", "catalogue", "serve", "hub", "lite", "convert"), LITE: ("hub",)}
README = {  # the Pythons that it names
    (WHOLE, "Linux, x86-64"): PYTHONS[:4],
    (WHOLE, "Linux, ARM"): PYTHONS[2:4],
    (WHOLE, "macOS, Apple silicon"): PYTHONS[2:4],
    (LITE, "Linux, x86-64"): PYTHONS,
    (LITE, "Linux, ARM"): PYTHONS,
    (LITE, "macOS, Apple silicon"): PYTHONS,
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


def why_not(requirements_file: str, title: str, python: str) -> str:
    """Returns the reason why a requirement has no wheel, "" if all have."""
    (platform,) = (name for name, title_of_name in PLATFORMS.items() if title_of_name == title)
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--only-binary=:all:"]
    asked = subprocess.run(
        [*command, f"--python-platform={platform}", f"--python-version={python}", requirements_file],
        capture_output=True,
        text=True,
    )
    return "" if asked.returncode == 0 else " ".join(asked.stderr.split())


def asked(package: str, others: bool) -> list[tuple[str, str]]:
    """Returns the pairs of a platform, as README names it, and a Python to ask about."""
    pairs = [(title, python) for title in PLATFORMS.values() for python in PYTHONS]
    return pairs if others else [(title, python) for title, python in pairs if python in named(package, title)]


def named(package: str, title: str) -> tuple[str, ...]:
    return README.get((package, title), ())


def main() -> int:
    is_as_said = True
    for package, folder in ((WHOLE, ROOT), (LITE, ROOT / "lite")):
        with tempfile.NamedTemporaryFile("w", suffix=".in") as file, concurrent.futures.ThreadPoolExecutor(8) as pool:
            file.write("\n".join(requirements(folder / "setup.py", EXTRAS[package])))
            file.flush()
            pairs = asked(package, "--others" in sys.argv)
            reasons = pool.map(lambda pair: why_not(file.name, *pair), pairs)  # waits for the index, mostly
            for (title, python), reason in zip(pairs, reasons):
                print(f"{package}, {title}, Python {python}: {reason or 'all requirements have wheels'}", flush=True)
                if (not reason) != (python in named(package, title)):
                    print("  README says otherwise.")
                    is_as_said = False
    return 0 if is_as_said else 1


if __name__ == "__main__":
    sys.exit(main())
