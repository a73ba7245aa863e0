"""Workdirs in an object store (`gs://…`, `s3://…`): a folder of this machine, kept in step with the store.

A run works in a temporary folder, as if it were its workdir. At its start the folder gets what the store has; from then
on a thread uploads what changed, every `EVERY` seconds, and once more at the end. A machine that is preempted loses at
most what was not uploaded yet: the same command on another machine goes on from the last checkpoint in the store. A
checkpoint's index is uploaded after its data, and `summary.json`, which says that a run is finished, last of all.

Stores have neither locks nor renames. In place of the lock, `in_use.lock` says who has the workdir, and is renewed. A
run that finds one of another run waits for `LEASE` seconds: if it is renewed meanwhile, the other one lives.
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

from mural_tf.errors import UserError
from mural_tf.files import PARTIAL, as_path
from mural_tf.remote import RemotePath
from mural_tf.training.workdir import LOCK

EVERY = 15.0  # seconds between two looks at what changed
LEASE = 60.0  # seconds for which a workdir belongs to who was last seen in it
FAILURES = 4  # in a row, before the run is stopped
_NOT_NEEDED = ("export/", "tensorboard/", "search-")  # to go on with a run
_shown: dict[str, str] = {}  # folder of this machine -> the name that the user gave


def shown(path: str | os.PathLike) -> str:
    """Returns a path as the user knows it: of a store, where the folder stands for one."""
    text = str(path)
    for local, name in _shown.items():
        if text == local or text.startswith(f"{local}/"):
            return name + text[len(local) :]
    return text


@contextlib.contextmanager
def local_workdir(workdir: str | os.PathLike, processes: int = 1) -> Iterator[pathlib.Path]:
    """Gives a workdir's folder on this machine: itself, or one that is kept in step with a store.

    Args:
      workdir: a path here or elsewhere.
      processes: of the run; with several, all must see one folder, which a store is not.

    Raises:
      UserError: the store cannot be read or written, another run has the workdir, or several processes.
    """
    path = as_path(workdir)
    if isinstance(path, pathlib.Path):
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", str(path)):
            raise UserError(
                f"--workdir={workdir}: expected a folder, or a store's name with two slashes: gs://…, s3://…."
            )
        yield path
        return
    if processes > 1:
        raise UserError(
            f"--workdir={path}: {processes} workers need a folder that all of them see, such as a mounted one; a "
            "store is for runs of one process (a TPU pod with one coordinator is one)."
        )
    local = pathlib.Path(tempfile.mkdtemp(prefix="mural-tf-workdir-"))
    _shown[str(local)] = str(path)
    mirror = Mirror(local, path)
    try:
        mirror.begin()
        print(f"{path} is worked on in {local} and kept in step.", flush=True)
        yield local
    finally:
        _end(mirror, local)


def _end(mirror: Mirror, local: pathlib.Path) -> None:
    try:
        mirror.end()
    except (OSError, UserError) as error:
        if mirror.has_begun:
            raise UserError(
                f"Cannot write to {mirror.store}: {error}. Everything that is saved lies in {local}, which is kept: "
                "copy it there, or run again."
            ) from None
    shutil.rmtree(local, ignore_errors=True)


class Mirror:
    """Keeps a store in step with a folder; see the module."""

    def __init__(self, local: pathlib.Path, store: RemotePath):
        self.local, self.store, self.has_begun = local, store, False
        self._token = f"process {os.getpid()} on {platform.node()}, {secrets.token_hex(4)}"
        self._pushed: dict[str, tuple[int, int]] = {}
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._keep, name=f"mirror of {store}", daemon=True)

    def begin(self) -> None:
        """Takes the workdir, gets what it holds, and starts to keep it in step."""
        try:
            self._take()
            for path in self.store.files():
                name = path.relative_to(self.store)
                if name != LOCK and not name.startswith(_NOT_NEEDED):
                    target = self.local / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(path.read_bytes())
                    self._pushed[name] = _state(target)
                elif name.startswith("export/"):
                    (self.local / "export").mkdir(exist_ok=True)  # there is one: it is not made again
        except OSError as error:
            raise UserError(
                f"Cannot read and write {self.store}: {error}. Check the name, your permissions and the connection."
            ) from None
        self.has_begun = True
        self._thread.start()

    def end(self) -> None:
        """Uploads what changed, and lets go of the workdir."""
        if not self.has_begun:
            return
        self._stop.set()
        self._thread.join()
        self.push()
        (self.store / LOCK).unlink(missing_ok=True)

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
                        (self.store / name).write_bytes(found[name].read_bytes())
                        self._pushed[name] = state
            for name in [name for name in self._pushed if name not in found and not (self.local / name).exists()]:
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
                    os.kill(os.getpid(), signal.SIGTERM)  # saves, and ends
                    return

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
        if held and held[0] != self._token:
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


def _order(name: str) -> tuple:
    """Uploads come in this order: what says that other files are complete, after them."""
    last = ("summary.json", "best.json", "checkpoint", "saved_model.pb", "config.json")
    base = name.rsplit("/", 1)[-1]
    return (name == "summary.json", last.index(base) < 3 if base in last else False, name.endswith(".index"), name)


def local_copy(path: str | os.PathLike) -> pathlib.Path:
    """Returns a folder on this machine with what a folder of a store holds; a local one is returned as it is."""
    found = as_path(path)
    if isinstance(found, pathlib.Path):
        return found
    local = pathlib.Path(tempfile.mkdtemp(prefix="mural-tf-copy-"))
    _shown[str(local)] = str(found)
    try:
        for source in found.files():
            target = local / source.relative_to(found)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    except OSError as error:
        raise UserError(f"Cannot read {found}: {error}.") from None
    if not any(local.iterdir()):
        raise UserError(f"{found} does not exist, or is empty.")
    return local
