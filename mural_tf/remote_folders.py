"""Folders in an object store (`gs://…`, `s3://…`) as folders of this machine: copies to read, or kept in step.

`local_copy` gets what is read from memory maps, by SQLite or by libraries that know no stores; it goes at the end.
`local_folder` gives a folder to work in, a workdir or an index, as if it were the one in the store. At its start it
gets what the store has; from then on a thread uploads what changed, every `EVERY` seconds, and once more at the end. A
machine that is preempted loses at most what was not uploaded yet: the same command on another machine goes on from what
is in the store. A checkpoint's index is uploaded after its data, what says that a folder is complete (`COMPLETE`) last.
What is written in one go, such as an export, is written here and uploaded by `files.whole_folder`.

Stores have neither locks nor renames. In place of the lock, `in_use.lock` says who has the folder, and is renewed. A
run that finds one of another run waits for `LEASE` seconds: if it is renewed meanwhile, the other one lives.
"""

from __future__ import annotations

import contextlib
import errno
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

from mural_tf.errors import UserError
from mural_tf.files import PARTIAL, as_path, copy_file
from mural_tf.paths import RemotePath

LOCK = "in_use.lock"
EVERY = 15.0  # seconds between two looks at what changed
LEASE = 60.0  # seconds for which a workdir belongs to whoever was last seen in it
FAILURES = 4  # in a row, before the run is stopped
_NOT_NEEDED = ("export/", "tensorboard/", "search-")  # to go on with a run
_mirrors: dict[str, Mirror] = {}  # folder of this machine -> what keeps it in step
_copies: list[tempfile.TemporaryDirectory] = []
_shown: dict[str, str] = {}  # folder of this machine -> the name that the user gave


def shown(text: object) -> str:
    """Returns a path, or a text with paths, as the user knows them: of a store, where a folder stands for one."""
    text = str(text)
    for local, name in _shown.items():
        text = re.sub(rf"{re.escape(local)}(?![\w-])", lambda _, name=name: name, text)
    return text


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
    mirror = _mirrors[str(local)] = Mirror(local, path, writes)
    try:
        mirror.begin()
        print(f"{path} is worked on in {local}{' and kept in step' if writes else ''}.", flush=True)
        yield local
    finally:
        _end(mirror, local)


def share(folder: pathlib.Path) -> None:
    """Uploads what changed in a folder of `local_folder` now, so that other processes can `fetch` it."""
    mirror = _mirrors.get(str(folder))
    if mirror is not None:
        with _one_line(f"Cannot write to {mirror.store}"):
            mirror.push()


def fetch(folder: pathlib.Path) -> None:
    """Gets again what the store holds, into a folder of `local_folder` that this process does not write."""
    mirror = _mirrors.get(str(folder))
    if mirror is not None:
        with _one_line(f"Cannot read {mirror.store}"):
            mirror.pull()


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{what}: {error.strerror or error}. Check the name, your permissions and the connection."
        ) from None


def _end(mirror: Mirror, local: pathlib.Path) -> None:
    try:
        mirror.end()
    except (OSError, UserError) as error:
        _shown.pop(str(local), None)  # it is what must be named now
        raise UserError(
            f"Cannot write to {mirror.store}: {getattr(error, 'strerror', None) or str(error).rstrip('.')}. Everything "
            f"that is saved lies in {local}, which is kept: copy it there, or run again."
        ) from None
    shutil.rmtree(local, ignore_errors=True)


class Mirror:
    """Keeps a store in step with a folder; see the module."""

    def __init__(self, local: pathlib.Path, store: RemotePath, writes: bool = True):
        self.local, self.store, self.writes, self.has_begun = local, store, writes, False
        self._token = f"process {os.getpid()} on {platform.node()}, {secrets.token_hex(4)}"
        self._pushed: dict[str, tuple[int, int]] = {}
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._keep, name=f"mirror of {store}", daemon=True)

    def begin(self) -> None:
        """Takes the folder, gets what it holds, and starts to keep it in step."""
        if self.writes:  # the others get what there is when the first has written what they need: `fetch`
            with _one_line(f"Cannot read and write {self.store}"):
                self._take()
                self.pull()
            self.has_begun = True
            self._thread.start()

    def end(self) -> None:
        """Uploads what changed, and lets go of the folder."""
        if not self.has_begun:
            return
        self._stop.set()
        self._thread.join()
        self._hold()
        self.push()
        (self.store / LOCK).unlink(missing_ok=True)

    def pull(self) -> None:
        """Gets what the store holds, of which its holder's lock is always a part.

        Stores' clients say that there is nothing, where it is the permission to look that is not there.
        """
        found = {path.relative_to(self.store): path for path in self.store.files()}
        if LOCK not in found:
            raise OSError(errno.EACCES, "what is written there is not found again", str(self.store))
        for name, path in found.items():
            if name == f"export/{COMPLETE[0]}":
                (self.local / "export").mkdir(exist_ok=True)  # there is one: it is not made again
            elif name != LOCK and not name.startswith(_NOT_NEEDED):
                target = self.local / name
                target.parent.mkdir(parents=True, exist_ok=True)
                copy_file(path, target)
                self._pushed[name] = _state(target)

    def push(self) -> None:
        """Uploads what changed since the last time, and deletes what is gone."""
        with self._lock:
            found = {name: path for path in sorted(self.local.rglob("*")) if (name := self._name(path))}
            for name in sorted(found, key=_order):
                if name.endswith(".index") and f"{name[:-6]}.data-00000-of-00001" not in self._pushed:
                    continue  # its data came after this look: next time
                with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                    state = _state(found[name])
                    if self._pushed.get(name) != state:
                        copy_file(found[name], self.store / name)
                        self._pushed[name] = state
            gone = [name for name in self._pushed if name not in found and not (self.local / name).exists()]
            for name in sorted(gone, key=_order, reverse=True):  # what says that others are complete goes before them
                (self.store / name).unlink(missing_ok=True)
                del self._pushed[name]

    def _name(self, path: pathlib.Path) -> str:
        """Returns a complete file's name below the workdir, "" for what is not to be uploaded."""
        name = path.relative_to(self.local).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/")) or name.endswith((PARTIAL, LOCK))
        return "" if hidden or not path.is_file() else name

    def _keep(self) -> None:
        failures = 0
        while not self._stop.wait(EVERY):
            try:
                self._hold()
                self.push()
                failures = 0
            except (OSError, UserError) as error:
                failures += 1
                logging.warning("Uploading to %s failed (%d times in a row): %s", self.store, failures, error)
                if failures >= FAILURES:
                    if callable(signal.getsignal(signal.SIGTERM)) and not self._stop.is_set():
                        os.kill(os.getpid(), signal.SIGTERM)  # the run saves, and ends
                    return  # `end` says what is wrong

    # The lease.

    def _take(self) -> None:
        first = held = self._holder()
        if held:
            print(f"{self.store} was last used by {held[0]}: waiting up to {LEASE:.0f} s for a sign of it.", flush=True)
        waited = time.monotonic() + LEASE  # by this machine's clock: another one's may be wrong
        while held and held == first and time.monotonic() < waited:
            time.sleep(min(EVERY, 1.0))
            held = self._holder()
        if held and held != first:
            raise UserError(
                f"{self.store} is in use by another run ({held[0]}). Wait until it ends, or name another --workdir."
            )
        self._hold()
        held = self._holder()
        if held is None:
            raise OSError(errno.EACCES, "what is written there is not found again", str(self.store))
        if held[0] != self._token:
            raise UserError(f"{self.store} was taken by another run at the same time ({held[0]}).")

    def _hold(self) -> None:
        held = self._holder()
        if self.has_begun and held and held[0] != self._token:
            raise UserError(f"{self.store} was taken by another run ({held[0]}).")
        (self.store / LOCK).write_text(json.dumps({"holder": self._token, "time": time.time()}))

    def _holder(self) -> tuple[str, float] | None:
        try:
            found = json.loads((self.store / LOCK).read_text())
            return str(found["holder"]), float(found["time"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def _state(path: pathlib.Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


# What says that other files of its folder are complete; the first of an export.
COMPLETE = ("model_card.json", "index.json", "best.json", "checkpoint", "summary.json")


def _order(name: str) -> tuple:
    """Uploads come in this order: what says that other files are complete, after them."""
    base = name.rsplit("/", 1)[-1]
    return (COMPLETE.index(base) + 1 if base in COMPLETE else 0, name.endswith(".index"), name)


def local_copy(path: str | os.PathLike) -> pathlib.Path:
    """Returns a file or folder on this machine with what one of a store holds; a local one is returned as it is.

    Copies last as long as the process (`remove_copies`). Raises `UserError` if there is none, or it cannot be read.
    """
    found = as_path(path)
    if isinstance(found, pathlib.Path):
        return found
    copies = tempfile.TemporaryDirectory(prefix="mural-tf-copy-")
    _copies.append(copies)
    local = pathlib.Path(copies.name, found.name)
    _shown[str(local)] = str(found)
    with _one_line(f"Cannot read {found}"):
        files = found.files()
        for source in files:
            target = local / source.relative_to(found)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(source, target)
        if not files and found.is_file():
            copy_file(found, local)
    if not local.exists():
        raise UserError(f"{found} does not exist, is empty, or may not be read.")
    return local


def remove_copies() -> None:
    """Removes all copies that `local_copy` made, as the end of a process does; to be called where it is cut short."""
    while _copies:
        _copies.pop().cleanup()
