"""Files that are not on this machine (`gs://…`, `s3://…`), with the methods of `pathlib.Path` that this project uses.

Whatever is at hand opens them: Apache Beam's file systems where Beam is loaded (conversions, whose workers do without
TensorFlow), TensorFlow's elsewhere. `files.as_path` gives a `RemotePath` or a `pathlib.Path`, as the name asks for.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from mural_tf.errors import UserError


class Status(NamedTuple):
    """What `stat` tells of a remote file."""

    st_size: int


class RemotePath:
    """A file or folder elsewhere. Folders are only the beginnings of names: none has to be made, none is empty.

    Every method raises `UserError` where no file system here knows the scheme, and `OSError` for what fails.
    """

    def __init__(self, name: str):
        scheme, _, rest = str(name).partition("://")
        self._name = f"{scheme}://{posixpath.normpath(rest).lstrip('/')}"

    def __str__(self) -> str:
        return self._name

    __fspath__ = __str__

    def __repr__(self) -> str:
        return f"RemotePath({self._name!r})"

    def __eq__(self, other) -> bool:
        return isinstance(other, RemotePath) and other._name == self._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __lt__(self, other: RemotePath) -> bool:
        return self._name < other._name

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._name}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return posixpath.basename(self._name)

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
        return RemotePath(posixpath.dirname(self._name))

    def with_name(self, name: str) -> RemotePath:
        """Another name in the same folder."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> RemotePath:
        """The same name with another ending."""
        return self.parent / (self.stem + suffix)

    def expanduser(self) -> RemotePath:
        """Itself: no store has home folders."""
        return self

    def relative_to(self, folder: RemotePath) -> str:
        """The name below a folder."""
        return self._name[len(str(folder)) + 1 :]

    def open(self, mode: str = "r", encoding: str | None = None) -> IO:
        """Opens the file to read or write it; what is written is there when the file is closed."""
        file = _call(self._name, lambda system: system.open(self._name, mode.replace("b", "").replace("t", "")))
        return file if "b" in mode else io.TextIOWrapper(file, encoding=encoding or "utf-8")

    def read_bytes(self) -> bytes:
        """The file's content."""
        with failures_of(self._name), self.open("rb") as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """The file's content as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Writes the file; readers see the old content or all of the new one."""
        with failures_of(self._name), self.open("wb") as file:
            file.write(data)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        """Writes a text file."""
        self.write_bytes(text.encode(encoding))

    def stat(self) -> Status:
        """The file's size; raises `FileNotFoundError`."""
        return Status(_call(self._name, lambda system: system.size(self._name)))

    def is_file(self) -> bool:
        """Tells whether there is such a file."""
        return _call(self._name, lambda system: system.is_file(self._name))

    def is_dir(self) -> bool:
        """Tells whether names of files begin with this one and a slash."""
        return _call(self._name, lambda system: system.is_dir(self._name))

    def exists(self) -> bool:
        """Tells whether it is a file or a folder."""
        return self.is_file() or self.is_dir()

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yields files and folders below that fit a pattern: `*`, `?`, `[…]` within a name, `**/` for any folders."""
        fits, depth = _matcher(pattern), None if "**/" in pattern else pattern.count("/") + 1
        found: dict[str, None] = {}
        for name in _call(self._name, lambda system: system.walk(self._name)):
            parts = name[len(self._name) + 1 :].split("/")
            for end in (depth,) if depth else range(1, len(parts) + 1):
                below = "/".join(parts[:end])
                if fits(below):
                    found[below] = None
        yield from (self / below for below in found)

    def files(self) -> list[RemotePath]:
        """Returns all files below, without folders."""
        return [RemotePath(name) for name in _call(self._name, lambda system: system.walk(self._name))]

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
        if not missing_ok or self.is_file():
            _call(self._name, lambda system: system.remove(self._name))

    def rmdir(self) -> None:
        """Does nothing: a folder without files is none."""

    def replace(self, target: RemotePath) -> None:
        """Gives the file another name, by a copy inside the store."""
        _call(self._name, lambda system: system.rename(self._name, str(target)))


def _matcher(pattern: str) -> Callable[[str], object]:
    """Returns a test for names: as `glob`, a star ends at a slash."""
    kinds = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*|\?|\[[^\]]+\])", pattern)
    return re.compile(
        "".join(kinds.get(x, x if x[:1] == "[" and x[-1:] == "]" else re.escape(x)) for x in pieces)
    ).fullmatch


def find(pattern: str) -> list[RemotePath]:
    """Returns the sorted files and folders that a name stands for, which may hold wildcards behind its first folder."""
    wild = re.search(r"[*?\[]", pattern)
    if not wild:
        path = RemotePath(pattern)
        return [path] if path.exists() else []
    folder, _, rest = pattern[: wild.start()].rpartition("/")
    return sorted(RemotePath(folder).glob(rest + pattern[wild.start() :]))


@contextlib.contextmanager
def failures_of(name: str) -> Iterator[None]:
    """Raises what any store's client raises as `OSError` with the name and one line of what is wrong."""
    try:
        yield
    except (OSError, UserError):
        raise
    except Exception as error:  # noqa: BLE001 - each store's client has classes of its own
        if type(error).__name__ == "NotFoundError":
            raise _missing(name) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise OSError(errno.EIO, f"{type(error).__name__}: {reason}".rstrip(".: "), name) from error


def _missing(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file", name)


def _call(name: str, what):
    with failures_of(name):
        return what(_system(name))


SCHEMES = ("gs", "s3")


def check_scheme(name: str) -> None:
    """Raises `UserError`, without importing anything, for a name of a scheme that no file system here could know."""
    tensorflow, scheme = sys.modules.get("tensorflow"), name.partition("://")[0]
    if scheme not in (*SCHEMES, *(tensorflow.io.gfile.get_registered_schemes() if tensorflow else ())):
        raise UserError(f"{name}: no file system is installed that reads it; expected gs://, s3:// or a local path.")


def _system(name: str) -> _Beam | _BeamS3 | _TensorFlow:
    if "apache_beam" not in sys.modules:
        return _TensorFlow(name)
    return _s3() if name.startswith("s3://") else _Beam(name)


class _Beam:
    """Apache Beam's file systems: `gs://` by apache-beam[gcp], `s3://` by apache-beam[aws]."""

    def __init__(self, name: str):
        from apache_beam.io.filesystems import FileSystems

        self._systems = FileSystems
        try:
            FileSystems.get_filesystem(name)
        except ValueError:
            extra = {"gs": "gcp", "s3": "aws"}.get(name.partition("://")[0])
            install = f": pip install 'apache-beam[{extra}]'" if extra else "; expected gs://, s3:// or a local path"
            raise UserError(f"{name}: no file system is installed that reads it{install}.") from None

    def open(self, name: str, mode: str) -> IO[bytes]:
        from apache_beam.io.filesystem import CompressionTypes

        how = self._systems.create if "w" in mode else self._systems.open
        return how(name, "application/octet-stream", CompressionTypes.UNCOMPRESSED)

    def _matched(self, pattern: str):
        (found,) = self._systems.match([pattern])
        return found.metadata_list

    def size(self, name: str) -> int:
        found = self._matched(name)
        if not found:
            raise _missing(name)
        return found[0].size_in_bytes

    def is_file(self, name: str) -> bool:
        return self._systems.exists(name)

    def is_dir(self, name: str) -> bool:
        return bool(self._matched(f"{name}/**"))

    def walk(self, name: str) -> list[str]:
        return sorted(found.path for found in self._matched(f"{name}/**"))

    def remove(self, name: str) -> None:
        self._systems.delete([name])

    def rename(self, name: str, target: str) -> None:
        self._systems.rename([name], [target])


class _BeamS3:
    """As `_Beam`, with one client for all files: Beam's own file system makes one for each call, in 0.15 s."""

    def __init__(self):
        _Beam("s3://")  # raises where the client is not installed
        from apache_beam.io.aws.clients.s3 import boto3_client
        from apache_beam.io.aws.s3io import S3IO
        from apache_beam.options.pipeline_options import PipelineOptions

        self._store = S3IO(boto3_client.Client(PipelineOptions([])))

    def open(self, name: str, mode: str) -> IO[bytes]:
        return self._store.open(name, mode)

    def size(self, name: str) -> int:
        if not self.is_file(name):
            raise _missing(name)
        return self._store.size(name)

    def is_file(self, name: str) -> bool:
        return self._store.exists(name)

    def is_dir(self, name: str) -> bool:
        return next(iter(self._store.list_files(f"{name}/")), None) is not None

    def walk(self, name: str) -> list[str]:
        return sorted(path for path, _ in self._store.list_files(f"{name}/"))

    def remove(self, name: str) -> None:
        self._store.delete(name)

    def rename(self, name: str, target: str) -> None:
        self._store.rename(name, target)


@functools.lru_cache(maxsize=1)
def _s3() -> _BeamS3:
    return _BeamS3()


class _TensorFlow:
    """TensorFlow's file systems: `gs://` is built in, `s3://` comes with tensorflow-io."""

    def __init__(self, name: str):
        import tensorflow as tf

        self._gfile, scheme = tf.io.gfile, name.partition("://")[0]
        if scheme == "s3" and "s3" not in self._gfile.get_registered_schemes():
            with contextlib.suppress(ImportError):
                import tensorflow_io  # noqa: F401 - registers s3://
        if scheme not in self._gfile.get_registered_schemes():
            install = ": pip install tensorflow-io" if scheme == "s3" else "; expected gs://, s3:// or a local path"
            raise UserError(f"{name}: no file system is installed that reads it{install}.")

    def open(self, name: str, mode: str) -> IO[bytes]:
        file = self._gfile.GFile(name, f"{mode}b")
        if "w" in mode:
            file.write(b"")  # without it no file comes of one into which nothing is written
        return file

    def size(self, name: str) -> int:
        return self._gfile.stat(name).length

    def is_file(self, name: str) -> bool:
        return self._gfile.exists(name) and not self._gfile.isdir(name)

    def is_dir(self, name: str) -> bool:
        return self._gfile.isdir(name)

    def walk(self, name: str) -> list[str]:
        return sorted(self._below(name)) if self._gfile.isdir(name) else []

    def _below(self, folder: str) -> Iterator[str]:
        """Yields the files; unlike TensorFlow's `walk`, a folder that cannot be listed is an error and not empty."""
        for name in self._gfile.listdir(folder):
            path = f"{folder}/{name.strip('/')}"
            yield from self._below(path) if self._gfile.isdir(path) else (path,)

    def remove(self, name: str) -> None:
        self._gfile.remove(name)

    def rename(self, name: str, target: str) -> None:
        self._gfile.rename(name, target, overwrite=True)
