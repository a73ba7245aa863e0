"""Folders in a store on its bad days: failed, slow and dropped answers, no permission, no room. What is there is whole.

The store's client and server are real; what trains in such a folder is in test_remote_folders.py.
"""

import contextlib
import io
import itertools
import os
import shutil
import tempfile

import pytest
import s3fs
from object_store import object_store, stored
from store_proxy import DROP, proxy_before

from mural_lite import remote_folders
from mural_lite.errors import UserError
from mural_lite.files import copy_file
from mural_lite.paths import RemotePath
from mural_lite.remote_folders import local_copy, local_folder, share

FOLDER = "s3://bucket/run"


@pytest.fixture(scope="module")
def store():
    """A proxy and the client of the store behind it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_folders, "EVERY", 0.2)
        patch.setattr(remote_folders, "LEASE", 0.5)
        with object_store(patch) as client, proxy_before(os.environ["S3_ENDPOINT"], patch) as proxy:
            s3fs.S3FileSystem.clear_instance_cache()  # it goes to the proxy from now on
            yield proxy, client


@pytest.fixture
def proxy(store):
    """The proxy before an empty folder."""
    proxy, client = store
    for name in stored(client, "run"):
        client.delete_object(Bucket="bucket", Key=f"run/{name}")
    yield proxy
    proxy.rule = lambda method, path, number: None


def save(folder, step):
    """Writes what a checkpoint consists of; returns {name: content}."""
    written = {f"checkpoints/ckpt-{step}.{end}": os.urandom(999) for end in ("data-00000-of-00001", "index")}
    for name, content in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    share(folder)
    return written


def test_bad_days_are_lived_through(proxy, store):
    proxy.requests.clear()
    proxy.rule = lambda method, path, number: {1: 503, 4: DROP, 8: 0.2, 11: 500}.get(number % 13)
    with local_folder(FOLDER) as folder:
        written = {**save(folder, 10), **save(folder, 20), **save(folder, 30)}
    assert {name: local_copy(f"{FOLDER}/{name}").read_bytes() for name in written} == written
    assert {answer for _, _, answer in proxy.requests} == {None, 503, 500, DROP, 0.2}
    proxy.rule = lambda method, path, number: None
    assert stored(store[1], "run") == written


@pytest.mark.parametrize("status, refused", [(403, ""), (507, "ckpt-20.index")])
def test_a_store_that_takes_nothing_more_keeps_the_last_checkpoint(proxy, store, status, refused):
    """From the first checkpoint on all writes, or that of the second one's index, which makes it whole."""
    with pytest.raises(UserError) as error:
        with local_folder(FOLDER) as folder:
            first = save(folder, 10)
            proxy.rule = lambda method, path, number: status if method in ("PUT", "POST") and refused in path else None
            save(folder, 20)
    message = str(error.value)
    assert message.startswith("Cannot write to s3://bucket/run: ") and f"{folder}, which is kept" in message, message
    assert (folder / "checkpoints/ckpt-20.index").exists()
    shutil.rmtree(folder)
    proxy.rule = lambda method, path, number: None
    found = stored(store[1], "run")
    assert first.items() <= found.items() and "checkpoints/ckpt-20.index" not in found
    assert not refused or "checkpoints/ckpt-20.data-00000-of-00001" in found
    with local_folder(FOLDER) as folder:
        assert all((folder / name).read_bytes() == content for name, content in first.items())


@pytest.mark.parametrize("methods", [("GET", "HEAD", "PUT", "POST", "DELETE"), ("PUT", "POST"), ("GET", "HEAD")])
def test_a_bucket_without_permission_is_one_line(proxy, store, methods, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    proxy.rule = lambda method, path, number: 403 if method in methods else None
    message = "^Cannot read and write s3://bucket/run: (Forbidden|AccessDenied|Access Denied).*your permissions"
    with pytest.raises(UserError, match=message), local_folder(FOLDER):
        pass
    assert not list(tmp_path.iterdir())
    proxy.rule = lambda method, path, number: None
    assert not stored(store[1], "run")


class CutOff:
    """A source of many megabytes that ends with an error."""

    def __init__(self, pieces, error):
        self._pieces = itertools.repeat(bytes(1 << 20), pieces)
        self._error = error

    def open(self, mode):
        return contextlib.nullcontext(self)

    def read(self, size):
        for piece in self._pieces:
            return piece
        raise self._error


@pytest.mark.parametrize("pieces", [3, 20])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error", "disk"), KeyboardInterrupt()])
def test_an_interrupted_upload_is_not_published(store, pieces, error):
    """Within the first part that is sent, and after it; what was there before stays."""
    target = RemotePath(f"s3://bucket/cut-{pieces}-{type(error).__name__}.bin")
    with pytest.raises(type(error)):
        copy_file(CutOff(pieces, error), target)
    assert not target.exists()
    target.write_all(io.BytesIO(bytes(pieces << 20)))
    with pytest.raises(type(error)):
        copy_file(CutOff(pieces, error), target)
    assert target.stat().st_size == pieces << 20


def test_a_bucket_that_is_not_there_is_one_line(store):
    for place in ("s3://nobucket/run", "s3://nobucket"):
        with pytest.raises(UserError, match="The specified bucket does not exist|does not exist, is empty"):
            local_copy(place)
    with pytest.raises(UserError, match="Cannot read and write s3://nobucket/run: The specified bucket does not exist"):
        with local_folder("s3://nobucket/run"):
            pass
