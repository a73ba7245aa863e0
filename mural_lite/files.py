"""Files and folders that appear whole or not at all, JSON, locks between processes, and storage that fails.

A process that is killed while it writes leaves the old file or no file, and at most a hidden file next to it with a
name that ends in `PARTIAL`. `remove_partial` removes such files, because each process has its own name for them. A
folder has one writer at a time, who removes the hidden folder of the last writer. The same holds for a machine that
loses its power: a file's content is on the disk before it gets its name (`sync`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import importlib.util
import io
import json
import mmap
import os
import pathlib
import re
import reprlib
import secrets
import shutil
import tempfile
import time
import typing
from collections.abc import Iterator, Mapping
from typing import IO

from absl import logging

from mural_lite import paths as remote
from mural_lite.errors import UserError
from mural_lite.paths import RemotePath

if typing.TYPE_CHECKING:
    import numpy as np

# Larger images are not decoded, neither by Pillow nor in the graph: a few kilobytes can hold gigabytes of one colour.
MAX_PIXELS = 2**26
PACKAGE = "package://"  # prefix of the name of an installed Python package
PARTIAL = ".partial"  # suffix of the names of files that are still being written
_REQUIRED = object()
_TYPE_NAMES = {  # in messages: one, many
    dict: ("an object", "objects"),
    list: ("a list", "lists"),
    str: ("a text", "texts"),
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
}


def as_path(name: str | os.PathLike) -> pathlib.Path | RemotePath:
    """Returns the path of a file or folder that a user named, on this machine or in a store (`gs://…`, `s3://…`).

    `package://NAME` is the folder of an installed Python package, which may carry weights; its code is not run.
    `package://NAME/FILE` is a file in it.
    Raises `UserError` for names that would become a local folder `gs:`, `s3:` or `hf:`, and for a missing package.
    """
    if isinstance(name, RemotePath):
        return name
    text = os.fspath(name)
    if text.startswith(PACKAGE):
        return _package_folder(text.removeprefix(PACKAGE))
    if text.startswith("file:///"):
        return pathlib.Path(text.removeprefix("file://"))
    if "://" in text:
        return RemotePath(text)
    if re.match("(gs|s3|hf):/", text):
        raise UserError(f"{text}: expected a local path, or a store's name with two slashes: gs://…, s3://…, hf://….")
    return pathlib.Path(text).expanduser()


def _package_folder(name: str) -> pathlib.Path:
    """Returns the path of "PACKAGE", an installed Python package's folder, or of "PACKAGE/FILE" in it."""
    package, _, file = name.partition("/")
    module = package.replace("-", "_")
    spec = None
    if module.isidentifier():
        spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{PACKAGE}{package}: no such Python package is installed here: pip install {package}.")
    return pathlib.Path(spec.submodule_search_locations[0], file)


def check_readable(name: str | os.PathLike) -> None:
    """Raises `UserError`, without reading anything, for a name in a store that no client here reads."""
    path = as_path(name)
    if isinstance(path, RemotePath):
        remote.check_scheme(str(path))


def copy_file(source: pathlib.Path | RemotePath, target: pathlib.Path | RemotePath) -> None:
    """Copies a file between stores and this machine, in pieces, because it may be larger than the memory."""
    remote_side = source if isinstance(source, RemotePath) else target
    with remote.failures_of(str(remote_side)), source.open("rb") as content:
        if isinstance(target, RemotePath):
            target.write_all(content)
            return
        with target.open("wb") as file:
            shutil.copyfileobj(content, file, remote.PIECE)


def open_path(name: str | os.PathLike, mode: str = "rb") -> IO:
    """Opens a file on this machine or in a store, as `open` does."""
    return as_path(name).open(mode)


def find(pattern: str | os.PathLike) -> list[pathlib.Path] | list[RemotePath]:
    """Returns the sorted files and folders that match a name, which may hold wildcards: `**`, `*`, `?`, `[…]`."""
    if isinstance(as_path(pattern), RemotePath):
        return remote.find(str(pattern))
    return sorted({pathlib.Path(name) for name in _matches(os.path.expanduser(pattern))})


def _matches(pattern: str) -> Iterator[str]:
    """Yields the names of files and folders of this machine that match a pattern, some repeatedly.

    `**` follows no links to folders: a picture would be found by several names, and two links in a circle without end.
    """
    parts = pattern.split(os.sep)
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    position = parts.index("**")
    before = os.sep.join(parts[:position]) or os.sep * position  # "/**" begins at the root, "**" here
    after = os.sep.join(parts[position + 1 :])
    bases = glob.glob(before) if before else [os.curdir]
    for base in bases:
        for folder, folders, files in os.walk(base):
            folders[:] = [name for name in folders if not name.startswith(".")]  # `os.walk` enters only these
            if after:
                yield from _matches(os.path.join(glob.escape(folder), after))
                continue
            if before or folder != base:
                yield folder
            names = folders if pattern.endswith(os.sep) else [*folders, *files]
            for name in names:
                if not name.startswith("."):
                    yield os.path.join(folder, name)


def sync(path: str | pathlib.Path) -> None:
    """Returns when the disk has a file's content, or a folder's names (not the content of its files).

    A rename can reach the disk before the file's bytes: a power cut then leaves an empty file with the new name. So a
    file is synced before it gets its name, and the folder afterwards, so that the name stays.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def publish(partial: str | pathlib.Path, path: str | pathlib.Path) -> None:
    """Renames a complete file or folder to its final name, on the same file system, so that it survives a power cut."""
    if isinstance(partial, RemotePath):  # a store keeps every file that it accepted, and renames by copying
        partial.replace(as_path(path))
        return
    _sync_all(partial)
    os.replace(partial, path)
    sync(pathlib.Path(path).parent)


def _sync_all(path: str | pathlib.Path) -> None:
    """Syncs a file, or a folder with everything in it."""
    for folder, _, names in os.walk(path):
        for name in names:
            sync(os.path.join(folder, name))
        sync(folder)
    if not os.path.isdir(path):
        sync(path)


@contextlib.contextmanager
def atomic_file(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives a temporary path: the file becomes `path` if the block ends without an error, and is removed otherwise."""
    path = as_path(path)
    if isinstance(path, RemotePath):  # written here first: in a store half a file would get its name when it is closed
        with tempfile.TemporaryDirectory() as folder:
            partial = pathlib.Path(folder, path.name)
            yield partial
            copy_file(partial, path)
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")
    try:
        yield partial
        publish(partial, path)
    except OSError as error:
        if error.filename == os.fspath(partial):
            error.filename = os.fspath(path)  # the name that the user gave
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives an empty hidden folder next to `path`, for one process at a time, that is removed when the block ends."""
    path = pathlib.Path(path)
    folder = path.with_name(f".{path.name}{PARTIAL}")
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def whole_folder(path: str | pathlib.Path, mark: str = "") -> Iterator[pathlib.Path]:
    """Gives an empty folder that replaces the folder `path` when the block ends without an error.

    Stores have no folders to rename: there the file named `mark`, which says that the folder is complete, is removed
    first, and written last.
    """
    path = as_path(path)
    if isinstance(path, RemotePath):
        with tempfile.TemporaryDirectory() as folder:
            partial = pathlib.Path(folder, path.name)
            partial.mkdir()
            yield partial
            _upload(partial, path, mark)
        return
    with contextlib.ExitStack() as scratch:
        partial = scratch.enter_context(scratch_folder(path))
        yield partial
        if path.exists():  # renaming cannot replace a folder that is not empty
            _sync_all(partial)  # before the old folder goes, so that only the two renames lie between old and new
            replaced = scratch.enter_context(scratch_folder(path.with_name(f"{path.name}.replaced")))
            os.replace(path, replaced)
        publish(partial, path)


def _upload(folder: pathlib.Path, store: RemotePath, mark: str) -> None:
    """Replaces the files of a store's folder; the file `mark` is removed first and written last."""
    for path in sorted(store.files(), key=lambda path: path.relative_to(store) != mark):  # False, the mark, is first
        path.unlink(missing_ok=True)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    for name in sorted(names, key=lambda name: name == mark):  # True, the mark, is last
        copy_file(folder / name, store / name)


def remove_partial(folder: pathlib.Path, below: bool = True, min_age: float = 0.0) -> None:
    """Removes the unfinished files that killed processes left in a folder, where no other process may write.

    `below`: also in its folders. `min_age`: seconds since a file was written, below which another process may write it.
    """
    find_partial = folder.rglob if below else folder.glob
    for path in find_partial(f".*{PARTIAL}"):
        with contextlib.suppress(FileNotFoundError):  # another process has given it its name
            if path.is_file() and time.time() - path.stat().st_mtime >= min_age:
                path.unlink()


def remove_tree(folder: str | pathlib.Path) -> None:
    """Removes a folder and its content, if it exists."""
    folder = as_path(folder)
    if isinstance(folder, pathlib.Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.files():
        path.unlink(missing_ok=True)


def write_whole(path: str | pathlib.Path, text: str) -> None:
    """Writes a text file in UTF-8: a process that is killed meanwhile leaves the old text or the whole new text.

    A file's name may hold bytes that are not UTF-8, which Python represents by lone surrogates. They are written as
    \\udcff, for example: that can be printed, and JSON reads it back as the same name.
    """
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


def read_json(path: str | pathlib.Path) -> dict:
    """Returns the JSON object in a file; raises `UserError` if the file is missing or holds something else."""
    try:
        content = json.loads(as_path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise UserError(f"{path} is not valid JSON: it is nested too deeply.") from None
    except ValueError as error:  # also bytes that are not UTF-8
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}: expected a JSON object.")
    return content


def json_field(values: Mapping, name: str, expected_type: type, path: str | pathlib.Path, default=_REQUIRED):
    """Returns the value of a field of a JSON file, which must be of the expected type.

    Args:
      values: the file's object.
      name: the field; "a.b" is the field b of the object a.
      expected_type: dict, list, str, bool, int or float (also for a whole number); or, for example, dict[str, float].
      path: the file, for the message.
      default: the value of a missing field.

    Raises `UserError` if the field is missing and has no default, or its value has another type.
    """
    *parents, key = name.split(".")
    for depth, parent in enumerate(parents, start=1):
        values = check_json(values.get(parent, {}), dict, ".".join(parents[:depth]), path)
    if key in values:
        return check_json(values[key], expected_type, name, path)
    if default is _REQUIRED:
        raise UserError(f"{path} has no {name}: expected {_describe(expected_type)}: correct or restore it.")
    return default


def check_json(value, expected_type: type, name: str, path: str | pathlib.Path):
    """Returns the value of a file's field `name`; raises `UserError` if it is not of the type, as in `json_field`."""
    if not _has_type(value, expected_type):
        raise UserError(
            f"{path}: {name} is {reprlib.repr(value)}, expected {_describe(expected_type)}: correct or restore it."
        )
    return value


def _has_type(value, expected: type) -> bool:
    """Whether a JSON value and its items have a type that `json_field` takes, such as `dict[str, float]`."""
    outer = typing.get_origin(expected) or expected
    if isinstance(value, bool):  # an int in Python
        return outer is bool
    if outer is float:
        return isinstance(value, (int, float))
    if not isinstance(value, outer):
        return False
    inner = typing.get_args(expected)  # () or (item,) or (key, item)
    items = value.values() if outer is dict else value
    return not inner or all(_has_type(item, inner[-1]) for item in items)


def _describe(expected: type) -> str:
    """Returns a type of `json_field` in words: "a list of texts" for `list[str]`."""
    singular, _ = _TYPE_NAMES[typing.get_origin(expected) or expected]
    inner = typing.get_args(expected)
    if not inner:
        return singular
    _, plural = _TYPE_NAMES[typing.get_origin(inner[-1]) or inner[-1]]
    return f"{singular} of {plural}"


def save_array(path: str | pathlib.Path, array: np.ndarray) -> None:
    """Writes a .npy file whole."""
    import numpy as np  # only now, so that the --help of commands stays fast

    with atomic_file(path) as partial, partial.open("wb") as file:
        np.save(file, array)


def read_array(path: str | pathlib.Path) -> np.ndarray:
    """Returns the array in a .npy file, mapped into memory if the file is on this machine."""
    import numpy as np

    path = as_path(path)
    if isinstance(path, RemotePath):
        return np.load(io.BytesIO(path.read_bytes()))
    return np.load(path, mmap_mode="r")


def release_pages(array: np.ndarray) -> None:
    """Gives the pages of a memory-mapped array back to the system, which reads them again where they are needed."""
    mapped = getattr(array, "base", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def exclusive_lock(path: pathlib.Path, busy: str = "") -> Iterator[None]:
    """Holds a lock on the file `path` during the block; the lock of a process that dies is released.

    If another process holds it, waits for that process, or raises `UserError` with the message `busy` if it is given.
    Object stores and some network file systems have no locks: there two processes at once write the same names.
    """
    if isinstance(path, RemotePath):
        yield
        return
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if busy:
                raise UserError(busy) from None
            logging.warning("Waiting for another process that writes to %s.", path.parent)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            logging.warning("%s has no locks (%s): run one process at a time.", path.parent, error.strerror)
        yield


@contextlib.contextmanager
def storage_errors(path: pathlib.Path) -> Iterator[None]:
    """Turns the `OSError` of a full disk, a missing permission and the like into a `UserError` that names `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"Cannot write to {path}: {reason}. Check the path, its permissions and the free space, then run again."
        ) from error
