"""Installed packages against the known holes in what decodes the files of strangers.

The list is the project's own, as of `AS_OF`: before a release somebody looks for newer advisories. Where another
package forbids the version that mends a hole, the test is skipped and says which package that is.
"""

import importlib.metadata
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

AS_OF = "2026-11-28"


class Hole(NamedTuple):
    package: str
    mended_in: str
    advisory: str


HOLES = [
    Hole("pillow", "13.0.0", "GHSA-8g5g-8vmr-9782 (CVE-2026-112403): JPEG, writes beyond its memory"),
    Hole("pillow", "12.1.1", "CVE-2026-25990: Photoshop files, which are not opened here"),
    Hole("pillow", "10.0.1", "CVE-2023-4863: WebP"),
    Hole("pyarrow", "14.0.1", "CVE-2023-47248: code of a Parquet file runs"),
    Hole("setuptools", "78.1.1", "CVE-2025-47273, and CVE-2024-6345 before"),
]


def holders(hole):
    """The installed packages that forbid the version that mends a hole."""
    names = []
    for distribution in importlib.metadata.distributions():
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if canonicalize_name(requirement.name) != hole.package:
                continue
            is_asked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_asked and not requirement.specifier.contains(Version(hole.mended_in)):
                if Version(hole.mended_in) > Version(importlib.metadata.version(hole.package)):
                    names.append(f"{distribution.name} ({text})")
    return names


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: f"{hole.package}-{hole.mended_in}")
def test_installed_packages_have_no_known_holes(hole):
    try:
        installed = importlib.metadata.version(hole.package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{hole.package} is not installed")
    if Version(installed) >= Version(hole.mended_in):
        return
    said = f"{hole.package} {installed}: {hole.advisory}, mended in {hole.mended_in} (list of {AS_OF})"
    if forbidding := holders(hole):
        pytest.skip(f"{said}; held back by {', '.join(forbidding)}")
    pytest.fail(f"{said}: pip install --upgrade {hole.package}")


def test_a_hole_is_noticed():
    with pytest.raises(pytest.fail.Exception, match="pip install --upgrade pytest"):
        test_installed_packages_have_no_known_holes(Hole("pytest", "1000", "an example"))
