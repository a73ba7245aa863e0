"""Files that are not on this machine (`gs://…`, `s3://…`), with the methods of `pathlib.Path` that this project uses.

fsspec's clients open them: gcsfs and s3fs, which the extras `gs` and `s3` install. TensorFlow reads the TFRecords of
training by its own file systems and credentials (`mural_tf/data/records.py`). `files.as_path` returns a `RemotePath` or
a `pathlib.Path`, depending on the name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from typing import IO, NamedTuple

from mural_lite.errors import UserError, install_extra

CLIENTS = {"gs": "gcsfs", "s3": "s3fs"}  # scheme, and extra -> fsspec's client
BLOCK = 2**23  # bytes that are read ahead, and sent at a time
# Entries of a client's details that change with a file: of S3, Google, Azure, others; not every client has each.
VERSION_ENTRIES = ("size", "ETag", "etag", "md5Hash", "LastModified", "updated", "last_modified", "mtime", "created")
PIECE = 2**20  # bytes that are copied at a time


class Status(NamedTuple):
    """The result of `RemotePath.stat`."""

    st_size: int


@dataclasses.dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder in a store, "gs://bucket/folder/file". A folder is only the start of files' names, never empty.

    Methods without a docstring do the same as the methods of `pathlib.Path`. Every method raises `UserError` if no
    client for the scheme is installed, and `OSError` for failures, for example if a bucket does not exist or answer.
    """

    address: str

    def __post_init__(self):
        scheme, _, rest = self.address.partition("://")
        object.__setattr__(self, "address", f"{scheme}://{posixpath.normpath(rest).lstrip('/')}")

    def __str__(self) -> str:
        return self.address

    __fspath__ = __str__

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.address}/{name}")

    @property
    def name(self) -> str:
        return posixpath.basename(self.address)

    @property
    def suffix(self) -> str:
        _, suffix = posixpath.splitext(self.name)
        return suffix

    @property
    def stem(self) -> str:
        stem, _ = posixpath.splitext(self.name)
        return stem

    @property
    def parent(self) -> RemotePath:
        return RemotePath(posixpath.dirname(self.address))

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def with_suffix(self, suffix: str) -> RemotePath:
        return self.parent / (self.stem + suffix)

    def relative_to(self, folder: RemotePath) -> str:
        """Returns the name below a folder, "part/file" for "gs://bucket/part/file" and the folder gs://bucket."""
        return self.address.removeprefix(f"{folder}/")

    def open(self, mode: str = "r", encoding: str = "utf-8") -> IO:
        """Opens the file to read or write it; a new file appears in the store when it is closed."""
        options = {} if "b" in mode else {"encoding": encoding}
        return self._call("open", mode, block_size=BLOCK, **options)

    def read_bytes(self) -> bytes:
        return self._call("cat_file")

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Writes the file; readers see the old content or all of the new content."""
        self._call("pipe_file", data)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(text.encode(encoding))

    def write_all(self, content: IO[bytes]) -> None:
        """Writes the file in pieces; if reading or writing fails, the store keeps what it had under this name."""
        file = self._call("open", "wb", block_size=BLOCK, autocommit=False)
        try:
            shutil.copyfileobj(content, file, PIECE)
            file.close()
            file.commit()
        except BaseException:  # a keyboard interrupt, too
            with contextlib.suppress(Exception):
                file.discard()
                file.closed = True  # otherwise a client's object would try to write when it is deleted
            raise
        finally:
            with contextlib.suppress(AttributeError, ValueError):  # not every client has this list, or the file in it
                file.fs.transaction.files.remove(file)  # the list would keep it as long as the program runs

    def stat(self) -> Status:
        return Status(self._call("info")["size"])

    def is_file(self) -> bool:
        return self._type() == "file"

    def is_dir(self) -> bool:
        return self._type() == "directory"

    def exists(self) -> bool:
        return self._type() != ""

    def files(self) -> list[RemotePath]:
        """Returns all files below this folder, sorted, without folders."""
        return list(self.versions())

    def versions(self) -> dict[RemotePath, str]:
        """Returns {file: a text that changes with its content} of all files below this folder, sorted, by one request.

        A name that no `RemotePath` can have, such as "folder//file", is passed over.
        """
        details = self._call("find", detail=True)
        versions = {}
        for name in sorted(details):
            address = f"{self._scheme}://{name.lstrip('/')}"
            path = RemotePath(address)
            if str(path) == address and address.startswith(f"{self.address}/"):  # a file is not below itself
                entries = [str(details[name].get(entry, "")) for entry in VERSION_ENTRIES]
                versions[path] = " ".join(entries)
        return versions

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yields the files and folders below that fit a pattern: `*`, `?`, `[…]`, `[!…]` in a name, `**` for folders.

        A store lists only files, so the folders on the way to each file are looked at, too.
        """
        import fsspec.utils

        expression = re.compile(fsspec.utils.glob_translate(pattern))
        names: set[str] = set()
        for path in self.files():
            parts = path.relative_to(self).split("/")
            names.update("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        for name in sorted(names):
            if expression.match(name):
                yield self / name

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        return self.glob(f"**/{pattern}")

    def iterdir(self) -> Iterator[RemotePath]:
        return self.glob("*")

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a folder exists if it has files."""

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._call("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Does nothing: a folder without files does not exist."""

    def replace(self, target: RemotePath) -> None:
        """Renames the file, by a copy inside the store."""
        self._call("cp_file", str(target))
        self.unlink()

    def _type(self) -> str:
        """Returns "file", "directory", or "" if nothing exists; raises failures, which fsspec's `exists` hides."""
        try:
            return self._call("info")["type"]
        except FileNotFoundError:
            return ""

    @property
    def _scheme(self) -> str:
        scheme, _, _ = self.address.partition("://")
        return scheme

    def _call(self, method: str, *arguments, **options):
        """Returns the result of the method of the store's client with this address as its first argument.

        The client caches no listings, because other processes write to the store, too.
        """
        check_scheme(self.address)
        scheme = self._scheme
        try:
            import fsspec  # here, because most commands use no store, and this takes a sixth of a query's start

            store = fsspec.filesystem(scheme, use_listings_cache=False)
        except ImportError as error:
            raise UserError(
                f"{self.address}: {scheme}:// needs {CLIENTS[scheme]}: {install_extra(scheme)} ({error})."
            ) from None
        with failures_of(self.address):
            return getattr(store, method)(self.address, *arguments, **options)


def find(pattern: str) -> list[RemotePath]:
    """Returns the sorted files and folders that match a name, which may have wildcards after its first folder."""
    wildcard = re.search(r"[*?\[]", pattern)
    if not wildcard:
        path = RemotePath(pattern)
        return [path] if path.exists() else []
    folder, _, _ = pattern[: wildcard.start()].rpartition("/")
    return sorted(RemotePath(folder).glob(pattern.removeprefix(f"{folder}/")))


@contextlib.contextmanager
def failures_of(name: str) -> Iterator[None]:
    """Turns the errors of a store's client in the block into `OSError`s with `errno`, a one-line reason, and `name`.

    `UserError`, `MemoryError`, and an `OSError` that has a reason and a file already, are raised as they are.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - each client has its own classes
        if isinstance(error, OSError) and error.strerror and error.filename:
            raise
        numbers = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
        number = numbers.get(type(error), errno.EIO)
        raise OSError(number, _reason(error, number, name), name) from error


def _reason(error: Exception, number: int, name: str) -> str:
    """Returns the first line of an error's message, or the system's words for its errno `number` if it says nothing."""
    explanation = str(getattr(error, "strerror", None) or error)
    first_line, _, _ = explanation.strip().partition("\n")
    reason = first_line.rstrip(".")
    if not reason or reason in name:  # some clients give only the name
        reason = os.strerror(number)
    if not isinstance(error, OSError):
        reason = f"{type(error).__name__}: {reason}"
    return reason


def check_scheme(name: str) -> None:
    """Raises `UserError`, without importing anything, for a name, "ftp://host/file", whose scheme no client reads.

    Clients that a program has registered with fsspec and loaded count as well.
    """
    if name.startswith("hf://"):  # the Hugging Face Hub's, see hugging_face.py
        raise UserError(f"{name} is the name of a model; expected a path, since this flag or field takes no models.")
    scheme, _, _ = name.partition("://")
    registered = getattr(sys.modules.get("fsspec"), "registry", ())
    if scheme not in (*CLIENTS, *registered):
        raise UserError(f"{name}: no file system is installed that reads it; expected gs://, s3:// or a local path.")
