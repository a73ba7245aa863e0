"""Folders in an object store (`gs://…`, `s3://…`) as folders of this machine: copies to read, or kept in step.

`local_copy` gets what is read from memory maps, by SQLite or by libraries that know no stores; it goes at the end. It
also gets models by their names on the Hugging Face Hub (hugging_face.py).
`local_folder` gives a folder to work in, a workdir or an index. At its start it gets what the store has; from then on a
thread uploads what changed, every `EVERY` seconds, and once more at the end. A machine that is preempted loses at most
the files that were not uploaded yet: the same command on another machine goes on from the store. A mounted bucket
(gcsfuse, rclone) does not promise this: there a checkpoint's index may arrive before its data.

Stores have no locks. `in_use.lock` says who has the folder, and is written again with every look: a run that finds one
waits for `LEASE` seconds, and goes on if nothing was written meanwhile.
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
from collections.abc import Iterator

from absl import logging

from mural_lite import hugging_face
from mural_lite.errors import UserError
from mural_lite.files import PARTIAL, as_path, copy_file
from mural_lite.paths import RemotePath

LOCK = "in_use.lock"
EVERY = 15.0  # seconds between two looks at what changed
LEASE = 60.0  # seconds for which a folder belongs to the process that was last seen in it
FAILURES = 4  # in a row, before the run is stopped
# What says that other files of its folder are complete: uploaded after them. The first is of an export.
COMPLETE = ("model_card.json", "index.sqlite", "best.json", "checkpoint", "summary.json")
_OF_SQLITE = ("-wal", "-shm", "-journal")  # of a database that is open
_NOT_NEEDED = ("export/", "tensorboard/", "search-")  # to go on with a run
_mirrors: dict[str, Mirror] = {}  # folder of this machine -> what keeps it in step
_copies: list[tempfile.TemporaryDirectory] = []
_shown: dict[str, str] = {}  # folder of this machine that replaces a store's -> the name that the user gave
_named: dict[str, str] = {}  # folder or file in the Hub's cache -> the name that the user gave


def display_name(text: object) -> str:
    """Returns a path, or a text with paths, as the user knows them: of a store or the Hub, where a folder copies it."""
    return _replaced(str(text), {**_shown, **_named})


def lasting_name(path: os.PathLike) -> str:
    """Returns a path for a configuration that others read later: of a store where a copy will go; the Hub's stays."""
    return _replaced(str(path), _shown)


def _replaced(text: str, names: dict[str, str]) -> str:
    for local, name in names.items():
        text = re.sub(rf"{re.escape(local)}(?![\w-])", lambda _, name=name: name, text)
    return text


def local_copy(path: str | os.PathLike) -> pathlib.Path:
    """Returns a file or folder on this machine with the content of a store's; a local path is returned as it is.

    A model by its name, `hf://ORG/NAME`, lies in the Hub's cache and stays there. Copies of a store last as long as the
    process (`remove_copies`). Raises `UserError` if it is missing, or it cannot be read.
    """
    if hugging_face.is_name(path):
        local = hugging_face.fetch(os.fspath(path))
        _named[str(local)] = os.fspath(path)
        return local
    original = as_path(path)
    if isinstance(original, pathlib.Path):
        return original
    copies = tempfile.TemporaryDirectory(prefix="mural-tf-copy-")
    _copies.append(copies)
    local = pathlib.Path(copies.name, original.name)
    _shown[str(local)] = str(original)
    with _one_line(f"Cannot read {original}"):
        for source in original.files():
            _download(source, local / source.relative_to(original))
        if not local.exists() and original.is_file():
            _download(original, local)
    if not local.exists():
        raise UserError(f"{original} does not exist, is empty, or may not be read.")
    return local


def local_model(path: str | os.PathLike) -> pathlib.Path:
    """Returns `local_copy` of a model's name; raises `UserError` also for ORG/NAME without such a folder here."""
    local = local_copy(path)
    if not local.exists() and (remedy := hugging_face.suggestion(path)):
        raise UserError(f"{path} does not exist: {remedy}.")
    return local


def model_place(path: str | os.PathLike) -> pathlib.Path | RemotePath:
    """Returns `as_path` of a model's name, without a copy of a store's folder; a name on the Hub is its folder here."""
    return local_copy(path) if hugging_face.is_name(path) else as_path(path)


def remove_copies() -> None:
    """Removes all copies that `local_copy` made, as the end of a process does; to be called where it is cut short."""
    while _copies:
        _copies.pop().cleanup()


@contextlib.contextmanager
def local_folder(folder: str | os.PathLike, writes: bool = True) -> Iterator[pathlib.Path]:
    """Gives a folder to work in on this machine: itself, or one that is kept in step with a store.

    Args:
      folder: a path here or elsewhere.
      writes: whether this process writes it; of several workers the first does, the others `fetch` what they need.

    Raises:
      UserError: the store cannot be read or written, or another run has the folder.
    """
    path = as_path(folder)
    if isinstance(path, pathlib.Path):
        yield path
        return
    local = pathlib.Path(tempfile.mkdtemp(prefix="mural-tf-folder-"))
    _shown[str(local)] = str(path)
    mirror = _mirrors[str(local)] = Mirror(local, path)
    try:
        if writes:
            mirror.begin()
    except UserError:
        shutil.rmtree(local)
        raise
    print(f"{path} is worked on in {local}{' and kept in step' if writes else ''}.", flush=True)
    try:
        yield local
    finally:
        if writes:
            mirror.end()  # raises before the folder goes, if what it holds is not in the store
        shutil.rmtree(local, ignore_errors=True)


def share(folder: pathlib.Path) -> None:
    """Uploads what changed in a folder of `local_folder` now, so that other processes can `fetch` it."""
    if mirror := _mirrors.get(str(folder)):
        with _one_line(f"Cannot write to {mirror.store}"):
            mirror.push()


def fetch(folder: pathlib.Path) -> None:
    """Gets again what the store holds, into a folder of `local_folder` that this process does not write."""
    if mirror := _mirrors.get(str(folder)):
        with _one_line(f"Cannot read {mirror.store}"):
            mirror.pull()


class Mirror:
    """Keeps a store in step with a folder; see the module."""

    def __init__(self, local: pathlib.Path, store: RemotePath):
        self.local, self.store, self._lock = local, store, store / LOCK
        self._holder = f"process {os.getpid()} on {platform.node()}, {secrets.token_hex(4)}"
        self._pushed: dict[str, tuple[int, int]] = {}  # name below the folder -> size and time
        self._stop, self._pushing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._keep, name=f"mirror of {store}", daemon=True)

    def begin(self) -> None:
        """Takes the folder, gets what it holds, and starts to keep it in step."""
        with _one_line(f"Cannot read and write {self.store}"):
            if before := self._held():
                print(f"{self.store} was last used by {before['holder']}: waiting {LEASE:.0f} s for a sign of it.",
                      flush=True)  # fmt: skip
                time.sleep(LEASE)  # by this machine's clock: another machine's may be wrong
                if (now := self._held()) and now != before:
                    raise UserError(
                        f"{self.store} is in use by another run ({now['holder']}). Wait until it ends, or name another "
                        "folder."
                    )
            self._hold()
            self.pull()
        self._thread.start()

    def end(self) -> None:
        """Uploads what changed, and lets go of the folder; raises `UserError`, and keeps what is here, if it cannot."""
        self._stop.set()
        self._thread.join()
        try:
            self._check_holder()
            self.push()
            self._lock.unlink(missing_ok=True)
        except (OSError, UserError) as error:
            _shown.pop(str(self.local), None)  # it is what must be named now
            raise UserError(
                f"Cannot write to {self.store}: {getattr(error, 'strerror', None) or str(error).rstrip('.')}. "
                f"Everything that is saved lies in {self.local}, which is kept: copy it there, or run again."
            ) from None

    def pull(self) -> None:
        """Gets what the store holds and a run needs to go on."""
        for path in self.store.files():
            name = path.relative_to(self.store)
            if name == f"export/{COMPLETE[0]}":
                (self.local / "export").mkdir(exist_ok=True)  # there is one: it is not made again
            elif name != LOCK and not name.startswith(_NOT_NEEDED):
                _download(path, self.local / name)
                self._pushed[name] = _state(self.local / name)

    def push(self) -> None:
        """Uploads what changed since the last time, and deletes what is gone."""
        with self._pushing:
            files = {name: path for path in self.local.rglob("*") if (name := self._name(path))}
            for name in sorted(files, key=_order):
                if name.endswith(".index") and f"{name[:-6]}.data-00000-of-00001" not in self._pushed:
                    continue  # its data came after this look: next time
                with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                    state = _state(files[name])
                    if self._pushed.get(name) != state:
                        copy_file(files[name], self.store / name)
                        self._pushed[name] = state
            gone = [name for name in self._pushed if name not in files and not (self.local / name).exists()]
            for name in sorted(gone, key=_order, reverse=True):  # what says that others are complete goes before them
                (self.store / name).unlink(missing_ok=True)
                del self._pushed[name]

    def _name(self, path: pathlib.Path) -> str:
        """Returns a complete file's name below the folder, "" for files that are not uploaded."""
        name = path.relative_to(self.local).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/")) or name.endswith((PARTIAL, LOCK, *_OF_SQLITE))
        return "" if hidden or not path.is_file() else name

    def _keep(self) -> None:
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
            os.kill(os.getpid(), signal.SIGTERM)  # the run saves, and ends: `end` says what is wrong

    def _hold(self) -> None:
        self._lock.write_text(json.dumps({"holder": self._holder, "time": time.time()}))

    def _held(self) -> dict | None:
        """The holder of the folder, `None` if it is free."""
        try:
            return json.loads(self._lock.read_text())
        except FileNotFoundError:
            return None

    def _check_holder(self) -> None:
        held = self._held()
        if held and held["holder"] != self._holder:
            raise UserError(f"{self.store} was taken by another run ({held['holder']})")


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{what}: {error.strerror or error}. Check the name, your permissions and the connection."
        ) from None


def _download(source: RemotePath, target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copy_file(source, target)


def _state(path: pathlib.Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _order(name: str) -> tuple:
    """Uploads come in this order: what says that other files are complete, after them."""
    base = name.rsplit("/", 1)[-1]
    return (COMPLETE.index(base) + 1 if base in COMPLETE else 0, name.endswith(".index"), name)
