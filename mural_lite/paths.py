"""Files that are not on this machine (`gs://…`, `s3://…`), with the methods of `pathlib.Path` that this project uses.

fsspec's clients open them: gcsfs and s3fs, which the extras `gs` and `s3` install. What TensorFlow opens by itself, the
TFRecords of training, goes by file systems and credentials of its own: `let_tensorflow_read`. `files.as_path` gives a
`RemotePath` or a `pathlib.Path`, as the name asks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from mural_lite.errors import UserError, install_extra

CLIENTS = {"gs": "gcsfs", "s3": "s3fs"}  # scheme, and extra -> fsspec's client
BLOCK = 2**23  # bytes that are read ahead, and sent at a time


class Status(NamedTuple):
    """What `stat` tells of a remote file."""

    st_size: int


@dataclasses.dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder elsewhere. Folders are only the beginnings of names: none has to be made, none is empty.

    Every method raises `UserError` where no client for the scheme is installed, and `OSError` for failures: also for a
    bucket that does not exist, and for a store that does not answer.
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
        """The last part."""
        return posixpath.basename(self.address)

    @property
    def suffix(self) -> str:
        """The last ending, with its dot."""
        return posixpath.splitext(self.name)[1]

    @property
    def stem(self) -> str:
        """The last part without its last ending."""
        return posixpath.splitext(self.name)[0]

    @property
    def parent(self) -> RemotePath:
        """The folder."""
        return RemotePath(posixpath.dirname(self.address))

    def with_name(self, name: str) -> RemotePath:
        """Another name in the same folder."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> RemotePath:
        """The same name with another ending."""
        return self.parent / (self.stem + suffix)

    def relative_to(self, folder: RemotePath) -> str:
        """The name below a folder."""
        return self.address[len(str(folder)) + 1 :]

    def open(self, mode: str = "r", encoding: str = "utf-8") -> IO:
        """Opens the file to read or write it; what is written is there when the file is closed."""
        text = {} if "b" in mode else {"encoding": encoding}
        return self._ask(lambda store: store.open(self.address, mode, block_size=BLOCK, **text))

    def read_bytes(self) -> bytes:
        """The file's content."""
        return self._ask(lambda store: store.cat_file(self.address))

    def read_text(self, encoding: str = "utf-8") -> str:
        """The file's content as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Writes the file; readers see the old content or all of the new one."""
        self._ask(lambda store: store.pipe_file(self.address, data))

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        """Writes a text file."""
        self.write_bytes(text.encode(encoding))

    def stat(self) -> Status:
        """The file's size; raises `FileNotFoundError`."""
        return Status(self._ask(lambda store: store.info(self.address)["size"]))

    def is_file(self) -> bool:
        """Whether there is such a file."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Whether names of files begin with this one and a slash."""
        return self._kind() == "directory"

    def exists(self) -> bool:
        """Whether it is a file or a folder."""
        return self._kind() != ""

    def files(self) -> list[RemotePath]:
        """Returns all files below, sorted, without folders."""
        scheme, names = self.address.partition("://")[0], self._ask(lambda store: store.find(self.address))
        paths = [RemotePath(f"{scheme}://{name.lstrip('/')}") for name in sorted(names)]
        return [path for path in paths if str(path).startswith(f"{self.address}/")]  # a file is not below itself

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yields files and folders below that fit a pattern: `*`, `?`, `[…]` within a name, `**/` for any folders."""
        fits, depth = _matcher(pattern), None if "**/" in pattern else pattern.count("/") + 1
        matches: dict[str, None] = {}
        for path in self.files():
            parts = path.relative_to(self).split("/")
            for end in (depth,) if depth else range(1, len(parts) + 1):
                below = "/".join(parts[:end])
                if fits(below):
                    matches[below] = None
        yield from (self / below for below in matches)

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Yields all files below that fit a pattern."""
        return self.glob(f"**/{pattern}")

    def iterdir(self) -> Iterator[RemotePath]:
        """Yields what is in the folder."""
        return self.glob("*")

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: folders are where files are."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Deletes the file."""
        with contextlib.suppress(FileNotFoundError) if missing_ok else contextlib.nullcontext():
            self._ask(lambda store: store.rm_file(self.address))

    def rmdir(self) -> None:
        """Does nothing: a folder without files does not exist."""

    def replace(self, target: RemotePath) -> None:
        """Gives the file another name, by a copy inside the store."""
        self._ask(lambda store: store.cp_file(self.address, str(target)))
        self.unlink()

    def _kind(self) -> str:
        """What is there: "file", "directory", or "" for nothing. Unlike fsspec's `exists`, it raises what fails."""
        try:
            return self._ask(lambda store: store.info(self.address)["type"])
        except FileNotFoundError:
            return ""

    def _ask(self, what: Callable):
        """Calls `what` with the store's client, which remembers no names: others write there, too."""
        check_scheme(self.address)
        scheme = self.address.partition("://")[0]
        try:
            import fsspec  # a sixth of the imports of a query on the command line, mostly without a store

            store = fsspec.filesystem(scheme, use_listings_cache=False)
        except ImportError as error:
            raise UserError(
                f"{self.address}: {scheme}:// needs {CLIENTS[scheme]}: {install_extra(scheme)} ({error})."
            ) from None
        with failures_of(self.address):
            return what(store)


def _matcher(pattern: str) -> Callable[[str], object]:
    """Returns a test for names: as `glob`, a star ends at a slash."""
    kinds = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*|\?|\[[^\]]+\])", pattern)
    return re.compile(
        "".join(kinds.get(x, x if x[:1] == "[" and x[-1:] == "]" else re.escape(x)) for x in pieces)
    ).fullmatch


def find(pattern: str) -> list[RemotePath]:
    """Returns the sorted files and folders that match a name, which may hold wildcards behind its first folder."""
    wild = re.search(r"[*?\[]", pattern)
    if not wild:
        path = RemotePath(pattern)
        return [path] if path.exists() else []
    folder, _, rest = pattern[: wild.start()].rpartition("/")
    return sorted(RemotePath(folder).glob(rest + pattern[wild.start() :]))


@contextlib.contextmanager
def failures_of(name: str) -> Iterator[None]:
    """Raises the errors of a store's client as `OSError` with the name and one line of explanation."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - each client has classes of its own
        if isinstance(error, OSError) and error.strerror and error.filename:
            raise
        number = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}.get(type(error), errno.EIO)
        reason = str(getattr(error, "strerror", None) or error).strip().partition("\n")[0].rstrip(".")
        if not reason or reason in name:  # some say the name alone
            reason = os.strerror(number)
        if not isinstance(error, OSError):
            reason = f"{type(error).__name__}: {reason}"
        raise OSError(number, reason, name) from error


def check_scheme(name: str) -> None:
    """Raises `UserError`, without importing anything, for a name of a scheme that no client reads.

    A client that a program has registered with fsspec and loaded is taken as well.
    """
    if name.startswith("hf://"):  # the Hugging Face Hub's, see hugging_face.py
        raise UserError(f"{name} is the name of a model; expected a path, since this flag or field takes no models.")
    if name.partition("://")[0] not in (*CLIENTS, *getattr(sys.modules.get("fsspec"), "registry", ())):
        raise UserError(f"{name}: no file system is installed that reads it; expected gs://, s3:// or a local path.")
