"""The versions that are served: which are loaded, how new ones come while requests run, and how old ones go.

The server looks at its export every few seconds. What is new is loaded and warmed up in a thread, beside what answers.
Then all models change at once, between two requests. A request keeps the version with which its work began; after the
last one its memory is freed. A number that cannot be loaded is left out for all models, in one line of the log, until
its files change: so both encoders are of one version, and the old one goes on.

Loaded are the newest version of each model and those with labels. A version whose folder is deleted goes too, and with
the newest one deleted the one before it comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from absl import logging

from mural_tf.errors import UserError
from mural_tf.export.versions import follow, models_of
from mural_tf.files import as_path
from mural_tf.paths import RemotePath
from mural_tf.remote_folders import local_copy
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.models import Batcher, ServedModel

Numbers = dict[str, list[int]]  # model -> numbers of versions, ascending


class Export:
    """What an export holds, here or in a store: its versions are copied to `folder` as they appear there.

    Raises `UserError` if there is no such folder.
    """

    def __init__(self, export: str | pathlib.Path):
        self.place, self.folder = as_path(export), local_copy(export)
        if not self.folder.is_dir():
            raise UserError(f"The export {export} does not exist; `python -m mural_tf export` makes one of a workdir.")

    def available(self) -> Numbers:
        """Returns the complete versions of each model."""
        if isinstance(self.place, RemotePath):
            follow(self.place, self.folder)
        return models_of(self.folder)

    def load(self, name: str, number: int) -> ServedModel:
        """Loads a version and warms it up."""
        return ServedModel(name, self.folder / name / str(number))

    def state(self, number: int) -> tuple:
        """Returns something that changes when a file of a version does."""
        paths = sorted(self.folder.glob(f"*/{number}/**/*"))
        return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file())


class Broken(NamedTuple):
    """A version that could not be loaded: which model failed, why, and what its files were."""

    name: str
    message: str
    state: tuple


class Loaded:
    """A version in memory with what runs it, for as long as requests use it."""

    def __init__(self, model: ServedModel, limits: Limits, observe: Callable[[str, str, int], None]):
        self.model, self._limits, self._observe = model, limits, observe
        self._batchers: dict[str, Batcher] = {}
        self._users: int = 0
        self._unused: asyncio.Future | None = None  # what `close` waits for

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps it from being freed."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users and self._unused is not None and not self._unused.done():
                self._unused.set_result(None)

    def batcher(self, signature: str) -> Batcher:
        """Returns what runs a signature for all requests."""
        if signature not in self._batchers:
            run, name = self.model.signatures[signature].run, self.model.name
            self._batchers[signature] = Batcher(run, self._limits, lambda rows: self._observe(name, signature, rows))
        return self._batchers[signature]

    async def close(self) -> None:
        """Waits for the requests that use it and ends its threads."""
        if self._users:
            self._unused = asyncio.get_running_loop().create_future()
            await self._unused
        await asyncio.gather(*(batcher.close() for batcher in self._batchers.values()))


class Versions:
    """The loaded versions of all models.

    Args:
      models: what is loaded already: the newest version of each model, and those with labels.
      limits: the server's.
      observe: called with model, signature and rows of every run.
      export: what is looked at for others; None: nothing changes.
      labels: label -> number.
    """

    def __init__(
        self,
        models: Iterable[ServedModel],
        limits: Limits,
        observe: Callable[[str, str, int], None],
        export: Export | None = None,
        labels: Mapping[str, int] | None = None,
    ):
        self._limits, self._observe, self._export, self.labels = limits, observe, export, dict(labels or {})
        self._loaded: dict[str, dict[int, Loaded]] = {}
        self._leaving: list[Loaded] = []
        self._tasks: set[asyncio.Task] = set()
        self._loading: set[tuple[str, int]] = set()
        self._broken: dict[int, Broken] = {}
        self._trouble = ""
        for model in models:
            self._add(model)

    def _add(self, model: ServedModel) -> None:
        self._loaded.setdefault(model.name, {})[model.version] = Loaded(model, self._limits, self._observe)

    @property
    def names(self) -> list[str]:
        """The models, sorted."""
        return sorted(self._loaded)

    def numbers(self, name: str) -> list[int]:
        """The loaded versions of a model, the newest last."""
        return sorted(self._loaded[name])

    def find(self, name: str, number: int | None = None) -> Loaded:
        """Returns a loaded version of a model, without a number the newest; raises `KeyError`."""
        return self._loaded[name][self.numbers(name)[-1] if number is None else number]

    def states(self, name: str) -> list[tuple[int, str, str]]:
        """Returns (number, TensorFlow Serving's name of its state, what is wrong) of a model, the newest first."""
        broken = [(number, broken) for number, broken in list(self._broken.items()) if broken.name == name]
        found = {number: ("END", broken.message) for number, broken in broken}
        found.update({number: ("LOADING", "") for other, number in self._loading if other == name})
        found.update({one.model.version: ("UNLOADING", "") for one in self._leaving if one.model.name == name})
        found.update({number: ("AVAILABLE", "") for number in self._loaded[name]})
        return [(number, *found[number]) for number in sorted(found, reverse=True)]

    async def watch(self, seconds: float) -> None:
        """Looks for other versions without end."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.refresh()
                self._trouble = ""
            except (OSError, UserError) as error:  # a disk or a store that does not answer
                if str(error) != self._trouble:
                    logging.warning("Cannot look for new versions, what is loaded goes on: %s", error)
                self._trouble = str(error)
            except Exception:  # noqa: BLE001 - what is loaded goes on
                logging.exception("Cannot look for new versions, what is loaded goes on.")

    async def refresh(self) -> None:
        """Loads what is new, changes to it, and lets go of what is no longer wanted."""
        here = {name: set(numbers) for name, numbers in self._loaded.items()}
        try:
            wanted, new = await asyncio.get_running_loop().run_in_executor(None, self._prepare, here)
        finally:
            self._loading = set()
        before = {name: self.numbers(name)[-1] for name in self.names}
        for model in new:
            self._add(model)
        for name, numbers in wanted.items():
            for number in set(self._loaded[name]) - numbers:
                self._leave(self._loaded[name].pop(number))
        for name in self.names:
            if self.numbers(name)[-1] != before.get(name):
                logging.warning("%s is now served in version %d.", name, self.numbers(name)[-1])

    def _prepare(self, here: dict[str, set[int]]) -> tuple[dict[str, set[int]], list[ServedModel]]:
        there = self._export.available()
        self._broken = {n: broken for n, broken in self._broken.items() if broken.state == self._export.state(n)}
        return load_lacking(self._export, there, here, self.labels.values(), self._broken, self._note_loading)

    def _note_loading(self, name: str, number: int) -> None:
        self._loading = {*self._loading, (name, number)}

    def _leave(self, loaded: Loaded) -> None:
        self._leaving.append(loaded)
        task = asyncio.get_running_loop().create_task(self._free(loaded))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _free(self, loaded: Loaded) -> None:
        await loaded.close()
        self._leaving.remove(loaded)
        del loaded
        await asyncio.get_running_loop().run_in_executor(None, _collect)

    async def close(self) -> None:
        """Ends the threads, when requests have ended."""
        loaded = [one for versions in self._loaded.values() for one in versions.values()]
        await asyncio.gather(*(one.close() for one in loaded), *self._tasks)


def choose(there: Numbers, here: Mapping[str, set[int]], labelled: Iterable[int], broken) -> dict[str, set[int]]:
    """Returns the numbers that each model is to have loaded.

    Of what is there, the newest that is not broken and those with labels. A model of which nothing is there, as of all
    models when a disk is away, keeps what it has.
    """
    wanted, labelled = {}, set(labelled)
    for name in {**there, **here}:
        usable, has = {number for number in there.get(name, ()) if number not in broken}, here.get(name, set())
        numbers = {max(usable)} if usable else has
        wanted[name] = numbers | (labelled & (usable | has))
    return {name: numbers for name, numbers in wanted.items() if numbers}


def load_lacking(
    export: Export,
    there: Numbers,
    here: Mapping[str, set[int]],
    labelled: Collection[int],
    broken: dict[int, Broken],
    note: Callable[[str, int], None] = lambda name, number: None,
) -> tuple[dict[str, set[int]], list[ServedModel]]:
    """Loads what `choose` wants and `here` lacks; returns what is wanted, and the new ones.

    What cannot be loaded is added to `broken`, and something else chosen in its place. `note` is called with each.
    """
    new: dict[tuple[str, int], ServedModel] = {}
    while True:
        wanted = choose(there, here, labelled, broken)
        lacking = [(name, n) for name, numbers in wanted.items() for n in sorted(numbers - here.get(name, set()))]
        lacking = [key for key in lacking if key not in new]
        if not lacking:
            return wanted, [model for key, model in new.items() if key[1] in wanted.get(key[0], ())]
        name, number = lacking[0]
        note(name, number)
        state = export.state(number)
        try:
            new[name, number] = export.load(name, number)
        except Exception as error:  # noqa: BLE001 - whatever a damaged SavedModel raises, what is loaded goes on
            reason = " ".join(str(error).split()) or type(error).__name__
            broken[number] = Broken(name, reason, state)
            logging.error("Version %d of %s cannot be served and is left out: %s", number, name, reason)


def load_versions(export: Export, labels: Mapping[str, int] | None = None) -> list[ServedModel]:
    """Loads what is served at the start; a newest version that cannot be loaded is left out for the one before it.

    Raises `UserError` for a label's version that is not there or cannot be loaded, and if there is none that can.
    """
    there, broken, labels = export.available(), {}, labels or {}
    if not there:
        raise UserError(f"{export.place} is not an export: expected SavedModels such as {export.place}/text_encoder/1.")
    for label, number in labels.items():
        for name, numbers in there.items():
            if number not in numbers:
                listed = ", ".join(map(str, numbers))
                raise UserError(f"The label {label} is of version {number}, which {name} lacks: it has {listed}.")
    wanted, models = load_lacking(export, there, {}, labels.values(), broken)
    if wanted.keys() != there.keys() or any(number in broken for number in labels.values()):
        raise UserError(next(iter(broken.values())).message)
    return models


def parse_labels(texts: Iterable[str]) -> dict[str, int]:
    """Returns label -> number of "stable=1", "canary=2"; raises `UserError` for anything else."""
    labels = {}
    for text in texts:
        label, equals, number = text.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", label) or not number.isdigit() or label in labels:
            raise UserError(f"--labels={text}: expected LABEL=NUMBER, each label once, such as stable=1,canary=2.")
        labels[label] = int(number)
    return labels


def _collect() -> None:
    """TensorFlow's objects refer to each other in circles, and `app.run` froze those that were there at its start."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
