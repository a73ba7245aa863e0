"""Folders in an object store (`gs://…`, `s3://…`) as folders of this machine: copies to read, or mirrors.

`local_copy` downloads files for memory maps, SQLite and libraries that know no stores; the copy is removed at the end.
It also fetches models by their names on the Hugging Face Hub (hugging_face.py).
`local_folder` gives a folder to work in, a workdir or an index. It starts with the files of the store; then a thread
uploads changed files every `EVERY` seconds, and once more at the end. A machine that is preempted loses at most the
files that were not uploaded yet: the same command on another machine goes on from the store. A mounted bucket (gcsfuse,
rclone) does not promise this: there a checkpoint's index may arrive before its data.

Stores have no locks. `in_use.lock` names the holder of the folder, which writes it again with every upload: a run that
finds such a file waits for `LEASE` seconds, and goes on if nothing was written meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import re
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Collection, Iterator

from absl import logging

from mural_lite import hugging_face
from mural_lite.errors import UserError
from mural_lite.files import PARTIAL, as_path, copy_file
from mural_lite.paths import RemotePath
from mural_lite.versions import VERSIONS

LOCK = "in_use.lock"
EVERY = 15.0  # seconds between two uploads
LEASE = 60.0  # seconds for which a folder belongs to the process that was last seen in it
FAILURES = 4  # failed uploads in a row, before the run is stopped
# Files that are uploaded after the others, because they say that these are complete. The first belongs to an export.
COMPLETE = ("model_card.json", "best.json", "checkpoint", "summary.json")
# An index's database comes before its matrices, which are made of it again if they are of another state: matrices
# alone would be a folder that is neither empty nor an index.
_DATABASE = "index.sqlite"
_SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")  # files next to an open database
_NOT_NEEDED = ("export/", "tensorboard/", "search-")  # to go on with a run
_EXPORT_CARD = f"export/{COMPLETE[0]}"
_EXPORT_CONFIG = "export/config.json"
_EXPORT_VERSIONS = f"export/{VERSIONS}/"
_mirrors: dict[str, Mirror] = {}  # folder of this machine -> its mirror
_copies: list[tempfile.TemporaryDirectory] = []
_copied: dict[str, tuple[dict[RemotePath, str], pathlib.Path]] = {}  # store's folder -> its files' versions, the copy
_store_names: dict[str, str] = {}  # folder of this machine -> the store's folder that the user gave
_hub_names: dict[str, str] = {}  # folder or file in the Hub's cache -> the name that the user gave


def display_name(text: object) -> str:
    """Returns a path, or a text with paths, with the user's names of stores and of the Hub in place of local copies."""
    return _replaced(str(text), {**_store_names, **_hub_names})


def lasting_name(path: os.PathLike) -> str:
    """Returns a path for a configuration that is read later: a store's name, because its copy will be removed."""
    return _replaced(str(path), _store_names)


def _replaced(text: str, names: dict[str, str]) -> str:
    """Returns a text with names in place of local paths; `names`: {local path: name}."""
    for local, name in names.items():
        escaped_name = name.replace("\\", r"\\")  # `re.sub` reads backslashes as escapes
        text = re.sub(rf"{re.escape(local)}(?![\w-])", escaped_name, text)  # not /tmp/a in /tmp/a-b
    return text


def local_copy(path: str | os.PathLike) -> pathlib.Path:
    """Returns a local copy of a file or folder in a store; a local path is returned unchanged.

    A model on the Hub, `hf://ORG/NAME`, stays in the Hub's cache. Copies from a store are removed with the process
    (`remove_copies`); a folder whose files did not change meanwhile is copied once. Raises `UserError` if the file or
    folder is missing or cannot be read.
    """
    if hugging_face.is_name(path):
        local = hugging_face.fetch(os.fspath(path))
        _hub_names[str(local)] = os.fspath(path)
        return local
    original = as_path(path)
    if isinstance(original, pathlib.Path):
        return original
    with _failures_as_user_errors(f"Cannot read {original}"):
        versions = original.versions()
        copied_versions, local = _copied.get(str(original), ({}, None))
        if versions and versions == copied_versions and local.exists():  # programs that clean /tmp may remove it
            return local
        local = _download_copy(original, versions)
    if not local.exists():
        raise UserError(f"{original} does not exist, is empty, or may not be read.")
    _copied[str(original)] = versions, local
    return local


def _download_copy(original: RemotePath, files: Collection[RemotePath]) -> pathlib.Path:
    """Downloads a folder with these files, or a single file; returns the copy's path, at which there may be no file."""
    temporary = tempfile.TemporaryDirectory(prefix="mural-tf-copy-")
    _copies.append(temporary)
    local = pathlib.Path(temporary.name, original.name)
    _store_names[str(local)] = str(original)
    for source in files:
        _download(source, local / source.relative_to(original))
    if not files and original.is_file():
        _download(original, local)
    return local


def local_model(path: str | os.PathLike) -> pathlib.Path:
    """Returns `local_copy` of a model; raises `UserError` for a missing path that looks like ORG/NAME on the Hub."""
    local = local_copy(path)
    if not local.exists():
        remedy = hugging_face.suggestion(path)
        if remedy:
            raise UserError(f"{path} does not exist: {remedy}.")
    return local


def model_place(path: str | os.PathLike) -> pathlib.Path | RemotePath:
    """Returns the path of a model in a store or on this machine; a model on the Hub is fetched first."""
    if hugging_face.is_name(path):
        return local_copy(path)
    return as_path(path)


def remove_copies() -> None:
    """Removes all copies that `local_copy` made, for a process that ends by `os._exit`."""
    _copied.clear()
    while _copies:
        _copies.pop().cleanup()


@contextlib.contextmanager
def local_folder(folder: str | os.PathLike, writes: bool = True) -> Iterator[pathlib.Path]:
    """Gives a local folder to work in: the folder itself, or a new folder that is mirrored to a folder in a store.

    The store's files are downloaded before the block, and changes are uploaded in it and after it; a line is printed.

    Args:
      folder: a path on this machine or in a store.
      writes: whether this process writes it; only the first of several workers does, and the others `fetch` its files.

    Raises `UserError` if the store cannot be read or written, or another run has the folder.
    """
    path = as_path(folder)
    if isinstance(path, pathlib.Path):
        yield path
        return
    local = pathlib.Path(tempfile.mkdtemp(prefix="mural-tf-folder-"))
    _store_names[str(local)] = str(path)
    mirror = Mirror(local, path)
    _mirrors[str(local)] = mirror
    try:
        if writes:
            mirror.start()
    except UserError:
        shutil.rmtree(local)
        raise
    print(f"{path} is worked on in {local}{' and kept in step' if writes else ''}.", flush=True)
    try:
        yield local
    finally:
        if writes:
            mirror.end()  # raises before the folder is removed, if its files are not in the store
        shutil.rmtree(local, ignore_errors=True)


def share(folder: pathlib.Path) -> None:
    """Uploads the changed files of a `local_folder` now, so that other processes can `fetch` them."""
    mirror = _mirrors.get(str(folder))
    if mirror is not None:
        with _failures_as_user_errors(f"Cannot write to {mirror.store}"):
            mirror.push()


def fetch(folder: pathlib.Path) -> None:
    """Downloads the store's files again into a `local_folder` that this process does not write."""
    mirror = _mirrors.get(str(folder))
    if mirror is not None:
        with _failures_as_user_errors(f"Cannot read {mirror.store}"):
            mirror.pull()


class Mirror:
    """Uploads the changes of a local folder to a folder in a store, as the module describes."""

    def __init__(self, local: pathlib.Path, store: RemotePath):
        self.local = local
        self.store = store
        self._lock = store / LOCK
        self._holder = f"process {os.getpid()} on {platform.node()}, {secrets.token_hex(4)}"
        self._pushed: dict[str, tuple[int, int]] = {}  # name below the folder -> size and time
        self._stop = threading.Event()
        self._pushing = threading.Lock()
        self._thread = threading.Thread(target=self._keep_uploading, name=f"mirror of {store}", daemon=True)

    def start(self) -> None:
        """Locks the store's folder, downloads its files, starts to upload changes; raises `UserError` if in use."""
        with _failures_as_user_errors(f"Cannot read and write {self.store}"):
            self._wait_for_lock()
            self._hold()
            self.pull()
        self._thread.start()

    def _wait_for_lock(self) -> None:
        """Prints a line and waits `LEASE` seconds if a lock is left; raises `UserError` if a run still writes it."""
        lock = self._read_lock()
        if not lock:
            return
        print(f"{self.store} was last used by {lock['holder']}: waiting {LEASE:.0f} s for a sign of it.", flush=True)
        time.sleep(LEASE)  # by this machine's clock: another machine's may be wrong
        later_lock = self._read_lock()
        if later_lock and later_lock != lock:
            raise UserError(
                f"{self.store} is in use by another run ({later_lock['holder']}). Wait until it ends, or name another "
                "folder."
            )

    def end(self) -> None:
        """Uploads the last changes and releases the folder; if it cannot, raises `UserError` with the local folder."""
        self._stop.set()
        self._thread.join()
        try:
            self._check_holder()
            for log in self.local.rglob(f"{_DATABASE}-wal"):
                if log.stat().st_size:  # changes of a database that is still open are only in its log
                    self._pushed.pop(self._name(log.with_name(_DATABASE)), None)  # so that it is uploaded again
            self.push()
            self._lock.unlink(missing_ok=True)
        except (OSError, UserError) as error:
            _store_names.pop(str(self.local), None)  # the error must name the local folder
            raise UserError(
                f"Cannot write to {self.store}: {getattr(error, 'strerror', None) or str(error).rstrip('.')}. "
                f"Everything that is saved lies in {self.local}, which is kept: copy it there, or run again."
            ) from None

    def pull(self) -> None:
        """Downloads the files that a run needs to continue; of a complete export only its configuration and card.

        The configuration says how many steps the export had: `runs.finish` replaces the export of a shorter run, but
        never an export with versions; for these an empty folder is made.
        """
        paths = {path.relative_to(self.store): path for path in self.store.files()}
        for name, path in paths.items():
            is_needed = name != LOCK and not name.startswith(_NOT_NEEDED)
            if name.startswith(_EXPORT_VERSIONS):
                (self.local / _EXPORT_VERSIONS).mkdir(parents=True, exist_ok=True)
            if is_needed or (name in (_EXPORT_CONFIG, _EXPORT_CARD) and _EXPORT_CARD in paths):
                _download(path, self.local / name)
                self._pushed[name] = _state(self.local / name)

    def push(self) -> None:
        """Uploads the files that changed since the last time, and deletes the store's files that were removed here."""
        with self._pushing:
            files = {}
            for path in self.local.rglob("*"):
                name = self._name(path)
                if name:
                    files[name] = path
            if _EXPORT_CARD in files and self._has_changed(_EXPORT_CARD, files[_EXPORT_CARD]):
                # Another export overwrites files of the same names: until all are there, the export is not complete.
                (self.store / _EXPORT_CARD).unlink(missing_ok=True)
                self._remove_former_export()
            for name in sorted(files, key=_upload_order):
                data_name = f"{name.removesuffix('.index')}.data-00000-of-00001"
                if name.endswith(".index") and data_name not in self._pushed:
                    continue  # a checkpoint's data that appeared after `files` was listed: next time
                self._push_file(name, files[name])
            removed = [name for name in self._pushed if name not in files and not (self.local / name).exists()]
            for name in sorted(removed, key=_upload_order, reverse=True):  # files of `COMPLETE` go first
                (self.store / name).unlink(missing_ok=True)
                del self._pushed[name]

    def _push_file(self, name: str, path: pathlib.Path) -> None:
        """Uploads a file unless the store has its state, or it was removed or replaced after it was listed."""
        try:
            state = _state(path)
            if self._pushed.get(name) != state:
                _upload(path, self.store / name)
                self._pushed[name] = state
        except FileNotFoundError:
            if path.exists():  # then the store misses something, its bucket for example
                raise

    def _remove_former_export(self) -> None:
        """Removes the store's files of an export that was replaced here, such as a `lite/` that the new export lacks.

        Exports with versions are never replaced. After `pull` only the card and the configuration are here.
        """
        if not any((self.local / "export").glob("*_encoder")):  # only `pull` has made the folder
            return
        names = [path.relative_to(self.store) for path in (self.store / "export").files()]
        if any(name.startswith(_EXPORT_VERSIONS) for name in names):
            return
        for name in names:
            if not (self.local / name).exists():
                (self.store / name).unlink(missing_ok=True)

    def _has_changed(self, name: str, path: pathlib.Path) -> bool:
        """Whether a file is not in the state in which it was uploaded, or is just being replaced."""
        try:
            return self._pushed.get(name) != _state(path)
        except FileNotFoundError:
            return True

    def _name(self, path: pathlib.Path) -> str:
        """Returns the name of a local path below the folder, "" for folders and files that are not uploaded."""
        name = path.relative_to(self.local).as_posix()
        is_hidden = any(part.startswith(".") for part in name.split("/"))
        if is_hidden or name.endswith((PARTIAL, LOCK, *_SQLITE_SUFFIXES)) or not path.is_file():
            return ""
        return name

    def _keep_uploading(self) -> None:
        """Uploads changes every `EVERY` seconds; ends the run if that fails `FAILURES` times in a row."""
        failures = 0
        while failures < FAILURES and not self._stop.wait(EVERY):
            try:
                self._check_holder()
                self._hold()
                self.push()
                failures = 0
            except (OSError, UserError) as error:
                failures += 1
                logging.warning("Uploading to %s failed (%d times in a row): %s", self.store, failures, error)
        if callable(signal.getsignal(signal.SIGTERM)) and not self._stop.is_set():
            os.kill(os.getpid(), signal.SIGTERM)  # the run saves and ends: `end` reports the failure

    def _hold(self) -> None:
        """Writes this process and the time into the lock's file."""
        self._lock.write_text(json.dumps({"holder": self._holder, "time": time.time()}))

    def _read_lock(self) -> dict | None:
        """Returns the content of the lock's file, {"holder": str, "time": float}, or `None` if there is no such file.

        For a file of another form, for example a half-written one, it is {"holder": "an unknown run", "text": str}, so
        that a change of the file shows.
        """
        try:
            text = self._lock.read_text()
        except FileNotFoundError:
            return None
        with contextlib.suppress(ValueError):
            lock = json.loads(text)
            if isinstance(lock, dict) and isinstance(lock.get("holder"), str):
                return lock
        return {"holder": "an unknown run", "text": text}

    def _check_holder(self) -> None:
        """Raises `UserError` if another run has taken the folder."""
        lock = self._read_lock()
        if lock and lock["holder"] != self._holder:
            raise UserError(f"{self.store} was taken by another run ({lock['holder']})")


@contextlib.contextmanager
def _failures_as_user_errors(message: str) -> Iterator[None]:
    """Turns an `OSError` in the block into a `UserError` that begins with `message`, "Cannot read gs://…"."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{message}: {error.strerror or error}. Check the name, your permissions and the connection."
        ) from None


def _download(source: RemotePath, target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copy_file(source, target)


def _upload(source: pathlib.Path, target: RemotePath) -> None:
    """Uploads a file, or a database's last committed state with the changes in its log; raises `OSError`."""
    if source.name != _DATABASE:
        copy_file(source, target)
        return
    import sqlite3  # here, because most folders have no database

    with tempfile.TemporaryDirectory(prefix="mural-tf-database-") as folder:
        copy_path = pathlib.Path(folder, _DATABASE)
        read_only = f"{source.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(read_only, uri=True)) as database:
                with contextlib.closing(sqlite3.connect(copy_path)) as copy:
                    database.backup(copy)
        except sqlite3.Error as error:
            raise OSError(f"{source}: {error}") from None
        copy_file(copy_path, target)


def _state(path: pathlib.Path) -> tuple[int, int]:
    """Returns (size, time of the last change) of a file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _upload_order(name: str) -> tuple[int, bool, str]:
    """Returns a sorting key: databases, other files, indexes of checkpoints, and then `COMPLETE` in its order."""
    _, _, base = name.rpartition("/")
    if base == _DATABASE:
        rank = -1
    else:
        rank = COMPLETE.index(base) + 1 if base in COMPLETE else 0
    return rank, name.endswith(".index"), name
